#!/bin/sh
# Prolog for slurm.conf: profiles each job on each of its nodes, into one run directory per job.
#
#   Prolog=/etc/slurm/profiler-prolog.sh     (this file)
#   Epilog=/etc/slurm/profiler-epilog.sh     (slurm-epilog.sh)
#   PrologFlags=Alloc                        (on all nodes of a job at its start, not at the first step)
#
# Runs as root. It never prevents a job from starting: the exit code is 0 even if something fails. It
# is not needed on nodes that run profiler.service.

profiler=${PROFILER:-/usr/local/bin/profiler}
out=${PROFILER_OUT:-/var/lib/profiler}
run=${PROFILER_RUN:-/run/profiler-jobs}

case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
mkdir -p -m 0750 "$out" "$run" || exit 0

# Slurm kills the process group of the prolog when the prolog ends, and waits for processes that have
# its output open. setsid starts the profiler in a session of its own; the shell prints the pid before
# it becomes the profiler.
pid=$(setsid sh -c 'echo $$; exec "$0" "$@" >/dev/null 2>&1' \
    "$profiler" run --job "$SLURM_JOB_ID" --scheduler slurm --once --quiet \
    --out "$out" --log "$run/$SLURM_JOB_ID.{host}.log" </dev/null 2>/dev/null &)
echo "$pid" >"$run/$SLURM_JOB_ID.pid"
exit 0
