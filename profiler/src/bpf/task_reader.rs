//! The followed tasks: which ones they are, what happens to them, and readings of them.

use std::{
    fs::File,
    mem,
    os::fd::{AsFd as _, OwnedFd},
    process,
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, MapError},
    programs::{Iter, ProgramFd},
};
use profiler_ebpf::{
    config::{Control, arming, pass},
    event::ProcessEntry,
    maps::{self, Map, ProgramCounters},
    record,
};
use rustix::time::{ClockId, clock_gettime};

use super::{
    error::BpfError,
    instrumentation::Hook,
    iterator::{Output, open},
    load::{MARK, SAMPLE, SURVEY, Scope},
    object::{array, hash_map, program, ring_buffer},
    pod::split,
    records::{Event, Record, event, records},
    ring_buffer::RingBuffer,
};
use crate::support::clock::monotonic_ns;

/// Limit of the passes of `mark`. One is enough, unless tasks are created all the time.
const MARK_PASSES: usize = 64;

/// Pids of processes, with their start (ns of `CLOCK_BOOTTIME`); 0 matches any start.
pub type Roots = Vec<(u32, u64)>;

/// Reads the followed tasks.
pub struct TaskReader {
    control: Array<MapData, Control>,
    last_reading: Array<MapData, record::Reading>,
    counters: Array<MapData, ProgramCounters>,
    roots: HashMap<MapData, u32, u64>,
    cgroups: HashMap<MapData, u64, u32>,
    processes: HashMap<MapData, u32, ProcessEntry>,
    events: RingBuffer,
    active: RingBuffer,
    state: Control,
    iterators: Vec<(&'static str, ProgramFd)>,
    /// The records of the last reading.
    output: Output,
    /// Whether processes that run are listed.
    lists_active: bool,
    /// Active processes that could not be listed.
    unlisted_active: u64,
    /// Tasks that the last pass over all has visited; 0 if the next reading has to visit all.
    tasks: u64,
}

impl TaskReader {
    /// Takes the maps out of the object. `iterators` are loaded.
    ///
    /// # Errors
    ///
    /// When the object lacks one of them.
    pub fn new(ebpf: &mut Ebpf, iterators: &[Hook], lists_active: bool) -> Result<Self, BpfError> {
        let iterators = iterators.iter().map(|hook| {
            let program: &mut Iter = program(ebpf, hook.program)?;
            let fd = program
                .fd()
                .map_err(|error| BpfError::load(hook.program, error))?;
            let fd = fd
                .try_clone()
                .map_err(|error| BpfError::load(hook.program, error.into()))?;
            Ok((hook.program, fd))
        });
        Ok(Self {
            iterators: iterators.collect::<Result<_, BpfError>>()?,
            control: array::<maps::Control>(ebpf)?,
            last_reading: array::<maps::Reading>(ebpf)?,
            counters: array::<maps::Counters>(ebpf)?,
            roots: hash_map::<maps::Roots>(ebpf)?,
            cgroups: hash_map::<maps::Cgroups>(ebpf)?,
            processes: hash_map::<maps::Processes>(ebpf)?,
            events: ring_buffer::<maps::Events>(ebpf)?,
            active: ring_buffer::<maps::Active>(ebpf)?,
            state: Control {
                epoch: 1,
                arming: arming::LEARN,
                now: monotonic_ns(),
                pass: pass::VISITED,
            },
            output: Output::new(),
            lists_active,
            unlisted_active: 0,
            tasks: 0,
        })
    }

    /// Sets the target, and finds what programs need to know of the kernel and the profiler. Forks outside
    /// the target are reported from then on.
    ///
    /// # Errors
    ///
    /// When there are more than [`CGROUPS_MAX`](maps::CGROUPS_MAX), or the iterator cannot be read.
    pub fn start(&mut self, scope: &Scope) -> Result<(), BpfError> {
        match scope {
            Scope::Cgroup { id, .. } => self.set_cgroups(&[*id])?,
            Scope::Job { ids, .. } => self.set_cgroups(ids)?,
            Scope::Pids | Scope::Node => {}
        }
        self.write_state()?;
        self.iterate(MARK, Some(process::id()))?;
        self.state.arming = arming::REPORT;
        self.write_state()
    }

    /// Adds processes to the target. [`TaskReader::mark`] then follows them and their descendants.
    ///
    /// # Errors
    ///
    /// When there are more than [`ROOTS_MAX`](maps::ROOTS_MAX).
    pub fn add_roots(&mut self, roots: &Roots) -> Result<(), BpfError> {
        for (pid, start) in roots {
            let inserted = self.roots.insert(pid, start, 0);
            inserted.map_err(write_error::<maps::Roots>)?;
        }
        Ok(())
    }

    /// Follows existing processes and their descendants. The pids are not kept, so that a later
    /// process with one of them is not followed.
    ///
    /// # Errors
    ///
    /// When there are more than [`ROOTS_MAX`](maps::ROOTS_MAX), or the iterator cannot be read.
    pub fn adopt(&mut self, roots: &Roots) -> Result<(), BpfError> {
        self.add_roots(roots)?;
        let marked = self.mark();
        self.forget_roots()?;
        marked
    }

    /// Forgets the pids of processes that were added. The followed tasks are not affected.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn forget_roots(&mut self) -> Result<(), BpfError> {
        let roots: Vec<u32> = self.roots.keys().filter_map(Result::ok).collect();
        for pid in roots {
            let removed = self.roots.remove(&pid);
            removed.map_err(write_error::<maps::Roots>)?;
        }
        Ok(())
    }

    /// Makes the cgroups with these inodes the target. [`TaskReader::mark`] then follows their
    /// members.
    ///
    /// # Errors
    ///
    /// When there are more than [`CGROUPS_MAX`](maps::CGROUPS_MAX).
    pub fn set_cgroups(&mut self, ids: &[u64]) -> Result<(), BpfError> {
        let present: Vec<u64> = self.cgroups.keys().filter_map(Result::ok).collect();
        for id in present.iter().filter(|id| !ids.contains(id)) {
            let removed = self.cgroups.remove(id);
            removed.map_err(write_error::<maps::Cgroups>)?;
        }
        for id in ids {
            let inserted = self.cgroups.insert(id, 0, 0);
            inserted.map_err(write_error::<maps::Cgroups>)?;
        }
        Ok(())
    }

    /// Follows all existing tasks of the target.
    ///
    /// # Errors
    ///
    /// When the iterator cannot be read.
    pub fn mark(&mut self) -> Result<(), BpfError> {
        self.tasks = 0;
        update_cpu_clock();
        let mut marked = self.counters()?.marked;
        for _ in 0..MARK_PASSES {
            self.iterate(MARK, None)?;
            let now = self.counters()?.marked;
            if now == marked {
                break;
            }
            marked = now;
        }
        Ok(())
    }

    /// Ends the reports of forks outside the target.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn end_arming(&mut self) -> Result<(), BpfError> {
        self.state.arming = arming::DONE;
        self.write_state()
    }

    /// Number of processes up to which it takes less time to visit each of them than all tasks; 0 if
    /// the next reading has to visit all tasks.
    pub fn visits_max(&self) -> usize {
        // A process takes as long as three tasks.
        usize::try_from(self.tasks / 4).unwrap_or(usize::MAX)
    }

    /// Reads followed tasks once. `now` is the time of the tick, ns of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    ///
    /// When the iterator cannot be read.
    pub fn sample(&mut self, now: u64, visits: Visits) -> Result<Reading, BpfError> {
        self.state.now = now;
        self.state.epoch = self.state.epoch.wrapping_add(1);
        self.output.clear();
        self.write_state()?;
        update_cpu_clock();
        let left_out = match visits {
            Visits::All => None,
            Visits::Known(pids) => self.visit(pids, true)?,
            Visits::Awake(pids) => self.visit(pids, false)?,
        };
        let (idle, has_visited_all) = match left_out {
            Some(LeftOut { idle, of_all }) => (idle, of_all),
            None => (self.visit_all()?, true),
        };
        Ok(Reading {
            monotonic_ns: self.state.now,
            epoch: self.state.epoch,
            clock: self.last_reading()?.now,
            idle,
            has_visited_all,
        })
    }

    /// Visits all tasks. Returns the number of processes that are left out.
    fn visit_all(&mut self) -> Result<u64, BpfError> {
        // What is listed from now on is for the next reading.
        self.take_active()?;
        self.iterate(SAMPLE, None)?;
        let reading = self.last_reading()?;
        if self.lists_active {
            self.tasks = reading.visited;
        }
        Ok(reading.idle)
    }

    /// Visits these processes, and those that have run since the last reading; `are_all` if the others
    /// cannot be in the target. `None` if there are too many.
    fn visit(&mut self, mut pids: Vec<u32>, are_all: bool) -> Result<Option<LeftOut>, BpfError> {
        self.iterate(SURVEY, Some(process::id()))?;
        let Some(mut active) = self.take_active()? else {
            return Ok(None);
        };
        pids.sort_unstable();
        active.sort_unstable();
        active.dedup();
        active.retain(|pid| pids.binary_search(pid).is_err());
        if pids.len() + active.len() > self.visits_max() {
            return Ok(None);
        }
        for pid in pids {
            self.iterate(SAMPLE, Some(pid))?;
        }
        let idle = self.last_reading()?.idle;
        for pid in active {
            self.iterate(SAMPLE, Some(pid))?;
        }
        let reading = self.last_reading()?;
        if are_all {
            return Ok(Some(LeftOut {
                idle: reading.idle,
                of_all: true,
            }));
        }
        if reading.waiting <= reading.queued {
            return Ok(Some(LeftOut {
                idle,
                of_all: false,
            }));
        }
        self.pass(pass::NOT_VISITED)?;
        Ok(Some(LeftOut {
            idle: self.last_reading()?.idle,
            of_all: true,
        }))
    }

    /// The processes that were listed since the last call; `None` if some could not be.
    fn take_active(&mut self) -> Result<Option<Vec<u32>>, BpfError> {
        let mut active = Vec::new();
        self.active
            .drain(|mut pid| active.extend(split::<u32>(&mut pid)));
        let unlisted = self.counters()?.unlisted_active;
        let are_all = mem::replace(&mut self.unlisted_active, unlisted) == unlisted;
        Ok(are_all.then_some(active))
    }

    /// The present reading so far.
    fn last_reading(&self) -> Result<record::Reading, BpfError> {
        let reading = self.last_reading.get(&0, 0);
        reading.map_err(read_error::<maps::Reading>)
    }

    /// Reads the processes that the last reading has left out.
    ///
    /// # Errors
    ///
    /// When the iterator cannot be read.
    pub fn sample_idle(&mut self) -> Result<(), BpfError> {
        self.output.clear();
        self.pass(pass::LEFT_OUT)
    }

    /// Visits all tasks with one of the passes that report some of them.
    fn pass(&mut self, pass: u64) -> Result<(), BpfError> {
        self.state.pass = pass;
        let visited = self.write_state().and_then(|()| self.iterate(SAMPLE, None));
        self.state.pass = pass::VISITED;
        visited.and(self.write_state())
    }

    /// Number of the last reading.
    pub fn epoch(&self) -> u32 {
        self.state.epoch
    }

    /// The records of the last reading.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        records(self.output.bytes())
    }

    /// Appends the events since the last call to `events`, and follows tasks that were moved between
    /// cgroups.
    ///
    /// # Errors
    ///
    /// When the tasks cannot be read.
    pub fn drain(&mut self, events: &mut Vec<Event>) -> Result<(), BpfError> {
        let mut has_moved = false;
        self.events.drain(|record| match event(record) {
            Some(Event::CgroupMove) => has_moved = true,
            event => events.extend(event),
        });
        if has_moved {
            self.mark()?;
        }
        Ok(())
    }

    /// A descriptor that becomes readable when the target has ended, or the ring buffer is half
    /// full.
    pub fn events_fd(&self) -> std::io::Result<OwnedFd> {
        self.events.as_fd().try_clone_to_owned()
    }

    /// Counts of the programs about themselves.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<ProgramCounters, BpfError> {
        let counters = self.counters.get(&0, 0);
        counters.map_err(read_error::<maps::Counters>)
    }

    /// Pids of the followed processes whose end has not been reported.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn live_processes(&self) -> Result<Vec<u32>, BpfError> {
        let entries = self.processes.iter();
        let pids = entries.map(|entry| entry.map(|(_, process)| process.pid));
        let pids: Result<_, MapError> = pids.collect();
        pids.map_err(read_error::<maps::Processes>)
    }

    fn write_state(&mut self) -> Result<(), BpfError> {
        let written = self.control.set(0, self.state, 0);
        written.map_err(write_error::<maps::Control>)
    }

    /// Runs an iterator for all tasks, or for those of the process `pid`.
    fn iterate(&mut self, iterator: &'static str, pid: Option<u32>) -> Result<(), BpfError> {
        let mut iterators = self.iterators.iter();
        let program = iterators.find(|(name, _)| *name == iterator);
        let (_, program) = program.ok_or(BpfError::NoProgram(iterator))?;
        let opened = open_iterator(iterator, program, pid)?;
        let read = self.output.append(opened);
        read.map_err(|source| BpfError::ReadIterator { iterator, source })
    }
}

/// Opens an iterator over all tasks, or over those of the process `pid`.
///
/// # Errors
///
/// When the kernel refuses it.
pub fn open_iterator(
    iterator: &'static str,
    program: &ProgramFd,
    pid: Option<u32>,
) -> Result<File, BpfError> {
    open(program.as_fd(), pid).map_err(|source| BpfError::OpenIterator { iterator, source })
}

/// Has the scheduler update the clock of this CPU's run queue, as every reading of the CPU time of
/// the running thread does. `sample` takes its time from there.
fn update_cpu_clock() {
    let _ = clock_gettime(ClockId::ThreadCPUTime);
}

fn read_error<M: Map>(source: MapError) -> BpfError {
    BpfError::ReadMap {
        map: M::NAME,
        source,
    }
}

fn write_error<M: Map>(source: MapError) -> BpfError {
    BpfError::WriteMap {
        map: M::NAME,
        source,
    }
}

/// One reading of all followed tasks.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Its start, ns of `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
    /// Its number.
    pub epoch: u32,
    /// Its time on the clock of the records.
    pub clock: u64,
    /// Processes without a record, because nothing but the time asleep has changed since the record
    /// of an earlier reading.
    pub idle: u64,
    /// Whether `idle` has all of these. Otherwise it has only those that earlier readings have not left
    /// out.
    pub has_visited_all: bool,
}

/// The processes that a reading visits.
#[derive(Debug)]
pub enum Visits {
    /// All.
    All,
    /// All that are known, these, and those that have run since the last reading.
    Known(Vec<u32>),
    /// Those that the last reading has not left out, these, and those that have run since.
    Awake(Vec<u32>),
}

/// Visited processes that a reading has left out.
struct LeftOut {
    idle: u64,
    /// Whether no others are left out.
    of_all: bool,
}
