#!/bin/sh
# Runs a single-node OAR in the Debian in directory $1 until it is killed. Prints "ready" when jobs can be
# submitted. Needs separate mount and pid namespaces:
# unshare --mount --pid --fork --kill-child sh serve.sh ROOT [PROLOGUE EPILOGUE]
set -e
root=$1
# Scripts inside the Debian. Without them, OAR runs none.
sed -i '/^PROLOGUE_EXEC_FILE=/d; /^EPILOGUE_EXEC_FILE=/d' "$root/etc/oar/oar.conf"
if [ $# -eq 3 ]; then
    printf 'PROLOGUE_EXEC_FILE="%s"\nEPILOGUE_EXEC_FILE="%s"\n' "$2" "$3" >>"$root/etc/oar/oar.conf"
fi
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs dev "$root/dev"
for node in null:1:3 zero:1:5 random:1:8 urandom:1:9 tty:5:0; do
    IFS=: read -r name major minor <<EOF
$node
EOF
    mknod -m 666 "$root/dev/$name" c "$major" "$minor"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=666
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs shm "$root/dev/shm"
mount -t tmpfs run "$root/run"
exec chroot "$root" env LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c '
set -e
mkdir -p /run/postgresql /run/sshd /run/oar
chown postgres /run/postgresql
chown oar /run/oar
sed -i "s/^#*listen_addresses.*/listen_addresses = '"'127.0.0.1'"'/" /etc/postgresql/15/main/postgresql.conf
pg_ctlcluster 15 main start
until pg_isready -q; do sleep 0.1; done
sed -i "s/^DB_BASE_PASSWD=.*/DB_BASE_PASSWD=\"oar\"/; s/^DB_BASE_PASSWD_RO=.*/DB_BASE_PASSWD_RO=\"oar_ro\"/; \
    s/^SERVER_HOSTNAME=.*/SERVER_HOSTNAME=\"127.0.0.1\"/; \
    s/^#*DETACH_JOB_FROM_SERVER=.*/DETACH_JOB_FROM_SERVER=\"0\"/" /etc/oar/oar.conf
# Recreate the database: it still lists the jobs that were running at the last kill.
su postgres -c "cd /tmp && dropdb --if-exists oar && dropuser --if-exists oar && dropuser --if-exists oar_ro" >/dev/null 2>&1
(cd /tmp && oar-database --create --db-is-local) >/tmp/database.log 2>&1
grep -q "^ListenAddress 127.0.0.1" /etc/oar/sshd_config || {
    sed -i "/^#*ListenAddress/d" /etc/oar/sshd_config
    echo "ListenAddress 127.0.0.1" >>/etc/oar/sshd_config
}
/usr/sbin/sshd -f /etc/oar/sshd_config
/etc/init.d/oar-server start >/tmp/server.log 2>&1 || true
until oarnodes -s >/dev/null 2>&1; do sleep 0.2; done
oarnodes -s 2>/dev/null | grep -q 127.0.0.1 || oarnodesetting -a -h 127.0.0.1 -p cpuset=0 >/dev/null 2>&1
until oarnodes -s 2>/dev/null | grep -q Alive; do sleep 0.2; done
echo ready
# Init of the pid namespace must reap orphans, because OAR waits until they are gone.
while :; do sleep 1; done
'
