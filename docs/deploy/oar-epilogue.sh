#!/bin/sh
# Epilogue for oar.conf of OAR. The profiler started by oar-prologue.sh normally ends with the job. If
# it is still running, this script sends it SIGTERM and waits. Its messages go to the system log. The
# script always exits with 0, because OAR counts another exit code as an error of the job.

profiler=${PROFILER:-/usr/local/bin/profiler}
run=${PROFILER_RUN:-/run/profiler-jobs}

case ${1:-} in '' | *[!0-9]*) exit 0 ;; esac
job=$1
file=$run/$job.pid

if [ "$(id -u)" -ne 0 ]; then
    root='sudo -n'
    ! command -v oardodo >/dev/null || root=oardodo
    $root env PROFILER="$profiler" PROFILER_RUN="$run" "$0" "$@" >/dev/null 2>&1
    exit 0
fi

# Checks that the pid is still that of our profiler: same program, with the job on its command line.
ours() {
    [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$profiler")" ] &&
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- "--job $job "
}

if pid=$(cat "$file" 2>/dev/null) && [ -n "$pid" ]; then
    ours && kill -TERM "$pid"
    # Time for the last sample and the last Parquet files. After 30 s, `profiler recover` can do the
    # rest. OAR waits for PROLOGUE_EPILOGUE_TIMEOUT (60 s).
    tries=0
    while ours && [ $tries -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
fi
for log in "$run/$job".*.log; do
    [ -s "$log" ] && logger -t profiler -f "$log"
    rm -f "$log"
done
rm -f "$file"
exit 0
