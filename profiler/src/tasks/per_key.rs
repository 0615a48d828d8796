//! What each process did with something else (a device, a protocol, a mount, a kind of latency) since the last
//! reading, from the programs' maps of flows.

use hashbrown::{HashMap, HashSet};
use profiler_ebpf::{
    per_key::{BlockCounters, BlockCounts, CounterKey, FileCounters, NetCounters, SyscallCounters},
    wire::Histogram,
};

use super::{
    Process, ProcessId,
    counters::{Latency, LatencySum, add_latency},
    deferred,
    dirtiers::Dirtiers,
    disks::Disks,
};
use crate::bpf::{LoadError, Plain, Programs, Table};

/// One process or thread, or what is of none, at one tick.
#[derive(Clone, Debug)]
pub struct CounterRow<I> {
    /// Whose; `None` when that is not known.
    pub id: Option<ProcessId>,
    /// If nothing but its cgroup is known: inode of the cgroup's directory.
    pub cgroup: Option<u64>,
    /// Which thread, for rows of threads.
    pub tid: Option<u32>,
    /// What else: [`CounterKey::dimension`].
    pub dimension: u64,
    /// Time since the reading before, or since birth; until the end, if it has ended.
    pub interval_ns: u64,
    /// What was added.
    pub increase: I,
}

/// A value of a map of flows.
pub trait KeyedValue: Plain {
    /// What was published of it.
    type History: Default;
    /// What is added over an interval.
    type Increase: Clone;
    /// Raises `history` to what is read now and returns the increase, if there is one.
    fn advance(&self, history: &mut Self::History, epoch: u32) -> Option<Self::Increase>;
    /// Adds a thread's increase to its process's.
    fn add(sum: &mut Self::Increase, more: &Self::Increase);
}

macro_rules! counters_flow {
    ($($entry:ty),*) => {$(
        impl KeyedValue for $entry {
            type History = Self;
            type Increase = Self;
            fn advance(&self, history: &mut Self, _pass: u32) -> Option<Self> {
                history.advance(self)
            }
            fn add(sum: &mut Self, more: &Self) {
                sum.add(more);
            }
        }
    )*};
}
counters_flow!(FileCounters, NetCounters);

impl KeyedValue for Histogram {
    type History = LatencySum;
    type Increase = Latency;
    fn advance(&self, history: &mut LatencySum, epoch: u32) -> Option<Latency> {
        let mut now = LatencySum::default();
        now.add_ended(self, epoch);
        history.advance(&now)
    }
    fn add(sum: &mut Latency, more: &Latency) {
        sum.add(more);
    }
}

/// Block I/O over an interval.
#[derive(Clone, Debug, Default)]
pub struct BlockIncrease {
    /// How much.
    pub counts: BlockCounts,
    /// How long requests took to be issued.
    pub queue: Option<Latency>,
    /// How long they took from then on.
    pub service: Option<Latency>,
}

impl KeyedValue for BlockCounters {
    type History = (BlockCounts, LatencySum, LatencySum);
    type Increase = BlockIncrease;
    fn advance(&self, history: &mut Self::History, epoch: u32) -> Option<BlockIncrease> {
        let counts = history.0.advance(&self.counts);
        let queue = self.queue.advance(&mut history.1, epoch);
        let service = self.service.advance(&mut history.2, epoch);
        let any = counts.is_some() || queue.is_some() || service.is_some();
        any.then(|| BlockIncrease {
            counts: counts.unwrap_or_default(),
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

/// System calls of one kind, over an interval.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Those that returned an error.
    pub errors: u64,
    /// How long all took.
    pub latency: Latency,
}

impl KeyedValue for SyscallCounters {
    type History = (u64, LatencySum);
    type Increase = Calls;
    fn advance(&self, history: &mut Self::History, epoch: u32) -> Option<Calls> {
        // An error is counted after the call's time: without one there is nothing new.
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

/// One map of flows.
pub struct CounterTable<V: KeyedValue> {
    /// Rows of this tick.
    pub rows: Vec<CounterRow<V::Increase>>,
    held: HashMap<RowKey, CounterRow<V::Increase>>,
    map: Table<CounterKey, V>,
    histories: HashMap<CounterKey, V::History>,
}

/// Which rows are added up: process, cgroup, what else, thread.
type RowKey = (Option<ProcessId>, Option<u64>, u64, Option<u32>);

/// What is known of a process that has flows.
enum ProcessLifecycle {
    /// It lives, or ended just now: length of its interval, whether it was born under our eyes, whether it ended.
    Known(u64, bool, bool),
    /// Its birth is reported with the next reading.
    Unborn,
    /// It ended before: an operation that was still under way has ended since.
    Gone,
}

/// What a reading of flows has to know of the tasks.
pub struct Reading<'a> {
    /// All processes of the target.
    pub processes: &'a HashMap<ProcessId, Process>,
    /// Threads that ended since the reading before.
    pub ended_threads: &'a HashSet<(ProcessId, u32)>,
    /// When it began, ns of `CLOCK_BOOTTIME`.
    pub boottime: u64,
    /// Time since the reading before.
    pub interval_ns: u64,
    /// Its number for the programs.
    pub epoch: u32,
    /// Whether it sets baselines.
    pub first: bool,
    /// Whether none follows.
    pub last: bool,
}

impl Reading<'_> {
    fn lifecycle(&self, id: ProcessId) -> ProcessLifecycle {
        match self.processes.get(&id) {
            Some(process) => ProcessLifecycle::Known(
                process.interval_ns,
                process.started_in_run,
                process.end.is_some(),
            ),
            None if id.start_boottime > self.boottime && !self.last => ProcessLifecycle::Unborn,
            None => ProcessLifecycle::Gone,
        }
    }
}

impl<V: KeyedValue> CounterTable<V> {
    fn open(programs: &mut Programs, name: &str) -> Result<Self, LoadError> {
        Ok(Self {
            rows: Vec::new(),
            held: HashMap::new(),
            map: programs.table(name)?,
            histories: HashMap::new(),
        })
    }

    /// Reads the whole map and works out what was added since the last time.
    fn refresh(&mut self, reading: &Reading<'_>) -> Result<(), LoadError> {
        self.rows.clear();
        let mut over = Vec::new();
        let (rows, histories) = (&mut self.rows, &mut self.histories);
        self.map.for_each(|key, value| {
            let id = owner(&key);
            let (interval_ns, born_here) = match id.map(|id| reading.lifecycle(id)) {
                Some(ProcessLifecycle::Unborn) => return,
                Some(ProcessLifecycle::Known(interval, born_here, ended)) => {
                    let thread_ended =
                        id.is_some_and(|id| reading.ended_threads.contains(&(id, key.tid)));
                    if ended || thread_ended {
                        over.push((key, interval, born_here));
                        return;
                    }
                    (interval, born_here)
                }
                Some(ProcessLifecycle::Gone) => {
                    over.push((key, reading.interval_ns, true));
                    return;
                }
                None => (reading.interval_ns, false),
            };
            let history = histories.entry(key).or_default();
            let increase = value.advance(history, reading.epoch);
            if !reading.first || born_here {
                rows.extend(increase.map(|increase| row(&key, interval_ns, increase)));
            }
        })?;
        for (key, interval_ns, born_here) in over {
            let mut history = self.histories.remove(&key).unwrap_or_default();
            let increase = self
                .map
                .remove(&key)
                .and_then(|value| value.advance(&mut history, reading.epoch));
            if !reading.first || born_here {
                self.rows
                    .extend(increase.map(|increase| row(&key, interval_ns, increase)));
            }
        }
        self.add_processes();
        self.rows
            .sort_by_key(|row| (row.id, row.cgroup, row.dimension, row.tid));
        Ok(())
    }

    /// As [`super::TaskTable::deliver`]; rows of no process that is known have this interval.
    fn deliver(
        &mut self,
        processes: &HashMap<ProcessId, Process>,
        interval_ns: u64,
        wanted: Option<&HashSet<ProcessId>>,
    ) {
        self.rows = deferred::deliver(
            &mut self.held,
            std::mem::take(&mut self.rows),
            wanted,
            |row| (row.id, row.cgroup, row.dimension, row.tid),
            |(id, ..)| *id,
            |row, later| V::add(&mut row.increase, &later.increase),
        );
        for row in &mut self.rows {
            let process = row.id.and_then(|id| processes.get(&id));
            row.interval_ns = process.map_or(interval_ns, |process| process.interval_ns);
        }
        self.rows
            .sort_by_key(|row| (row.id, row.cgroup, row.dimension, row.tid));
    }

    /// With `--threads` all flows are of threads: adds the rows of their processes.
    fn add_processes(&mut self) {
        let mut sums: HashMap<(Option<ProcessId>, u64), CounterRow<V::Increase>> = HashMap::new();
        for row in self.rows.iter().filter(|row| row.tid.is_some()) {
            match sums.entry((row.id, row.dimension)) {
                hashbrown::hash_map::Entry::Occupied(mut sum) => {
                    V::add(&mut sum.get_mut().increase, &row.increase);
                }
                hashbrown::hash_map::Entry::Vacant(place) => {
                    place.insert(CounterRow {
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

fn row<I>(key: &CounterKey, interval_ns: u64, increase: I) -> CounterRow<I> {
    CounterRow {
        id: owner(key),
        cgroup: (key.pid == 0 && key.start_boottime != 0).then_some(key.start_boottime),
        tid: (key.tid != 0).then_some(key.tid),
        dimension: key.dimension,
        interval_ns,
        increase,
    }
}

macro_rules! per_key {
    ($($(#[$meta:meta])* $field:ident: $value:ty = $map:literal for $($source:literal)|+;)*) => {
        /// All maps of flows that are in use.
        #[derive(Default)]
        pub struct PerKeyCounters {
            $($(#[$meta])* pub $field: Option<CounterTable<$value>>,)*
            /// The disks of block I/O.
            pub disks: Disks,
            dirtiers: Dirtiers,
        }

        impl PerKeyCounters {
            /// The maps of the features that were attached.
            ///
            /// # Errors
            ///
            /// When the object lacks one.
            pub fn open(programs: &mut Programs) -> Result<Self, LoadError> {
                let attached: Vec<_> = programs
                    .instrumentations
                    .iter()
                    .filter(|instrumentation| instrumentation.hooked)
                    .map(|instrumentation| instrumentation.source)
                    .collect();
                let mut per_key = Self::default();
                $(if attached.iter().any(|source| [$($source),+].contains(source)) {
                    per_key.$field = Some(CounterTable::open(programs, $map)?);
                })*
                if attached.contains(&"block_io") {
                    per_key.disks = Disks::open(programs)?;
                    per_key.dirtiers = Dirtiers::open(programs)?;
                }
                Ok(per_key)
            }

            pub(super) fn deliver(
                &mut self,
                processes: &HashMap<ProcessId, Process>,
                interval_ns: u64,
                wanted: Option<&HashSet<ProcessId>>,
            ) {
                $(if let Some(table) = &mut self.$field {
                    table.deliver(processes, interval_ns, wanted);
                })*
            }

            pub(super) fn refresh(&mut self, reading: &Reading<'_>) -> Result<(), LoadError> {
                $(if let Some(table) = &mut self.$field {
                    table.refresh(reading)?;
                })*
                self.disks.refresh()?;
                self.dirtiers.sweep()
            }
        }
    };
}

per_key! {
    /// Network I/O by class.
    net_io: NetCounters = "NET_IO" for "net_io";
    /// Block I/O by device and operation.
    block_io: BlockCounters = "BLOCK_IO" for "block_io";
    /// File I/O by mount.
    file_io: FileCounters = "FILE_IO" for "file_io";
    /// System calls by number.
    syscalls: SyscallCounters = "SYSCALLS" for "syscalls";
    /// Latency by kind.
    latency: Histogram = "LATENCY" for "net_io" | "file_io";
}
