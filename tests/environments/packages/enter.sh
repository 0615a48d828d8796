#!/bin/sh
# Runs a command in the directory $1 as root of a system, with the file systems of the kernel. They are
# mounted for this command only: run it with `unshare --mount`.
set -e
root=$1
shift
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
exec chroot "$root" "$@"
