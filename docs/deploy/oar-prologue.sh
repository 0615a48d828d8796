#!/bin/sh
# Prologue for oar.conf of OAR: profiles each job on its first node.
#
#   PROLOGUE_EXEC_FILE="/etc/oar/profiler-prologue.sh"    (this file)
#   EPILOGUE_EXEC_FILE="/etc/oar/profiler-epilogue.sh"    (oar-epilogue.sh)
#
# OAR runs it as user oar, with the job id as first argument, on the first node of the job only. Jobs
# on several nodes need profiler.service on each of them instead. It never prevents a job from
# starting: the exit code is 0 even if something fails.

profiler=${PROFILER:-/usr/local/bin/profiler}
out=${PROFILER_OUT:-/var/lib/profiler}
run=${PROFILER_RUN:-/run/profiler-jobs}

case ${1:-} in '' | *[!0-9]*) exit 0 ;; esac
job=$1

# oardodo is OAR's own sudo; sudo keeps no variables.
if [ "$(id -u)" -ne 0 ]; then
    root='sudo -n'
    ! command -v oardodo >/dev/null || root=oardodo
    $root env PROFILER="$profiler" PROFILER_OUT="$out" PROFILER_RUN="$run" "$0" "$@" >/dev/null 2>&1
    exit 0
fi
# shellcheck disable=SC2174 # The directories above exist.
mkdir -p -m 0750 "$out" "$run" || exit 0

# setsid starts the profiler in a session of its own; the shell prints the pid before it becomes the
# profiler. The profiler must leave the cpuset of the job, because OAR kills all processes in it.
# shellcheck disable=SC2016 # The inner shell expands the variables.
pid=$(setsid sh -c '
    for root in /sys/fs/cgroup/*/ /sys/fs/cgroup/ /dev/oar_cgroups/; do
        [ ! -e "${root}oar" ] || echo $$ >"${root}cgroup.procs"
    done 2>/dev/null
    echo $$
    exec "$0" "$@" >/dev/null 2>&1' \
    "$profiler" run --job "$job" --scheduler oar --once --quiet \
    --out "$out" --log "$run/$job.{host}.log" </dev/null 2>/dev/null &)
echo "$pid" >"$run/$job.pid"
exit 0
