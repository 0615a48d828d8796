#!/bin/sh
# Epilog of slurm.conf: the profiler that slurm-prolog.sh has started ends with the job by itself; where it has not, it
# is asked to. What it had to say goes to the system's log. Never fails: that would drain the node.

profiler=${PROFILER:-/usr/local/bin/profiler}
run=${PROFILER_RUN:-/run/profiler-jobs}

case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
file=$run/$SLURM_JOB_ID.pid

# Only if the number still is that of our profiler: the program, and the job on its command line.
ours() {
    [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$profiler")" ] &&
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- "--job $SLURM_JOB_ID "
}

if pid=$(cat "$file" 2>/dev/null) && [ -n "$pid" ]; then
    ours && kill -TERM "$pid"
    # The last reading and the last part; what is not written after 30 s can be recovered.
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
