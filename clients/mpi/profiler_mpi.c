/*
 * Marks the collective operations of an MPI program that runs under the profiler:
 *
 *     profiler run -- mpirun -x LD_PRELOAD=$PWD/libprofiler_mpi.so ./program
 *
 * It uses the profiling interface of MPI (PMPI), so the program need not be compiled again; it can
 * also be linked into it. Each call that takes at least PROFILER_MPI_MIN_US (by default 5000) is a
 * phase with the attributes rank, size (of its communicator), bytes and root; at most 20 per second
 * in the long run. MPI_Finalize sends the totals of all calls. docs/regions.md describes the rows.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <time.h>

#include "../c/profiler_mark.h"

#define FUNCTIONS(X) \
    X(Barrier) X(Bcast) X(Reduce) X(Allreduce) X(Scan) X(Exscan) X(Reduce_scatter) \
    X(Reduce_scatter_block) X(Gather) X(Gatherv) X(Scatter) X(Scatterv) X(Allgather) \
    X(Allgatherv) X(Alltoall) X(Alltoallv) X(Alltoallw) X(File_read_all) X(File_read_at_all) \
    X(File_read_ordered) X(File_write_all) X(File_write_at_all) X(File_write_ordered)

enum function {
#define X(name) name,
    FUNCTIONS(X)
#undef X
    COUNT
};

static const char *const names[] = {
#define X(name) "MPI_" #name,
    FUNCTIONS(X)
#undef X
};

/* Of all calls of a function that succeeded. The members are atomic. */
static struct totals {
    uint64_t calls, bytes, ns, longest_ns, marked;
} totals[COUNT];

/* Rank and size of MPI_COMM_WORLD. */
static int world_rank = -1, world_size;

/* Marks of a process that the profiler's limits have room for, if a node has 64 of them. */
#define MARK_INTERVAL_NS UINT64_C(50000000)
#define MARK_BURST 400

/* Not 0 in an MPI function: MPI implements some functions by calling others. */
static __thread int inside;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t minimum_ns(void) {
    static uint64_t minimum = UINT64_MAX;
    uint64_t known = __atomic_load_n(&minimum, __ATOMIC_RELAXED);
    if (known == UINT64_MAX) {
        const char *text = getenv("PROFILER_MPI_MIN_US");
        double us = text ? strtod(text, NULL) : 5000;
        known = us > 0 && us < 1e12 ? (uint64_t)(us * 1e3) : 0;
        __atomic_store_n(&minimum, known, __ATOMIC_RELAXED);
    }
    return known;
}

static int may_mark(uint64_t now) {
    static uint64_t next;
    uint64_t seen = __atomic_load_n(&next, __ATOMIC_RELAXED), from, saved;
    do {
        saved = MARK_BURST * MARK_INTERVAL_NS < now ? now - MARK_BURST * MARK_INTERVAL_NS : 0;
        from = seen > saved ? seen : saved;
        if (from > now) return 0;
    } while (!__atomic_compare_exchange_n(&next, &seen, from + MARK_INTERVAL_NS, 1,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return 1;
}

static int size_of(MPI_Comm comm) {
    int size = 0;
    PMPI_Comm_size(comm, &size);
    return size;
}

static int size_of_file(MPI_File file) {
    MPI_Group group;
    int size = 0;
    if (PMPI_File_get_group(file, &group) == MPI_SUCCESS) {
        PMPI_Group_size(group, &size);
        PMPI_Group_free(&group);
    }
    return size;
}

/* Number of processes that send to a process of this communicator. */
static int peers(MPI_Comm comm) {
    int inter = 0, size = 0;
    PMPI_Comm_test_inter(comm, &inter);
    if (inter) PMPI_Comm_remote_size(comm, &size);
    else size = size_of(comm);
    return size;
}

static int own(MPI_Comm comm) {
    int rank = 0;
    PMPI_Comm_rank(comm, &rank);
    return rank;
}

static uint64_t of(int count, MPI_Datatype type) {
    MPI_Count size = 0;
    if (type == MPI_DATATYPE_NULL) return 0;
    PMPI_Type_size_x(type, &size);
    return count > 0 && size > 0 ? (uint64_t)count * (uint64_t)size : 0;
}

static uint64_t of_each(int number, const int *counts, MPI_Datatype type) {
    int64_t sum = 0;
    for (int i = 0; i < number; i++) sum += counts[i];
    return of(1, type) * (uint64_t)sum;
}

static uint64_t of_types(int number, const int *counts, const MPI_Datatype *types) {
    uint64_t sum = 0;
    for (int i = 0; i < number; i++) sum += of(counts[i], types[i]);
    return sum;
}

#define NO_ROOT (-1)
/* In a communicator of two groups, the group of the root has negative values and fewer arguments. */
#define ROOTED(root, bytes) ((root) < 0 ? 0 : (bytes))

static void record(enum function function, uint64_t begin, uint64_t end, uint64_t bytes) {
    struct totals *total = &totals[function];
    uint64_t ns = end - begin, longest = __atomic_load_n(&total->longest_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&total->calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&total->bytes, bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&total->ns, ns, __ATOMIC_RELAXED);
    while (ns > longest && !__atomic_compare_exchange_n(&total->longest_ns, &longest, ns, 1,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static void mark(enum function function, uint64_t begin, uint64_t end, uint64_t bytes, int size,
                 int root) {
    struct profiler_attrs attrs = PROFILER_ATTRS;
    struct profiler_details more = {.kind = "mpi", .attrs = attrs.text};
    if (world_rank >= 0) profiler_attr_int(&attrs, "rank", world_rank);
    profiler_attr_int(&attrs, "size", size);
    if (function != Barrier) profiler_attr_int(&attrs, "bytes", (int64_t)bytes);
    if (root >= 0) profiler_attr_int(&attrs, "root", root);
    __atomic_fetch_add(&totals[function].marked, 1, __ATOMIC_RELAXED);
    profiler_phase_with(names[function], (double)(end - begin) * 1e-9, &more);
}

/* `call` sets `error`. The arguments are valid, and `bytes` and `size` computed, if it succeeds. */
#define MEASURED(function, call, bytes, size, root) \
    if (inside || !profiler_enabled()) { \
        call; \
    } else { \
        uint64_t begin_ = now_ns(), end_; \
        inside = 1; \
        call; \
        end_ = now_ns(); \
        if (SUCCEEDED) { \
            uint64_t bytes_ = bytes; \
            record(function, begin_, end_, bytes_); \
            if (end_ - begin_ >= minimum_ns() && may_mark(end_)) \
                mark(function, begin_, end_, bytes_, size, root); \
        } \
        inside = 0; \
    }

static uint64_t starting(const char *name) {
    return profiler_start_with(name, &(struct profiler_details){.kind = "mpi"});
}

static void started(uint64_t region) {
    struct profiler_attrs attrs = PROFILER_ATTRS;
    PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &world_size);
    profiler_attr_int(&attrs, "rank", world_rank);
    profiler_attr_int(&attrs, "size", world_size);
    profiler_end_with(region, &(struct profiler_details){.attrs = attrs.text});
}

static uint64_t finalizing(void) {
    char text[6000];
    int length, any = 0;
    if (!profiler_enabled()) return 0;
    length = snprintf(text, sizeof text, "{\"rank\":%d,\"size\":%d,\"functions\":{", world_rank,
                      world_size);
    for (int i = 0; i < COUNT; i++) {
        const struct totals *total = &totals[i];
        if (total->calls == 0) continue;
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "%s\"%s\":{\"calls\":%llu,\"bytes\":%llu,\"ns\":%llu,"
                           "\"longest_ns\":%llu,\"marked\":%llu}",
                           any++ ? "," : "", names[i], (unsigned long long)total->calls,
                           (unsigned long long)total->bytes, (unsigned long long)total->ns,
                           (unsigned long long)total->longest_ns,
                           (unsigned long long)total->marked);
    }
    snprintf(text + length, sizeof text - (size_t)length, "}}");
    profiler_event_with("MPI_totals", &(struct profiler_details){.kind = "mpi", .attrs = text});
    return starting("MPI_Finalize");
}

/* ---- C ---- */

#define SUCCEEDED error == MPI_SUCCESS

#define C_FUNCTION(function, parameters, arguments, bytes, size, root) \
    int MPI_##function parameters { \
        int error; \
        MEASURED(function, error = PMPI_##function arguments, bytes, size, root) \
        return error; \
    }

int MPI_Init(int *count, char ***arguments) {
    uint64_t region = starting("MPI_Init");
    int error = PMPI_Init(count, arguments);
    if (SUCCEEDED) started(region);
    return error;
}

int MPI_Init_thread(int *count, char ***arguments, int required, int *provided) {
    uint64_t region = starting("MPI_Init_thread");
    int error = PMPI_Init_thread(count, arguments, required, provided);
    if (SUCCEEDED) started(region);
    return error;
}

int MPI_Finalize(void) {
    uint64_t region = finalizing();
    int error = PMPI_Finalize();
    profiler_end(region);
    return error;
}

C_FUNCTION(Barrier, (MPI_Comm comm), (comm), 0, size_of(comm), NO_ROOT)

C_FUNCTION(Bcast, (void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm),
           (buffer, count, type, root, comm), ROOTED(root, of(count, type)), size_of(comm), root)

C_FUNCTION(Reduce, (const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, int root,
                    MPI_Comm comm),
           (from, to, count, type, op, root, comm), ROOTED(root, of(count, type)), size_of(comm),
           root)

#define C_REDUCTION(function) \
    C_FUNCTION(function, (const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, \
                          MPI_Comm comm), \
               (from, to, count, type, op, comm), of(count, type), size_of(comm), NO_ROOT)
C_REDUCTION(Allreduce)
C_REDUCTION(Scan)
C_REDUCTION(Exscan)

C_FUNCTION(Reduce_scatter, (const void *from, void *to, const int counts[], MPI_Datatype type,
                            MPI_Op op, MPI_Comm comm),
           (from, to, counts, type, op, comm), of_each(size_of(comm), counts, type),
           size_of(comm), NO_ROOT)

C_FUNCTION(Reduce_scatter_block, (const void *from, void *to, int count, MPI_Datatype type,
                                  MPI_Op op, MPI_Comm comm),
           (from, to, count, type, op, comm), of(count, type) * (uint64_t)size_of(comm),
           size_of(comm), NO_ROOT)

C_FUNCTION(Gather, (const void *from, int count, MPI_Datatype type, void *to, int to_count,
                    MPI_Datatype to_type, int root, MPI_Comm comm),
           (from, count, type, to, to_count, to_type, root, comm),
           ROOTED(root, from == MPI_IN_PLACE ? of(to_count, to_type) : of(count, type)),
           size_of(comm), root)

C_FUNCTION(Gatherv, (const void *from, int count, MPI_Datatype type, void *to,
                     const int to_counts[], const int displacements[], MPI_Datatype to_type,
                     int root, MPI_Comm comm),
           (from, count, type, to, to_counts, displacements, to_type, root, comm),
           ROOTED(root, from == MPI_IN_PLACE ? of(to_counts[root], to_type) : of(count, type)),
           size_of(comm), root)

C_FUNCTION(Scatter, (const void *from, int count, MPI_Datatype type, void *to, int to_count,
                     MPI_Datatype to_type, int root, MPI_Comm comm),
           (from, count, type, to, to_count, to_type, root, comm),
           ROOTED(root, to == MPI_IN_PLACE ? of(count, type) : of(to_count, to_type)),
           size_of(comm), root)

C_FUNCTION(Scatterv, (const void *from, const int counts[], const int displacements[],
                      MPI_Datatype type, void *to, int to_count, MPI_Datatype to_type, int root,
                      MPI_Comm comm),
           (from, counts, displacements, type, to, to_count, to_type, root, comm),
           ROOTED(root, to == MPI_IN_PLACE ? of(counts[root], type) : of(to_count, to_type)),
           size_of(comm), root)

C_FUNCTION(Allgather, (const void *from, int count, MPI_Datatype type, void *to, int to_count,
                       MPI_Datatype to_type, MPI_Comm comm),
           (from, count, type, to, to_count, to_type, comm),
           from == MPI_IN_PLACE ? of(to_count, to_type) : of(count, type), size_of(comm), NO_ROOT)

C_FUNCTION(Allgatherv, (const void *from, int count, MPI_Datatype type, void *to,
                        const int to_counts[], const int displacements[], MPI_Datatype to_type,
                        MPI_Comm comm),
           (from, count, type, to, to_counts, displacements, to_type, comm),
           from == MPI_IN_PLACE ? of(to_counts[own(comm)], to_type) : of(count, type),
           size_of(comm), NO_ROOT)

C_FUNCTION(Alltoall, (const void *from, int count, MPI_Datatype type, void *to, int to_count,
                      MPI_Datatype to_type, MPI_Comm comm),
           (from, count, type, to, to_count, to_type, comm),
           (from == MPI_IN_PLACE ? of(to_count, to_type) : of(count, type)) *
               (uint64_t)peers(comm),
           size_of(comm), NO_ROOT)

C_FUNCTION(Alltoallv, (const void *from, const int counts[], const int displacements[],
                       MPI_Datatype type, void *to, const int to_counts[],
                       const int to_displacements[], MPI_Datatype to_type, MPI_Comm comm),
           (from, counts, displacements, type, to, to_counts, to_displacements, to_type, comm),
           from == MPI_IN_PLACE ? of_each(peers(comm), to_counts, to_type)
                                : of_each(peers(comm), counts, type),
           size_of(comm), NO_ROOT)

C_FUNCTION(Alltoallw, (const void *from, const int counts[], const int displacements[],
                       const MPI_Datatype types[], void *to, const int to_counts[],
                       const int to_displacements[], const MPI_Datatype to_types[], MPI_Comm comm),
           (from, counts, displacements, types, to, to_counts, to_displacements, to_types, comm),
           from == MPI_IN_PLACE ? of_types(peers(comm), to_counts, to_types)
                                : of_types(peers(comm), counts, types),
           size_of(comm), NO_ROOT)

#define C_FILE(function, buffer) \
    C_FUNCTION(File_##function, (MPI_File file, buffer, int count, MPI_Datatype type, \
                                 MPI_Status *status), \
               (file, data, count, type, status), of(count, type), size_of_file(file), NO_ROOT)
#define C_FILE_AT(function, buffer) \
    C_FUNCTION(File_##function, (MPI_File file, MPI_Offset at, buffer, int count, \
                                 MPI_Datatype type, MPI_Status *status), \
               (file, at, data, count, type, status), of(count, type), size_of_file(file), NO_ROOT)
C_FILE(read_all, void *data)
C_FILE(read_ordered, void *data)
C_FILE(write_all, const void *data)
C_FILE(write_ordered, const void *data)
C_FILE_AT(read_at_all, void *data)
C_FILE_AT(write_at_all, const void *data)

/*
 * ---- Fortran ----
 *
 * The Fortran functions of Open MPI call PMPI functions of C, so they have entry points of their own
 * here: those of mpif.h and `use mpi`, and those of `use mpi_f08`. The functions above see only some
 * of the calls of a Fortran program with MPICH.
 */
#ifdef OPEN_MPI

#undef SUCCEEDED
#define SUCCEEDED *error == MPI_SUCCESS

extern int mpi_fortran_in_place_ __attribute__((weak));
#define IN_PLACE(buffer) ((buffer) == (void *)&mpi_fortran_in_place_)
#define TYPE(handle) fortran_type(handle)
#define COMM(handle) PMPI_Comm_f2c(*(handle))
#define SIZE size_of(COMM(comm))

static MPI_Datatype fortran_type(const int *handle) {
    MPI_Datatype type = PMPI_Type_f2c(*handle);
    return type ? type : MPI_DATATYPE_NULL;
}

static uint64_t of_fortran_types(int number, const int *counts, const int *types) {
    uint64_t sum = 0;
    for (int i = 0; i < number; i++) sum += of(counts[i], TYPE(&types[i]));
    return sum;
}

/* The PMPI functions are null in a program without Fortran. `error` is optional in mpi_f08. */
#define FORTRAN_ENTRY(entry, parameters, body) \
    extern void p##entry parameters __attribute__((weak)); \
    void entry parameters; \
    void entry parameters { \
        int own_error; \
        if (!error) error = &own_error; \
        body \
    }

#define FORTRAN(name, function, parameters, arguments, bytes, root) \
    FORTRAN_ENTRY(mpi_##name##_, parameters, \
                  MEASURED(function, pmpi_##name##_ arguments, bytes, SIZE, root)) \
    FORTRAN_ENTRY(mpi_##name##_f08_, parameters, \
                  MEASURED(function, pmpi_##name##_f08_ arguments, bytes, SIZE, root))

#define FORTRAN_INIT(entry, name, parameters, arguments) \
    FORTRAN_ENTRY(entry, parameters, uint64_t region = starting(name); \
                  p##entry arguments; if (SUCCEEDED) started(region);)
#define FORTRAN_FINALIZE(entry) \
    FORTRAN_ENTRY(entry, (int *error), uint64_t region = finalizing(); \
                  p##entry(error); profiler_end(region);)

FORTRAN_INIT(mpi_init_, "MPI_Init", (int *error), (error))
FORTRAN_INIT(mpi_init_f08_, "MPI_Init", (int *error), (error))
FORTRAN_INIT(mpi_init_thread_, "MPI_Init_thread", (int *required, int *provided, int *error),
             (required, provided, error))
FORTRAN_INIT(mpi_init_thread_f08_, "MPI_Init_thread", (int *required, int *provided, int *error),
             (required, provided, error))
FORTRAN_FINALIZE(mpi_finalize_)
FORTRAN_FINALIZE(mpi_finalize_f08_)

FORTRAN(barrier, Barrier, (int *comm, int *error), (comm, error), 0, NO_ROOT)

FORTRAN(bcast, Bcast, (void *buffer, int *count, int *type, int *root, int *comm, int *error),
        (buffer, count, type, root, comm, error), ROOTED(*root, of(*count, TYPE(type))), *root)

FORTRAN(reduce, Reduce, (void *from, void *to, int *count, int *type, int *op, int *root,
                         int *comm, int *error),
        (from, to, count, type, op, root, comm, error), ROOTED(*root, of(*count, TYPE(type))),
        *root)

#define FORTRAN_REDUCTION(name, function, bytes) \
    FORTRAN(name, function, (void *from, void *to, int *count, int *type, int *op, int *comm, \
                             int *error), \
            (from, to, count, type, op, comm, error), bytes, NO_ROOT)
FORTRAN_REDUCTION(allreduce, Allreduce, of(*count, TYPE(type)))
FORTRAN_REDUCTION(scan, Scan, of(*count, TYPE(type)))
FORTRAN_REDUCTION(exscan, Exscan, of(*count, TYPE(type)))
FORTRAN_REDUCTION(reduce_scatter, Reduce_scatter, of_each(SIZE, count, TYPE(type)))
FORTRAN_REDUCTION(reduce_scatter_block, Reduce_scatter_block,
                  of(*count, TYPE(type)) * (uint64_t)SIZE)

FORTRAN(gather, Gather, (void *from, int *count, int *type, void *to, int *to_count, int *to_type,
                         int *root, int *comm, int *error),
        (from, count, type, to, to_count, to_type, root, comm, error),
        ROOTED(*root, IN_PLACE(from) ? of(*to_count, TYPE(to_type)) : of(*count, TYPE(type))),
        *root)

FORTRAN(gatherv, Gatherv, (void *from, int *count, int *type, void *to, int *to_counts,
                           int *displacements, int *to_type, int *root, int *comm, int *error),
        (from, count, type, to, to_counts, displacements, to_type, root, comm, error),
        ROOTED(*root, IN_PLACE(from) ? of(to_counts[*root], TYPE(to_type))
                                     : of(*count, TYPE(type))),
        *root)

FORTRAN(scatter, Scatter, (void *from, int *count, int *type, void *to, int *to_count,
                           int *to_type, int *root, int *comm, int *error),
        (from, count, type, to, to_count, to_type, root, comm, error),
        ROOTED(*root, IN_PLACE(to) ? of(*count, TYPE(type)) : of(*to_count, TYPE(to_type))),
        *root)

FORTRAN(scatterv, Scatterv, (void *from, int *counts, int *displacements, int *type, void *to,
                             int *to_count, int *to_type, int *root, int *comm, int *error),
        (from, counts, displacements, type, to, to_count, to_type, root, comm, error),
        ROOTED(*root, IN_PLACE(to) ? of(counts[*root], TYPE(type))
                                   : of(*to_count, TYPE(to_type))),
        *root)

FORTRAN(allgather, Allgather, (void *from, int *count, int *type, void *to, int *to_count,
                               int *to_type, int *comm, int *error),
        (from, count, type, to, to_count, to_type, comm, error),
        IN_PLACE(from) ? of(*to_count, TYPE(to_type)) : of(*count, TYPE(type)), NO_ROOT)

FORTRAN(allgatherv, Allgatherv, (void *from, int *count, int *type, void *to, int *to_counts,
                                 int *displacements, int *to_type, int *comm, int *error),
        (from, count, type, to, to_counts, displacements, to_type, comm, error),
        IN_PLACE(from) ? of(to_counts[own(COMM(comm))], TYPE(to_type)) : of(*count, TYPE(type)),
        NO_ROOT)

FORTRAN(alltoall, Alltoall, (void *from, int *count, int *type, void *to, int *to_count,
                             int *to_type, int *comm, int *error),
        (from, count, type, to, to_count, to_type, comm, error),
        (IN_PLACE(from) ? of(*to_count, TYPE(to_type)) : of(*count, TYPE(type))) *
            (uint64_t)peers(COMM(comm)),
        NO_ROOT)

FORTRAN(alltoallv, Alltoallv, (void *from, int *counts, int *displacements, int *type, void *to,
                               int *to_counts, int *to_displacements, int *to_type, int *comm,
                               int *error),
        (from, counts, displacements, type, to, to_counts, to_displacements, to_type, comm, error),
        IN_PLACE(from) ? of_each(peers(COMM(comm)), to_counts, TYPE(to_type))
                       : of_each(peers(COMM(comm)), counts, TYPE(type)),
        NO_ROOT)

FORTRAN(alltoallw, Alltoallw, (void *from, int *counts, int *displacements, int *types, void *to,
                               int *to_counts, int *to_displacements, int *to_types, int *comm,
                               int *error),
        (from, counts, displacements, types, to, to_counts, to_displacements, to_types, comm,
         error),
        IN_PLACE(from) ? of_fortran_types(peers(COMM(comm)), to_counts, to_types)
                       : of_fortran_types(peers(COMM(comm)), counts, types),
        NO_ROOT)

#undef SIZE
#define SIZE size_of_file(PMPI_File_f2c(*file))
#define FORTRAN_FILE(name, function) \
    FORTRAN(name, function, (int *file, void *data, int *count, int *type, int *status, \
                             int *error), \
            (file, data, count, type, status, error), of(*count, TYPE(type)), NO_ROOT)
#define FORTRAN_FILE_AT(name, function) \
    FORTRAN(name, function, (int *file, MPI_Offset *at, void *data, int *count, int *type, \
                             int *status, int *error), \
            (file, at, data, count, type, status, error), of(*count, TYPE(type)), NO_ROOT)
FORTRAN_FILE(file_read_all, File_read_all)
FORTRAN_FILE(file_read_ordered, File_read_ordered)
FORTRAN_FILE(file_write_all, File_write_all)
FORTRAN_FILE(file_write_ordered, File_write_ordered)
FORTRAN_FILE_AT(file_read_at_all, File_read_at_all)
FORTRAN_FILE_AT(file_write_at_all, File_write_at_all)

#endif
