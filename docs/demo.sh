# Four checksums that compete for the CPUs.
for i in 1 2 3 4; do head -c 1000M /dev/zero | sha256sum & done
# One process that takes more and more memory: tail buffers a last line that never ends.
for i in 1 2 3 4 5 6; do sleep 0.4; head -c 40M /dev/zero; done | tail >/dev/null &
# Many short-lived processes, about a millisecond each.
i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i + 1)); done
# Some failures.
grep -q nothing /etc/hostname
ls /nonexistent
sh -c 'kill -SEGV $$'
wait
