//! Per-key counters: entries of hash maps that any CPU adds to in place, and that the profiler
//! reads at each sample.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;

use super::{
    atomic::{add, compare_exchange},
    kernel::config,
    maps::{control, count_drop, counters, current},
};
use crate::{
    histogram::{EpochMax, Histogram, bucket},
    maps::{self, Bounded, CHANGED, TASKS},
    per_key::{ChangedKey, CounterKey, Entry, Latency, Owner, PerKeyMap},
};

/// Initial value of any counters.
static ZEROS: [u64; 320] = [0; 320];

/// Attempts to raise a peak that other CPUs raise as well.
const ATTEMPTS: u32 = 8;

/// The owner of the operations of the running task, if it is followed.
#[inline(always)]
pub fn current_owner() -> Option<Owner> {
    TASKS.get(current()).map(|entry| entry.owner)
}

/// The key of `owner` (with `--threads`, of the thread) and `dimension`.
#[inline(always)]
pub fn key(owner: Owner, dimension: u64) -> CounterKey {
    CounterKey {
        start_boottime: owner.start_boottime,
        pid: owner.pid,
        tid: if config!(threads) != 0 { owner.tid } else { 0 },
        dimension,
    }
}

/// The counters with this key, which start at 0. `None` if the map has no space, which is counted.
#[inline(always)]
pub fn lookup_or_init<M>(key: &CounterKey) -> Option<&'static mut M::Counters>
where
    M: PerKeyMap + Bounded,
{
    let entry = find_or_insert::<M>(key);
    if entry.is_none() {
        count_drop::<M>();
    }
    entry
}

/// The counters with this key, which start at 0. `None` if the map has no space.
#[inline(always)]
pub fn find_or_insert<M>(key: &CounterKey) -> Option<&'static mut M::Counters>
where
    M: PerKeyMap + Bounded,
{
    const { assert!(size_of::<Entry<M::Counters>>() <= size_of_val(&ZEROS)) };
    let map = M::map();
    let mut entry = map.get_ptr_mut(key);
    if entry.is_none() {
        // SAFETY: counters can have any bytes, and the zeros are long enough.
        let zeros = unsafe { &*(&raw const ZEROS).cast::<Entry<M::Counters>>() };
        // BPF_NOEXIST: another CPU can insert the entry at the same time.
        let _ = map.insert(key, zeros, 1);
        entry = map.get_ptr_mut(key);
    }
    // SAFETY: freed by the kernel only after the program has ended; only added to atomically.
    Some(listed::<M>(key, unsafe { entry?.as_mut() }?))
}

/// The counters with this key, if there are any.
#[inline(always)]
pub fn lookup<M: PerKeyMap + Bounded>(key: &CounterKey) -> Option<&'static mut M::Counters> {
    // SAFETY: as above.
    let entry = unsafe { M::map().get_ptr_mut(key)?.as_mut() };
    Some(listed::<M>(key, entry?))
}

/// The counters of an entry that is about to change, and whose key is listed for the next reading.
#[inline(always)]
fn listed<M: PerKeyMap + Bounded>(
    key: &CounterKey,
    entry: &'static mut Entry<M::Counters>,
) -> &'static mut M::Counters {
    if let Some(control) = control()
        && entry.listed != u64::from(control.epoch)
    {
        // Two CPUs can list it at the same time.
        entry.listed = control.epoch.into();
        if let Some(mut place) = CHANGED.reserve(0) {
            place.write(ChangedKey {
                map: (M::INDEX - maps::BOUNDED.len()) as u64,
                key: *key,
            });
            place.submit(u64::from(BPF_RB_NO_WAKEUP));
        } else if let Some(counters) = counters() {
            add(&mut counters.unlisted, 1);
        }
    }
    &mut entry.counters
}

/// Adds a duration to a latency of `owner`.
#[inline(always)]
pub fn record_latency(owner: Owner, kind: u64, ns: u64) {
    if let Some(histogram) = lookup_or_init::<Latency>(&key(owner, kind)) {
        record(histogram, ns);
    }
}

/// Adds a duration to a histogram that other CPUs add to.
#[inline(always)]
pub fn record(histogram: &mut Histogram, ns: u64) {
    // A coarse clock can give 0, but the sum has to grow with every duration.
    let ns = if ns == 0 { 1 } else { ns };
    if let Some(control) = control() {
        raise_peak(histogram, control.epoch, ns);
    }
    add(&mut histogram.sum, ns);
    add(&mut histogram.buckets[bucket(ns)], 1);
}

/// Raises the peak of a histogram that other CPUs add to.
#[inline(always)]
pub fn raise_peak(histogram: &mut Histogram, epoch: u32, ns: u64) {
    let mut attempt = 0;
    while attempt < ATTEMPTS {
        let old = histogram.peak;
        let is_first = !EpochMax(old).is_of(epoch);
        if !is_first && EpochMax(old).ns() >= ns {
            return;
        }
        if compare_exchange(&mut histogram.peak, old, EpochMax::new(epoch, ns).0) == old {
            if is_first {
                histogram.previous_peak = old;
            }
            return;
        }
        attempt += 1;
    }
}
