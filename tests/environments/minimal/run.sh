#!/bin/sh
# Runs `.ci/run` on a clean clone in a minimal Debian, in which only the Rust toolchain (with cargo-nextest,
# if it is installed) is from this machine: shows what the tests need and nobody installs.
#
#     sudo tests/environments/minimal/run.sh DIRECTORY [COMMAND…]
#
# DIRECTORY is created, and kept for another look; COMMAND replaces `.ci/run`. Requires root, mmdebstrap
# and a mirror, and takes as long as the tests.
set -eu
root=$(realpath -m "$1")
shift
checkout=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
: "${CARGO_HOME:=$HOME/.cargo}" "${RUSTUP_HOME:=$HOME/.rustup}"

if ! [ -e "$root/etc/debian_version" ]; then
    mmdebstrap --quiet --mode=root --variant=minbase bookworm "$root"
    # Users of a site trust its certificates; the toolchain and pip read this file.
    mkdir -p "$root/etc/ssl" "$root$CARGO_HOME" "$root$RUSTUP_HOME"
    cp -r /etc/ssl/certs "$root/etc/ssl/"
    for file in /etc/resolv.conf /etc/pip.conf; do
        [ ! -e "$file" ] || cp "$file" "$root/etc/"
    done
fi
rm -rf "$root/src"
git clone --quiet "$checkout" "$root/src"
[ $# -gt 0 ] || set -- .ci/run

export root CARGO_HOME RUSTUP_HOME HOME=/root LANG=C.UTF-8 TERM=dumb CI=true
exec unshare --mount --propagation private sh -eu -c '
    mount --bind "$root" "$root"
    for directory in /proc /sys /dev; do
        mount --rbind "$directory" "$root$directory"
    done
    for directory in "$CARGO_HOME" "$RUSTUP_HOME"; do
        mount --bind "$directory" "$root$directory"
    done
    export PATH="$CARGO_HOME/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    exec chroot "$root" sh -c "cd /src && exec \"\$@\"" sh "$@"
' sh "$@"
