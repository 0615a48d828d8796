#!/bin/sh
# Epilog for slurm.conf. The profiler started by slurm-prolog.sh normally ends with the job. If it is
# still running, this script sends it SIGTERM and waits. Its messages go to the system log. The script
# always exits with 0, because a failure would drain the node.

profiler=${PROFILER:-/usr/local/bin/profiler}
run=${PROFILER_RUN:-/run/profiler-jobs}

case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
file=$run/$SLURM_JOB_ID.pid

# Checks that the pid is still that of our profiler: same program, with the job on its command line.
ours() {
    [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$profiler")" ] &&
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- "--job $SLURM_JOB_ID "
}

if pid=$(cat "$file" 2>/dev/null) && [ -n "$pid" ]; then
    ours && kill -TERM "$pid"
    # Time for the last sample and the last Parquet files. After 30 s, `profiler recover` can do the rest.
    tries=0
    while ours && [ $tries -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
fi
for log in "$run/$SLURM_JOB_ID".*.log; do
    [ -s "$log" ] && logger -t profiler -f "$log"
    rm -f "$log"
done
rm -f "$file"
exit 0
