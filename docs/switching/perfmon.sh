#!/bin/bash
# A batch script of a user of perfmon: `perfmon` has become `profiler run`, and what perfmon did at the
# end are two commands.
#SBATCH --nodes=2
srun --overlap -n $SLURM_JOB_NUM_NODES --ntasks-per-node=1 profiler run --job -i 500ms --label system=cluster1,env=gcc12 &
mpirun -np $SLURM_JOB_NUM_NODES ./matmul 2000
wait

run=profiles/slurm-$SLURM_JOB_ID
profiler export perfmon $run -o job-metrics-$SLURM_JOB_ID
profiler report $run --like perfmon --png job-metrics-$SLURM_JOB_ID/plots -o job-report-$SLURM_JOB_ID.html
