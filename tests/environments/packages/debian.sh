#!/bin/sh
# Checks of the Debian package in a fresh Debian: installation, first run, upgrade, the question about
# file capabilities, removal. Runs in a chroot, as root.
#
#   debian.sh PACKAGE NEWER     two packages, which differ in their version
set -eu

package=$1
newer=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

step() { echo "packages: $*"; }
fail() {
    echo "packages: FAILED: $*" >&2
    exit 1
}
# Everything but the records of package managers and the directories of this test.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /packages -o -path /tmp \
        -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log/apt \
        -o -path /var/log/dpkg.log -o -path '/etc/*-' \) -prune -o -print | sort
    for database in passwd group shadow gshadow; do cat "/etc/$database"; done
}
status() { dpkg-query --show --showformat='${Status}' profiler 2>/dev/null || true; }

step 'there is no compiler, and nothing of the profiler'
command -v cc >/dev/null && fail 'a compiler is installed'
command -v profiler >/dev/null && fail 'a profiler is installed'
files >/tmp/before

step 'installation, without network'
apt-get install -q -y "$package" >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
dpkg --verify profiler
[ -z "$(getcap /usr/bin/profiler)" ] || fail 'file capabilities without being asked for'
[ "$(stat -c '%U:%G %a' /usr/bin/profiler)" = 'root:root 755' ] || fail 'mode of the program'
[ "$(stat -c '%U:%G %a' /var/lib/profiler)" = 'profiler:profiler 750' ] || fail 'mode of the data'
find /etc/systemd/system -name 'profiler*' | grep . && fail 'a unit is enabled'
ldd /usr/bin/profiler | grep 'not found' && fail 'a library is missing'
for script in slurm/prolog.sh slurm/epilog.sh oar/prologue.sh oar/epilogue.sh pbs/hook.py; do
    grep -q '[-"]/usr/bin/profiler[}"]' "/usr/share/profiler/$script" || fail "the program in $script"
done

step 'a run'
profiler run --quiet --out /tmp/profiles -i 100ms -- sh -c 'sleep 0.3; exit 7' && fail 'exit code 0'
[ $? -eq 7 ] || fail 'the exit code is not that of the command'
profiler verify /tmp/profiles/*
profiler export csv --table process /tmp/profiles/* -o /tmp/processes.csv
grep -q ',sleep,' /tmp/processes.csv || fail 'the descendant of the command is not in the data'

step 'an upgrade keeps configuration and data'
echo 'interval = "500ms"' >>/etc/profiler.toml
echo row >/var/lib/profiler/row
apt-get install -q -y "$newer" >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
grep -q 500ms /etc/profiler.toml || fail 'the configuration was replaced'
[ -e /var/lib/profiler/row ] || fail 'data were removed'

step 'file capabilities, when asked for'
echo 'profiler profiler/file_capabilities boolean true' | debconf-set-selections
dpkg-reconfigure profiler
getcap /usr/bin/profiler | grep -q cap_bpf || fail 'no file capabilities'
[ "$(stat -c '%U:%G %a' /usr/bin/profiler)" = 'root:profiler 750' ] || fail 'others can execute it'
useradd --no-create-home --groups profiler member
useradd --no-create-home outsider
install -d -m 0777 /tmp/open
runuser --user member -- profiler run --quiet --out /tmp/open --node -i 100ms -d 300ms --strict \
    --source sched || fail 'a member cannot profile the node'
runuser --user outsider -- profiler --version 2>/dev/null && fail 'an outsider can execute it'
apt-get install -q -y --reinstall "$newer" >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
getcap /usr/bin/profiler | grep -q cap_bpf || fail 'an upgrade loses the capabilities'
echo 'profiler profiler/file_capabilities boolean false' | debconf-set-selections
dpkg-reconfigure profiler
[ -z "$(getcap /usr/bin/profiler)" ] || fail 'the capabilities stay'
[ "$(stat -c '%U:%G %a' /usr/bin/profiler)" = 'root:root 755' ] || fail 'mode of the program'
userdel member
userdel outsider

step 'removal keeps configuration, a purge keeps data'
apt-get remove -q -y profiler >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
grep -q 500ms /etc/profiler.toml || fail 'the configuration was removed'
apt-get purge -q -y profiler >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
grep -q 'has recorded data and is kept' /tmp/log || fail 'nobody says that data are kept'
[ -e /var/lib/profiler/row ] || fail 'data were removed'
[ ! -e /etc/profiler.toml ] || fail 'the configuration is still there'

step 'without data, a purge leaves nothing'
apt-get install -q -y "$package" >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
rm /var/lib/profiler/row
apt-get purge -q -y profiler >/tmp/log 2>&1 || fail "$(cat /tmp/log)"
[ -z "$(status)" ] || fail "$(status)"
files >/tmp/after
diff /tmp/before /tmp/after || fail 'files are left'
step 'done'
