# Functions that mark regions, events and values of a script that runs under the profiler, for bash,
# dash and similar shells:
#
#     . profiler-mark.sh
#     profiler_region fit ./train --epochs 3
#     profiler_start load --attr file=x
#     profiler_end load
#     profiler_event checkpoint
#     profiler_phase compile 3.2
#     profiler_gauge peak_memory 1073741824 --unit bytes
#
# The arguments are those of `profiler mark`. The functions work with `set -euo pipefail` and never
# fail themselves. They do nothing if no profiler runs (PROFILER_SOCKET is not set) or if there is no
# command `profiler`; the variable PROFILER_COMMAND can name another one.

profiler_start() { _profiler_mark start "$@"; }
profiler_end() { _profiler_mark end "$@"; }
profiler_event() { _profiler_mark event "$@"; }
profiler_phase() { _profiler_mark phase "$@"; }
profiler_gauge() { _profiler_mark gauge "$@"; }

# profiler_region NAME COMMAND [ARGUMENT…]: runs a command or a function as a region and returns its
# exit status. If that is not 0, the region has the status `error` and the attribute `exit_status`.
# If `set -e` ends the script within a function, the region has the status `unfinished`.
profiler_region() {
    if ! _profiler_is_on; then
        shift
        "$@"
        return
    fi
    _profiler_mark start -- "$1"
    if _profiler_is_program "$2"; then
        _profiler_run "$@" && _profiler_ended "$1" 0 || _profiler_ended "$1" "$?"
    else
        # Not as part of a list, in which functions run without `set -e`.
        _profiler_run "$@"
        _profiler_ended "$1" "$?"
    fi
}

_profiler_is_on() {
    [ -n "${PROFILER_SOCKET:-}" ] && command -v "${PROFILER_COMMAND:-profiler}" >/dev/null
}

_profiler_mark() {
    if _profiler_is_on; then
        "${PROFILER_COMMAND:-profiler}" mark "$@" || :
    fi
}

# Whether a command is a program, not a function or a builtin.
_profiler_is_program() {
    case $(command -v -- "$1" || :) in
        */* | "") return 0 ;;
        *) return 1 ;;
    esac
}

# Runs the command after the name of the region.
_profiler_run() {
    shift
    "$@"
}

# Ends a region, and returns the exit status of its command.
_profiler_ended() {
    if [ "$2" -eq 0 ]; then
        _profiler_mark end -- "$1"
    else
        _profiler_mark end --status error --attr "exit_status=$2" -- "$1"
    fi
    return "$2"
}
