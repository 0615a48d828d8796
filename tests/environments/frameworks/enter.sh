#!/bin/sh
# Runs a command in the Debian in directory $1, which sees the directories before `--` at their own paths.
# They are mounted for this command only: run it with `unshare --mount`.
set -e
root=$1
shift
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
exec sh "$(dirname "$0")/../packages/enter.sh" "$root" "$@"
