#!/bin/sh
# Creates the disk of a bootable Debian: an ext4 image $1, with the kernel modules of directory $2
# (/lib/modules/RELEASE). Requires root and a mirror, and takes a minute or two.
set -e
image=$1
modules=$2
root=$image.root
trap 'rm -rf "$root" "$image.partial"' EXIT
rm -rf "$root"
mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt=path-exclude=/usr/share/doc/* \
    --dpkgopt=path-exclude=/usr/share/locale/* \
    --dpkgopt=path-exclude=/usr/share/man/* \
    --include=acl,dbus,dmsetup,iproute2,kmod,libcap2-bin,libpam-systemd,lvm2,munge,nfs-common,nfs-kernel-server,procps \
    --include=slurm-client,slurmctld,slurmd,sudo,systemd,systemd-container,systemd-sysv,udev \
    bookworm "$root"
release=$(basename "$modules")
mkdir -p "$root/lib/modules"
cp -a "$modules" "$root/lib/modules/"
chroot "$root" depmod "$release"
# Disable services that the tests start themselves, and those that wait for a network.
for unit in munge slurmctld slurmd nfs-server nfs-blkmap rpcbind lvm2-monitor e2scrub_reap; do
    rm -f "$root"/etc/systemd/system/*.wants/$unit.*
done
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do
    rm -f "$root/etc/systemd/system/timers.target.wants/$unit"
done
echo guest >"$root/etc/hostname"
printf '127.0.0.1 localhost guest\n' >"$root/etc/hosts"
printf '/dev/vda / ext4 defaults 0 1\n' >"$root/etc/fstab"
# Without a fixed machine id, systemd creates one at each boot.
echo 5f7b0d1e2c3a49688f6e5d4c3b2a1908 >"$root/etc/machine-id"
# The programs under test have the paths that they have on the host, which systemd would remove
# below /tmp.
mkdir -p "$root/etc/tmpfiles.d"
ln -s /dev/null "$root/etc/tmpfiles.d/tmp.conf"
# `tester` submits jobs and is in the profiler's group, `other` is not.
chroot "$root" useradd --create-home --shell /bin/bash --uid 2001 tester
chroot "$root" useradd --create-home --shell /bin/bash --uid 2002 other
echo 'tester ALL=(root) NOPASSWD: ALL' >"$root/etc/sudoers.d/tester"
chmod 440 "$root/etc/sudoers.d/tester"
mke2fs -q -t ext4 -L system -d "$root" "$image.partial" 2G
mv "$image.partial" "$image"
