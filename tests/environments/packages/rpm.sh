#!/bin/sh
# Checks of the RPM package in the directory of a system without RPM packages, for which dependencies
# are not asked: installation, upgrade, removal. The scripts of the package run in that system.
#
#   rpm.sh ROOT PACKAGE
set -eu

root=$1
package=$2

step() { echo "packages: rpm: $*"; }
fail() {
    echo "packages: FAILED: rpm: $*" >&2
    exit 1
}
rpm() { command rpm --force-debian --root "$root" --dbpath /var/lib/rpm-test "$@"; }

step 'dependencies'
needs=$(command rpm --query --requires --package "$package")
echo "$needs" | grep -q 'libc.so.6' || fail 'needs no C library'
echo "$needs" | grep -v '^/bin/sh$\|^lib[cm].so\|^ld-linux\|^libdl.so\|^libpthread.so\|^libgcc_s.so\|^librt.so\|^libutil.so\|^rpmlib\|^rtld\|^shadow-utils$\|^config(' &&
    fail 'needs more than the C library'

step 'installation'
rpm --install --nodeps "$package"
rpm --verify --nodeps profiler || fail 'installed files differ'
chroot "$root" profiler --version >/dev/null
[ "$(stat -c %a "$root/var/lib/profiler")" = 750 ] || fail 'mode of the data'
find "$root/etc/systemd/system" -name 'profiler*' | grep . && fail 'a unit is enabled'

step 'an upgrade keeps configuration and data'
echo '# changed' >>"$root/etc/profiler.toml"
echo row >"$root/var/lib/profiler/row"
rpm --upgrade --replacepkgs --nodeps "$package"
grep -q '# changed' "$root/etc/profiler.toml" || fail 'the configuration was replaced'
[ -e "$root/var/lib/profiler/row" ] || fail 'data were removed'

step 'removal keeps data'
rpm --erase profiler | grep -q 'has recorded data and is kept' || fail 'nobody says that data are kept'
[ -e "$root/var/lib/profiler/row" ] || fail 'data were removed'
left=$(find "$root/usr" "$root/etc" -name '*profiler*' ! -name '*.rpmsave')
[ -z "$left" ] || fail "left: $left"
step 'done'
