! Known collectives of the three Fortran bindings, for the tests.
program test
    use mpi_f08
    implicit none
    integer :: rank, values(4)
    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    values = rank
    call MPI_Barrier(MPI_COMM_WORLD)
    if (rank == 0) call execute_command_line("sleep 0.3")
    call MPI_Allreduce(MPI_IN_PLACE, values, 4, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
    call with_module(rank)
    call with_header(rank)
    call MPI_Finalize()
end program

subroutine with_module(rank)
    use mpi
    implicit none
    integer :: rank, error, values(2), all(128)
    values = rank
    call MPI_Allgather(values, 2, MPI_INTEGER, all, 2, MPI_INTEGER, MPI_COMM_WORLD, error)
    call MPI_Bcast(values, 2, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
end subroutine

subroutine with_header(rank)
    implicit none
    include "mpif.h"
    integer :: rank, error, value, all(64)
    value = rank
    if (rank == 0) then
        call MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
    else
        call MPI_Gather(value, 1, MPI_INTEGER, all, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
    end if
end subroutine
