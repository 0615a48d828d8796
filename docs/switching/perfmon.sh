#!/bin/bash
# A batch script of a user of perfmon, with `profiler run --like perfmon` in place of `perfmon`. Slurm
# since 20.11 starts steps beside each other only with `--overlap`.
#SBATCH --nodes=2
#SBATCH --ntasks=2
srun --overlap -n $SLURM_JOB_NUM_NODES --ntasks-per-node 1 profiler run --like perfmon -i 1 &
mpirun -np $SLURM_JOB_NUM_NODES ./matmul 2000
wait
