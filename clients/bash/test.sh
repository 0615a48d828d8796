# Script of the tests, for bash and dash: known marks, and assertions about exit statuses.
set -eu
if [ -n "${BASH_VERSION:-}" ]; then set -o pipefail; fi
. "$(dirname "$0")/profiler-mark.sh"

fail() {
    echo "$1" >&2
    exit 1
}
# With `set -e`, the second command does not run; without it, the function succeeds.
strict() {
    false
    :
}
nested() { profiler_region inner "$@"; }
count=0
add() { count=$((count + $1)); }

profiler_region program sh -c 'exit 0' || fail "a success is a failure"
profiler_region failing sh -c 'exit 3' && fail "a failure is a success" || [ $? -eq 3 ] || fail "another status"
profiler_region missing /no/such/command 2>/dev/null || [ $? -eq 127 ] || fail "another status of a missing command"
profiler_region killed sh -c 'kill -TERM $$' 2>/dev/null || [ $? -eq 143 ] || fail "another status of a signal"
# Variables of the script.
profiler_region function add 2
[ "$count" -eq 2 ] || fail "a function runs in another shell"
profiler_region outer nested true
[ "$(profiler_region output printf '%s,' 'a  b' '' '$c')" = 'a  b,,$c,' ] || fail "other arguments"
# In a shell of its own, which `set -e` ends.
set +e
(
    set -e
    profiler_region strict strict
    echo "the function continues after a failure" >&2
)
[ $? -eq 1 ] || fail "set -e is not effective in a function"
profiler_region -x true
profiler_region lenient strict || fail "a function ends although set -e is not set"
set -e
profiler_region parallel sleep 0.1 &
profiler_region parallel sleep 0.1 &
wait

profiler_start load --attr n=1 --id l
profiler_end load --status partial --id l
profiler_event checkpoint --tag a
profiler_phase compile 3.2
profiler_gauge peak 17 --unit bytes
profiler_gauge low -3.5
# Not the failure of the script.
profiler_phase wrong soon 2>/dev/null
echo done
