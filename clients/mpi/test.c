/*
 * Known collectives, for the tests. Arguments: a path, to which the file functions write; or `cost`:
 * prints the ns per MPI_Allreduce; or how two processes
 * divide work: `uneven`, of which the first has three times as much, or `turns`, in which one works
 * while the other waits.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SMALL 1000

static void wait_ms(long ms) {
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

static void cost(int rank) {
    enum { CALLS = 300000 };
    double value = 0, sum, begin;
    MPI_Barrier(MPI_COMM_SELF);
    begin = MPI_Wtime();
    for (int i = 0; i < CALLS; i++) {
        MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF);
    }
    if (rank == 0) printf("%.0f\n", (MPI_Wtime() - begin) * 1e9 / CALLS);
}

static void compute_ms(double ms) {
    double end = MPI_Wtime() + ms / 1e3;
    while (MPI_Wtime() < end) {}
}

static void work(int rank, int takes_turns) {
    enum { ROUNDS = 10 };
    for (int i = 0; i < ROUNDS; i++) {
        double value = 0, sum;
        if (takes_turns) compute_ms(rank == i % 2 ? 60 : 1);
        else compute_ms(rank == 0 ? 60 : 20);
        MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
}

static void collectives(int rank, int size, const char *path) {
    int counts[64], displacements[64], from[64 * 16] = {0}, to[64 * 16];
    MPI_Datatype types[64];
    MPI_File file;
    for (int i = 0; i < size; i++) {
        counts[i] = 2;
        displacements[i] = 2 * i;
        types[i] = MPI_INT;
    }
    for (int i = 0; i < SMALL; i++) {
        MPI_Allreduce(from, to, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    /* The others wait for the last process. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) wait_ms(300);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) wait_ms(300);
    MPI_Bcast(from, 16, MPI_INT, 1, MPI_COMM_WORLD);

    MPI_Reduce(from, to, 4, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Scan(from, to, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Exscan(from, to, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Reduce_scatter(from, to, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Reduce_scatter_block(from, to, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Gather(rank == 0 ? MPI_IN_PLACE : from, 2, MPI_INT, to, 2, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Gatherv(from, 2, MPI_INT, to, counts, displacements, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Scatter(from, 2, MPI_INT, rank == 0 ? MPI_IN_PLACE : to, 2, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Scatterv(from, counts, displacements, MPI_INT, to, 2, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, to, 2, MPI_INT, MPI_COMM_WORLD);
    MPI_Allgatherv(from, 2, MPI_INT, to, counts, displacements, MPI_INT, MPI_COMM_WORLD);
    MPI_Alltoall(from, 2, MPI_INT, to, 2, MPI_INT, MPI_COMM_WORLD);
    MPI_Alltoallv(from, counts, displacements, MPI_INT, to, counts, displacements, MPI_INT,
                  MPI_COMM_WORLD);
    MPI_Alltoallw(from, counts, displacements, types, to, counts, displacements, types,
                  MPI_COMM_WORLD);

    MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    MPI_File_write_at_all(file, rank * 4096, from, 1024, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_read_at_all(file, rank * 4096, to, 1024, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_seek(file, rank * 4096, MPI_SEEK_SET);
    MPI_File_write_all(file, from, 1024, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_seek(file, rank * 4096, MPI_SEEK_SET);
    MPI_File_read_all(file, to, 1024, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
}

/* From a process of one group to all processes of the other. */
static void two_groups(int rank, int size) {
    MPI_Comm half, other;
    int low = rank < size / 2, value = 1;
    MPI_Comm_split(MPI_COMM_WORLD, low, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, low ? size / 2 : 0, 1, &other);
    int root = !low ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL;
    MPI_Bcast(&value, 1, MPI_INT, root, other);
    MPI_Comm_free(&other);
    MPI_Comm_free(&half);
}

int main(int count, char **arguments) {
    int rank, size;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(arguments[1], "cost") == 0) {
        cost(rank);
    } else if (strcmp(arguments[1], "uneven") == 0 || strcmp(arguments[1], "turns") == 0) {
        work(rank, strcmp(arguments[1], "turns") == 0);
    } else {
        collectives(rank, size, arguments[1]);
        two_groups(rank, size);
    }
    MPI_Finalize();
    return 0;
}
