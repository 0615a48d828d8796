#!/bin/sh
# Installations by a user without privileges: the archive below the home directory, the wheel in a
# virtual environment. Runs in a chroot, as root, without network.
#
#   user.sh ARCHIVE WHEEL
set -eu

archive=$1
wheel=$2
export LC_ALL=C
useradd --create-home member
cat >/tmp/as-member <<'END'
set -eu
archive=$1
wheel=$2
fail() {
    echo "packages: FAILED: $*" >&2
    exit 1
}
profiles() {
    "$1" run --quiet --out "$HOME/profiles" -i 100ms -- sh -c 'sleep 0.3; exit 7' && fail 'exit code 0'
    [ $? -eq 7 ] || fail 'the exit code is not that of the command'
    "$1" verify "$HOME"/profiles/*
    "$1" export csv --table process "$HOME"/profiles/* -o "$HOME/processes.csv"
    grep -q ',sleep,' "$HOME/processes.csv" || fail 'the descendant of the command is not in the data'
    rm -r "$HOME/profiles" "$HOME/processes.csv"
}

echo 'packages: archive of a user'
cd "$HOME"
tar -xf "$archive"
profiles "$HOME"/profiler-*-linux/bin/profiler

echo 'packages: wheel in a virtual environment'
python3 -m venv environment
environment/bin/pip install --quiet --no-index "$wheel"
profiles environment/bin/profiler
environment/bin/python -c 'import profiler; profiler.region'
END
runuser --user member -- env HOME=/home/member sh /tmp/as-member "$archive" "$wheel"
userdel --remove member
