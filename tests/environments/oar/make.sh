#!/bin/sh
# Creates a Debian with OAR in directory $1. Takes minutes and needs a mirror.
set -e
root=$1
partial=$root.partial
rm -rf "$partial"
debootstrap --variant=minbase --include=ca-certificates bookworm "$partial"
# Start no services while packages are installed.
printf '#!/bin/sh\nexit 101\n' >"$partial/usr/sbin/policy-rc.d"
chmod 755 "$partial/usr/sbin/policy-rc.d"
chroot "$partial" apt-get update -q
chroot "$partial" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get install -q -y --no-install-recommends \
    postgresql oar-server oar-server-pgsql oar-user oar-user-pgsql oar-node procps
chroot "$partial" useradd --create-home --shell /bin/bash tester
mv "$partial" "$root"
