#!/bin/sh
# Prolog of slurm.conf: profiles each job on each of its nodes, into one run directory for all of them.
#
#   Prolog=/etc/slurm/profiler-prolog.sh     (this file)
#   Epilog=/etc/slurm/profiler-epilog.sh     (slurm-epilog.sh)
#   PrologFlags=Alloc                        (on all nodes of a job when it begins, not with the first step)
#
# Runs as root. It never keeps a job from starting: whatever fails here, the exit code is 0. With a profiler that is
# always there (profiler.service), it is not needed.

profiler=${PROFILER:-/usr/local/bin/profiler}
out=${PROFILER_OUT:-/var/lib/profiler}
run=${PROFILER_RUN:-/run/profiler-jobs}

case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
mkdir -p -m 0750 "$out" "$run" || exit 0

# Slurm kills the process group of the prolog when that has ended, and waits for whoever has its output open. The number
# is told by one that has a session of its own already.
pid=$(setsid sh -c 'echo $$; exec "$0" "$@" >/dev/null 2>&1' \
    "$profiler" run --job "$SLURM_JOB_ID" --scheduler slurm --once --quiet \
    --out "$out" --log "$run/$SLURM_JOB_ID.{host}.log" </dev/null 2>/dev/null &)
echo "$pid" >"$run/$SLURM_JOB_ID.pid"
exit 0
