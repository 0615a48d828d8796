//! What is accounted per process and something else (a device, a protocol, a mount, a kind of latency): hash maps
//! whose entries are added to in place, by any CPU, and read by the controller at each tick.

use aya_ebpf::{btf_maps::HashMap, macros::btf_map};

use super::{
    kernel::config,
    maps::{TASKS, add, compare_exchange, control, current, dropped},
};
use crate::{
    per_key::CounterKey,
    wire::{BUCKETS, EpochMax, Histogram, Map, Owner},
};

/// A map of flows. Entries take memory only while used (`BPF_F_NO_PREALLOC`); the controller gives those that are
/// wanted room for more than one.
pub type PerKeyCounters<V> = HashMap<CounterKey, V, 1, 1>;

/// Latency by process and [`crate::flows::kind`].
#[btf_map]
static LATENCY: PerKeyCounters<Histogram> = HashMap::new();

/// Zeros to begin any flow with.
static ZEROS: [u64; 128] = [0; 128];

/// How often a peak that other CPUs raise too is tried to be raised.
const ATTEMPTS: u32 = 8;

/// Who runs, if it belongs to the target.
#[inline(always)]
pub fn current_owner() -> Option<Owner> {
    TASKS.get(current()).map(|entry| entry.owner)
}

/// The key of `owner`'s flow `what`; of the thread with `--threads`, of the process otherwise.
#[inline(always)]
pub fn key(owner: Owner, dimension: u64) -> CounterKey {
    CounterKey {
        start_boottime: owner.start_boottime,
        pid: owner.pid,
        tid: if config!(threads) != 0 { owner.tid } else { 0 },
        dimension,
    }
}

/// The flow with this key, which begins with zeros; `None` and counted when there is no room.
#[inline(always)]
pub fn lookup_or_init<V>(
    map: &'static PerKeyCounters<V>,
    name: Map,
    key: &CounterKey,
) -> Option<&'static mut V> {
    const { assert!(size_of::<V>() <= size_of_val(&ZEROS)) };
    if let Some(entry) = map.get_ptr_mut(key) {
        // SAFETY: freed by the kernel only after the program has ended; fields are only added to atomically.
        return unsafe { entry.as_mut() };
    }
    // SAFETY: zeros are a valid flow, and there are enough of them.
    let zeros = unsafe { &*(&raw const ZEROS).cast::<V>() };
    // BPF_NOEXIST: another CPU may be first, which is as good.
    let _ = map.insert(key, zeros, 1);
    let entry = map.get_ptr_mut(key);
    if entry.is_none() {
        dropped(name);
    }
    // SAFETY: as above.
    entry.and_then(|entry| unsafe { entry.as_mut() })
}

/// Adds one duration to a latency of `owner`.
#[inline(always)]
pub fn latency(owner: Owner, kind: u64, ns: u64) {
    if let Some(histogram) = lookup_or_init(&LATENCY, Map::Latency, &key(owner, kind)) {
        count(histogram, ns);
    }
}

/// Adds one duration to a histogram that other CPUs add to.
#[inline(always)]
pub fn count(histogram: &mut Histogram, ns: u64) {
    // The sum grows with every value, also where the clock is coarse.
    let ns = if ns == 0 { 1 } else { ns };
    if let Some(control) = control() {
        raise(histogram, control.epoch, ns);
    }
    add(&mut histogram.sum, ns);
    add(&mut histogram.buckets[bucket(ns)], 1);
}

/// Raises the peak of a histogram that other CPUs raise too.
#[inline(always)]
pub fn raise(histogram: &mut Histogram, epoch: u32, ns: u64) {
    let mut attempt = 0;
    while attempt < ATTEMPTS {
        let old = histogram.peak;
        let fresh = !EpochMax(old).is_of(epoch);
        if !fresh && EpochMax(old).ns() >= ns {
            return;
        }
        if compare_exchange(&mut histogram.peak, old, EpochMax::new(epoch, ns).0) == old {
            if fresh {
                histogram.previous_peak = old;
            }
            return;
        }
        attempt += 1;
    }
}

/// The bucket that counts `ns`.
#[inline(always)]
pub fn bucket(ns: u64) -> usize {
    let bucket = log2(ns) as usize;
    if bucket < BUCKETS {
        bucket
    } else {
        BUCKETS - 1
    }
}

/// Index of the highest bit that is set; BPF has no instruction for it.
#[inline(always)]
fn log2(value: u64) -> u32 {
    let mut rest = value;
    let mut log = 0;
    macro_rules! halve {
        ($($bits:literal)*) => {$(
            if rest >> $bits != 0 {
                rest >>= $bits;
                log += $bits;
            }
        )*};
    }
    halve!(32 16 8 4 2 1);
    let _ = rest;
    log
}
