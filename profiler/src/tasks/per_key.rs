//! Per-key counters: increases of each process and dimension (a protocol, a device, a mount, a kind
//! of latency) since the last reading.

use aya::Pod;
use hashbrown::{HashMap, HashSet, hash_map};
use profiler_ebpf::{
    histogram::Histogram,
    maps::Named as _,
    per_key::{BlockCounters, BlockCounts, CounterKey, Entry, PerKeyMap, SyscallCounters},
};

use super::{
    ProcessId, boundary_rows,
    counters::{Latency, LatencySum, add_latency},
    dirtiers::Dirtiers,
    disks::Disks,
    processes::Processes,
};
use crate::bpf::{BpfError, KernelMap, Programs};

/// The increase of one process or thread and dimension in a reading.
#[derive(Clone, Debug)]
pub struct CounterRow<I> {
    /// The process; `None` if it is unknown.
    pub id: Option<ProcessId>,
    /// Inode of the directory of the cgroup, if only the cgroup is known.
    pub cgroup: Option<u64>,
    /// The thread, in rows of threads.
    pub tid: Option<u32>,
    /// [`CounterKey::dimension`].
    pub dimension: u64,
    /// Time since the last reading or the start of the process, until now or its end.
    pub interval_ns: u64,
    pub increase: I,
}

/// Counters of a map, and how their increase is computed.
pub trait KeyedValue: Pod {
    /// State from which the next increase is computed.
    type History: Default;
    /// The increase in an interval.
    type Increase: Clone;
    /// Updates `history` and returns the increase, if there is one.
    fn advance(&self, history: &mut Self::History, epoch: u32) -> Option<Self::Increase>;
    /// Adds an increase to another one.
    fn add(sum: &mut Self::Increase, more: &Self::Increase);
}

impl KeyedValue for Histogram {
    type History = LatencySum;
    type Increase = Latency;
    fn advance(&self, history: &mut LatencySum, epoch: u32) -> Option<Latency> {
        history.advance_to(self, epoch)
    }
    fn add(sum: &mut Latency, more: &Latency) {
        sum.add(more);
    }
}

/// The increase of block I/O.
#[derive(Clone, Debug, Default)]
pub struct BlockIncrease {
    /// Numbers of requests and bytes.
    pub counts: BlockCounts,
    /// Time from the creation of requests to their issue.
    pub queue: Option<Latency>,
    /// Time from the issue of requests to their completion.
    pub service: Option<Latency>,
}

impl KeyedValue for BlockCounters {
    type History = (BlockCounts, LatencySum, LatencySum);
    type Increase = BlockIncrease;
    fn advance(&self, history: &mut Self::History, epoch: u32) -> Option<BlockIncrease> {
        let counts = history.0.advance(&self.counts);
        let queue = self.queue.advance(&mut history.1, epoch);
        let service = self.service.advance(&mut history.2, epoch);
        let any = counts != BlockCounts::default() || queue.is_some() || service.is_some();
        any.then_some(BlockIncrease {
            counts,
            queue,
            service,
        })
    }
    fn add(sum: &mut BlockIncrease, more: &BlockIncrease) {
        sum.counts.add(&more.counts);
        add_latency(&mut sum.queue, more.queue.as_ref());
        add_latency(&mut sum.service, more.service.as_ref());
    }
}

/// The increase of one system call.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Calls that returned an error.
    pub errors: u64,
    /// Number and time of all calls.
    pub latency: Latency,
}

impl KeyedValue for SyscallCounters {
    type History = (u64, LatencySum);
    type Increase = Calls;
    fn advance(&self, history: &mut Self::History, epoch: u32) -> Option<Calls> {
        // An error is counted after the time of its call, so without calls there are no errors.
        let latency = self.latency.advance(&mut history.1, epoch)?;
        let errors = self.errors.saturating_sub(history.0);
        history.0 = history.0.max(self.errors);
        Some(Calls { errors, latency })
    }
    fn add(sum: &mut Calls, more: &Calls) {
        sum.errors += more.errors;
        sum.latency.add(&more.latency);
    }
}

type Increase<M> = <<M as PerKeyMap>::Counters as KeyedValue>::Increase;
type History<M> = <<M as PerKeyMap>::Counters as KeyedValue>::History;

/// The rows of one map.
pub struct CounterTable<M: PerKeyMap>
where
    M::Counters: KeyedValue,
{
    /// Rows of this tick.
    pub rows: Vec<CounterRow<Increase<M>>>,
    deferred: HashMap<RowKey, CounterRow<Increase<M>>>,
    map: KernelMap<CounterKey, Entry<M::Counters>>,
    histories: HashMap<CounterKey, History<M>>,
    /// Keys of `histories` by process.
    known: HashMap<ProcessId, Vec<CounterKey>>,
    /// Keys that are listed for this reading.
    changed: Vec<CounterKey>,
    /// Keys that were listed for the last one. A program that listed one of them can have changed its
    /// counters after that reading.
    earlier: Vec<CounterKey>,
}

/// Process, cgroup, dimension and thread of a row.
type RowKey = (Option<ProcessId>, Option<u64>, u64, Option<u32>);

fn row_key<I>(row: &CounterRow<I>) -> RowKey {
    (row.id, row.cgroup, row.dimension, row.tid)
}

/// The action of a reading on an entry.
enum Action {
    Read(Interval),
    /// Reads it for the last time and removes it: its process or thread has ended.
    Remove(Interval),
    /// Leaves it to the next reading, which reports its process.
    Leave,
}

/// The interval of an increase.
#[derive(Clone, Copy)]
struct Interval {
    ns: u64,
    /// Whether the counters started at 0 during the run, so that the first reading is no baseline.
    is_complete: bool,
}

/// The state of the tasks at a reading.
pub struct Reading<'a> {
    /// All processes of the target.
    pub processes: &'a Processes,
    /// Threads that have ended since the last reading.
    pub ended_threads: &'a HashSet<(ProcessId, u32)>,
    /// Start of the reading, ns of `CLOCK_BOOTTIME`.
    pub boottime: u64,
    /// Time since the last reading.
    pub interval_ns: u64,
    /// Number of the reading in the programs.
    pub epoch: u32,
    /// Whether all counters are read, changed or not.
    pub is_complete: bool,
    /// Processes that have ended since the last reading.
    pub ended: &'a [ProcessId],
    /// Whether the reading sets baselines.
    pub first: bool,
    /// Whether it is the last reading of the run.
    pub last: bool,
}

impl Reading<'_> {
    fn action(&self, key: &CounterKey) -> Action {
        let interval = |is_complete| Interval {
            ns: self.interval_ns,
            is_complete,
        };
        let Some(id) = owner(key) else {
            return Action::Read(interval(false));
        };
        let Some(process) = self.processes.get(id) else {
            return if id.start_boottime > self.boottime && !self.last {
                Action::Leave
            } else {
                // An operation has ended after its process.
                Action::Remove(interval(true))
            };
        };
        let interval = Interval {
            ns: self.processes.interval_ns(id).unwrap_or(self.interval_ns),
            is_complete: process.started_in_run,
        };
        if process.end.is_some() || self.ended_threads.contains(&(id, key.tid)) {
            Action::Remove(interval)
        } else {
            Action::Read(interval)
        }
    }

    /// Processes with threads that have ended since the last reading.
    fn with_ended_threads(&self) -> HashSet<ProcessId> {
        self.ended_threads.iter().map(|(id, _)| *id).collect()
    }

    /// The row of an increase, unless this reading is its baseline.
    fn row<I>(&self, key: &CounterKey, interval: Interval, increase: I) -> Option<CounterRow<I>> {
        (!self.first || interval.is_complete).then(|| CounterRow {
            id: owner(key),
            cgroup: (key.pid == 0 && key.start_boottime != 0).then_some(key.start_boottime),
            tid: (key.tid != 0).then_some(key.tid),
            dimension: key.dimension,
            interval_ns: interval.ns,
            increase,
        })
    }
}

impl<M: PerKeyMap> CounterTable<M>
where
    M::Counters: KeyedValue,
{
    /// The table, if an attached instrumentation fills its map.
    fn open(programs: &mut Programs) -> Result<Option<Self>, BpfError> {
        if !programs.fills(M::NAME) {
            return Ok(None);
        }
        Ok(Some(Self {
            rows: Vec::new(),
            deferred: HashMap::new(),
            map: programs.map::<M>()?,
            histories: HashMap::new(),
            known: HashMap::new(),
            changed: Vec::new(),
            earlier: Vec::new(),
        }))
    }

    /// Reads the counters that have changed and computes their increases since the last reading.
    fn refresh(&mut self, reading: &Reading<'_>) -> Result<(), BpfError> {
        self.rows.clear();
        let keys = self.keys_to_read(reading);
        let mut ended = Vec::new();
        let (rows, histories, known) = (&mut self.rows, &mut self.histories, &mut self.known);
        let earlier = &mut self.earlier;
        let mut read = |key: CounterKey, entry: &Entry<M::Counters>| match reading.action(&key) {
            Action::Leave => earlier.push(key),
            Action::Remove(interval) => ended.push((key, interval)),
            Action::Read(interval) => {
                let history = histories.entry(key).or_insert_with(|| {
                    if let Some(id) = owner(&key) {
                        known.entry(id).or_default().push(key);
                    }
                    History::<M>::default()
                });
                let increase = entry.counters.advance(history, reading.epoch);
                rows.extend(increase.and_then(|increase| reading.row(&key, interval, increase)));
            }
        };
        match keys {
            Some(keys) => {
                for key in keys {
                    if let Some(entry) = self.map.get(&key) {
                        read(key, &entry);
                    }
                }
            }
            None => self.map.for_each(read)?,
        }
        for (key, interval) in ended {
            let mut history = self.histories.remove(&key).unwrap_or_default();
            let increase = self
                .map
                .remove(&key)
                .and_then(|entry| entry.counters.advance(&mut history, reading.epoch));
            let row = increase.and_then(|increase| reading.row(&key, interval, increase));
            self.rows.extend(row);
        }
        self.forget_ended(reading);
        self.add_processes();
        self.rows.sort_by_key(row_key);
        Ok(())
    }

    /// Keys of the counters that can have changed, and of those of ended processes and threads; `None` if
    /// the whole map is to be read.
    fn keys_to_read(&mut self, reading: &Reading<'_>) -> Option<Vec<CounterKey>> {
        let listed = std::mem::take(&mut self.changed);
        let mut keys = std::mem::replace(&mut self.earlier, listed.clone());
        keys.extend(listed);
        if reading.is_complete || keys.len() > KEYS_MAX {
            return None;
        }
        for id in reading.ended {
            keys.extend(self.known.get(id).into_iter().flatten());
        }
        for id in reading.with_ended_threads() {
            let known = self.known.get(&id).into_iter().flatten();
            keys.extend(known.filter(|key| reading.ended_threads.contains(&(id, key.tid))));
        }
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    /// Forgets keys without a history.
    fn forget_ended(&mut self, reading: &Reading<'_>) {
        let histories = &self.histories;
        let forget = |keys: &mut Vec<CounterKey>| {
            keys.retain(|key| histories.contains_key(key));
            !keys.is_empty()
        };
        if reading.is_complete {
            self.known.retain(|_, keys| forget(keys));
            return;
        }
        for id in reading.ended {
            self.known.remove(id);
        }
        for id in reading.with_ended_threads() {
            if let Some(keys) = self.known.get_mut(&id) {
                forget(keys);
            }
        }
    }

    /// As [`super::TaskTable::deliver`]. `interval_ns` is the interval of rows without a process.
    fn deliver(
        &mut self,
        processes: &Processes,
        interval_ns: u64,
        wanted: Option<&HashSet<ProcessId>>,
    ) {
        self.rows = boundary_rows::deliver(
            &mut self.deferred,
            std::mem::take(&mut self.rows),
            wanted,
            row_key,
            |(id, ..)| *id,
            |row, later| M::Counters::add(&mut row.increase, &later.increase),
        );
        for row in &mut self.rows {
            let of_process = row.id.and_then(|id| processes.interval_ns(id));
            row.interval_ns = of_process.unwrap_or(interval_ns);
        }
        self.rows.sort_by_key(row_key);
    }

    /// Keeps the rows of some processes.
    fn retain(&mut self, is_kept: impl Fn(ProcessId) -> bool) {
        self.rows.retain(|row| row.id.is_some_and(&is_kept));
    }

    /// With `--threads`, the map has counters of threads only. Adds the rows of their processes.
    fn add_processes(&mut self) {
        let mut sums: HashMap<(Option<ProcessId>, u64), CounterRow<Increase<M>>> = HashMap::new();
        for row in self.rows.iter().filter(|row| row.tid.is_some()) {
            match sums.entry((row.id, row.dimension)) {
                hash_map::Entry::Occupied(mut sum) => {
                    M::Counters::add(&mut sum.get_mut().increase, &row.increase);
                }
                hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(CounterRow {
                        tid: None,
                        ..row.clone()
                    });
                }
            }
        }
        self.rows.extend(sums.into_values());
    }
}

fn owner(key: &CounterKey) -> Option<ProcessId> {
    (key.pid != 0).then_some(ProcessId {
        pid: key.pid,
        start_boottime: key.start_boottime,
    })
}

/// Listed keys up to which single counters are read: one takes as long as hundreds of empty places of the
/// hash table.
const KEYS_MAX: usize = 2048;

/// Declares a table for each map of per-key counters in `profiler_ebpf`.
macro_rules! tables {
    (
        counters { $($field:ident: $map:path, $counters:path;)* }
        structs { $($own_field:ident: $own_map:path;)* }
    ) => {
        $(impl KeyedValue for $counters {
            type History = Self;
            type Increase = Self;
            fn advance(&self, history: &mut Self, _epoch: u32) -> Option<Self> {
                let increase = history.advance(self);
                (increase != Self::default()).then_some(increase)
            }
            fn add(sum: &mut Self, more: &Self) {
                sum.add(more);
            }
        })*

        /// The per-key counters that attached instrumentations fill.
        #[derive(Default)]
        pub struct PerKeyCounters {
            $(#[doc = concat!("The map `", stringify!($map), "`.")]
            pub $field: Option<CounterTable<$map>>,)*
            $(#[doc = concat!("The map `", stringify!($own_map), "`.")]
            pub $own_field: Option<CounterTable<$own_map>>,)*
            /// Names of the disks in block I/O.
            pub disks: Disks,
            dirtiers: Dirtiers,
        }

        impl PerKeyCounters {
            /// Opens the maps.
            ///
            /// # Errors
            ///
            /// When the object does not have one of them.
            pub fn open(programs: &mut Programs) -> Result<Self, BpfError> {
                Ok(Self {
                    $($field: CounterTable::open(programs)?,)*
                    $($own_field: CounterTable::open(programs)?,)*
                    disks: Disks::open(programs)?,
                    dirtiers: Dirtiers::open(programs)?,
                })
            }

            pub(super) fn deliver(
                &mut self,
                processes: &Processes,
                interval_ns: u64,
                wanted: Option<&HashSet<ProcessId>>,
            ) {
                $(if let Some(table) = &mut self.$field {
                    table.deliver(processes, interval_ns, wanted);
                })*
                $(if let Some(table) = &mut self.$own_field {
                    table.deliver(processes, interval_ns, wanted);
                })*
            }

            /// Keeps the rows of some processes.
            pub(super) fn retain(&mut self, is_kept: impl Fn(ProcessId) -> bool + Copy) {
                $(if let Some(table) = &mut self.$field {
                    table.retain(is_kept);
                })*
                $(if let Some(table) = &mut self.$own_field {
                    table.retain(is_kept);
                })*
            }

            /// Adds a key whose counters have changed.
            pub(super) fn changed(&mut self, map: &str, key: CounterKey) {
                $(if let Some(table) = &mut self.$field && map == <$map>::NAME {
                    table.changed.push(key);
                })*
                $(if let Some(table) = &mut self.$own_field && map == <$own_map>::NAME {
                    table.changed.push(key);
                })*
            }

            pub(super) fn refresh(&mut self, reading: &Reading<'_>) -> Result<(), BpfError> {
                $(if let Some(table) = &mut self.$field {
                    table.refresh(reading)?;
                })*
                $(if let Some(table) = &mut self.$own_field {
                    table.refresh(reading)?;
                })*
                self.disks.refresh()?;
                self.dirtiers.sweep()
            }
        }
    };
}

profiler_ebpf::for_each_per_key_map!(tables);
