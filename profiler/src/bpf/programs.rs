//! The loaded programs: their target, readings, events and maps.

use std::{
    fs::File,
    mem,
    os::fd::{AsFd as _, OwnedFd},
    panic::resume_unwind,
    thread,
};

use aya::{
    Ebpf, Pod,
    maps::{Array, HashMap, MapData, MapError, RingBuf},
    programs::{Iter, ProgramFd},
};
use profiler_ebpf::{
    config::{Control, arming, pass},
    event::ProcessEntry,
    maps::{self, Key, Map, ProgramCounters, Value},
    offsets::{MISSING, Offsets},
    per_key::{BOUNDED, ChangedKey, CounterKey},
    record,
};
use rustix::time::{ClockId, clock_gettime};

use super::{
    btf::Btf,
    error::BpfError,
    instrumentation::{
        AttachResult, Attached, Hook, Rejected, Requested, attach, attach_method, load, load_all,
        unload_unused,
    },
    iterator::{Output, open},
    kernel_map::KernelMap,
    load::{
        NAMES, Scope, Settings, config, load_object, names_iterator, observe_wakeups, tracepoints,
    },
    object::{array, hash_map, program, ring_buffer},
    pod::split,
    records::{Event, Record, event, records},
    stats::{Stats, stats},
};
use crate::{host::Host, support::clock::monotonic_ns};

/// Limit of the passes of `mark`. One is enough, unless tasks are created all the time.
const MARK_PASSES: usize = 64;

/// Pids of processes, with their start (ns of `CLOCK_BOOTTIME`); 0 matches any start.
pub type Roots = Vec<(u32, u64)>;

/// Which counters of tasks are available; the others are null.
#[derive(Clone, Copy, Debug)]
pub struct KernelSupport {
    /// Time in the run queue (`CONFIG_SCHED_INFO`).
    pub run_delay: bool,
    /// I/O accounting (`CONFIG_TASK_IO_ACCOUNTING`).
    pub io: bool,
    /// Time asleep, wakeups, migrations and the histogram of waits, which need BPF.
    pub sched: bool,
    /// Whether waits are those after observed wakeups, not those that the scheduler accounts.
    pub wakeups: bool,
}

/// The loaded programs.
pub struct Programs {
    ebpf: Ebpf,
    control: Array<MapData, Control>,
    last_reading: Array<MapData, record::Reading>,
    counters: Array<MapData, ProgramCounters>,
    roots: HashMap<MapData, u32, u64>,
    cgroups: HashMap<MapData, u64, u32>,
    processes: HashMap<MapData, u32, ProcessEntry>,
    events: RingBuf<MapData>,
    changed: RingBuf<MapData>,
    active: RingBuf<MapData>,
    state: Control,
    /// The records of the last reading.
    output: Output,
    /// Whether processes that run are listed.
    lists_active: bool,
    /// Active processes that could not be listed.
    unlisted_active: u64,
    /// Tasks that the last pass over all has visited; 0 if the next reading has to visit all.
    tasks: u64,
    /// Attached programs and their hooks.
    pub attached: Vec<Attached>,
    /// Descriptors of the attached programs: finding a program by its name takes longer than reading its
    /// statistics.
    descriptors: Vec<(&'static str, ProgramFd)>,
    /// Attach results of the requested instrumentations.
    pub instrumentations: Vec<AttachResult>,
    /// Available counters of tasks.
    pub support: KernelSupport,
    /// Whether ends of io_uring's operations have only the ring and `user_data`.
    uring_ends_by_data: bool,
}

impl Programs {
    /// Loads and attaches the programs. No task is followed until [`Programs::mark`].
    ///
    /// # Errors
    ///
    /// When the kernel has no BTF, denies bpf(2), or rejects a program of the target.
    pub fn load(host: &Host, settings: &Settings) -> Result<Self, BpfError> {
        let mut instrumentations = settings.instrumentations.clone();
        let path = host.sysfs.join("kernel/btf/vmlinux");
        // aya parses the same file, once to load the object and once to load the programs.
        let parse = || aya::Btf::parse_file(&path, aya::Endianness::default());
        let (offsets, config, hooks, mut ebpf, btf) = thread::scope(|scope| {
            let btf = thread::Builder::new().spawn_scoped(scope, parse);
            let (offsets, config, hooks) = {
                let kernel = Btf::read(&path)?;
                let offsets = Offsets::resolve(|name, member| kernel.offset_of(name, member));
                let wakeups = observe_wakeups(host, &offsets, &mut instrumentations);
                let config = config(host, settings, &kernel, &offsets, wakeups);
                let tracepoints = tracepoints(settings, &kernel, &offsets);
                (offsets, config, (tracepoints, names_iterator(&kernel)))
            };
            let missing = offsets.missing();
            if !missing.is_empty() {
                return Err(BpfError::MissingMembers(missing));
            }
            let ebpf = load_object(host, settings, &offsets, &config)?;
            // Without a further thread, here.
            let btf = match btf {
                Ok(btf) => btf.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => parse(),
            };
            Ok((offsets, config, hooks, ebpf, btf))
        })?;
        let (tracepoints, names) = hooks;
        let btf = btf.map_err(BpfError::ParseBtf)?;
        let mut attached = Vec::new();
        let lists_active = config.lists_active != 0;
        let mut iterators = vec![Hook::tasks("mark"), Hook::tasks("sample")];
        iterators.extend(lists_active.then(|| Hook::tasks("survey")));
        let required: Vec<Hook> = iterators.iter().chain(&tracepoints).copied().collect();
        let all: Vec<Hook> = required.iter().chain(&names).copied().collect();
        let rejected = load_all(&mut ebpf, &btf, &all, &instrumentations);
        for hook in &required {
            let program = ebpf.program_mut(hook.program);
            let program = program.ok_or(BpfError::NoProgram(hook.program))?;
            load(program, hook, hook.function, &btf)?;
        }
        let names = names.filter(|_| !rejected.contains_key(NAMES));
        attached.extend(iterators.iter().chain(&names).map(|hook| Attached {
            program: hook.program,
            hook: hook.name(),
        }));
        let mut programs = Self {
            control: array::<maps::Control>(&mut ebpf)?,
            last_reading: array::<maps::Reading>(&mut ebpf)?,
            counters: array::<maps::Counters>(&mut ebpf)?,
            roots: hash_map::<maps::Roots>(&mut ebpf)?,
            cgroups: hash_map::<maps::Cgroups>(&mut ebpf)?,
            processes: hash_map::<maps::Processes>(&mut ebpf)?,
            events: ring_buffer::<maps::Events>(&mut ebpf)?,
            changed: ring_buffer::<maps::Changed>(&mut ebpf)?,
            active: ring_buffer::<maps::Active>(&mut ebpf)?,
            ebpf,
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
            attached,
            descriptors: Vec::new(),
            instrumentations: Vec::new(),
            support: KernelSupport {
                run_delay: offsets.task_run_delay != MISSING,
                io: offsets.task_ioac != MISSING && offsets.ioac_read_bytes != MISSING,
                sched: settings.sched,
                wakeups: config.wakeups != 0,
            },
            uring_ends_by_data: config.uring_complete_passes_data != 0,
        };
        programs.write_state()?;
        match &settings.scope {
            Scope::Cgroup { id, .. } => programs.set_cgroups(&[*id])?,
            Scope::Job { ids, .. } => programs.set_cgroups(ids)?,
            Scope::Pids | Scope::Node => {}
        }
        programs.mark()?;
        programs.state.arming = arming::REPORT;
        programs.write_state()?;
        programs.attach(&tracepoints, &instrumentations, rejected, &btf)?;
        let descriptor = |attached: &Attached| {
            let program = programs.ebpf.program(attached.program)?;
            Some((attached.program, program.fd().ok()?.try_clone().ok()?))
        };
        programs.descriptors = programs.attached.iter().filter_map(descriptor).collect();
        Ok(programs)
    }

    /// Attaches the tracepoints that follow the target, and the requested instrumentations.
    fn attach(
        &mut self,
        tracepoints: &[Hook],
        instrumentations: &[Requested],
        mut rejected: Rejected,
        btf: &aya::Btf,
    ) -> Result<(), BpfError> {
        for hook in tracepoints {
            attach(&mut self.ebpf, btf, hook, &mut rejected, &mut self.attached)?;
        }
        for requested in instrumentations {
            let result = attach_method(
                &mut self.ebpf,
                btf,
                *requested,
                &mut rejected,
                &mut self.attached,
            );
            self.instrumentations.push(result);
        }
        unload_unused(&mut self.ebpf, &self.attached);
        Ok(())
    }

    /// The hash map with this declaration. A map can be taken once.
    ///
    /// # Errors
    ///
    /// When the object has no such map.
    pub fn map<M: Map>(&mut self) -> Result<KernelMap<Key<M>, Value<M>>, BpfError>
    where
        Key<M>: Pod,
        Value<M>: Pod,
    {
        let map = self.ebpf.take_map(M::NAME);
        KernelMap::new::<M>(map.ok_or(BpfError::NoMap(M::NAME))?)
    }

    /// Whether attached programs of an instrumentation fill the map with this name.
    pub fn fills(&self, map: &str) -> bool {
        let mut results = self.instrumentations.iter();
        results.any(|result| result.maps.contains(&map))
    }

    /// Adds processes to the target. [`Programs::mark`] then follows them and their descendants.
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

    /// Makes the cgroups with these inodes the target. [`Programs::mark`] then follows their
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
            self.iterate("mark", None)?;
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
        self.iterate("sample", None)?;
        let reading = self.last_reading()?;
        if self.lists_active {
            self.tasks = reading.visited;
        }
        Ok(reading.idle)
    }

    /// Visits these processes, and those that have run since the last reading; `are_all` if the others
    /// cannot be in the target. `None` if there are too many.
    fn visit(&mut self, mut pids: Vec<u32>, are_all: bool) -> Result<Option<LeftOut>, BpfError> {
        self.iterate("survey", Some(std::process::id()))?;
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
            self.iterate("sample", Some(pid))?;
        }
        let idle = self.last_reading()?.idle;
        for pid in active {
            self.iterate("sample", Some(pid))?;
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
        while let Some(item) = self.active.next() {
            active.extend(split::<u32>(&mut &item[..]));
        }
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
        let visited = self
            .write_state()
            .and_then(|()| self.iterate("sample", None));
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
        while let Some(item) = self.events.next() {
            match event(&item) {
                Some(Event::CgroupMove) => has_moved = true,
                event => events.extend(event),
            }
        }
        if has_moved {
            self.mark()?;
        }
        Ok(())
    }

    /// Passes the keys of counters that have changed since the last call to `visit`, with the name of the
    /// map. Another CPU can list a key a second time, and change its counters later.
    pub fn changed_keys(&mut self, mut visit: impl FnMut(&'static str, CounterKey)) {
        while let Some(item) = self.changed.next() {
            let changed = split::<ChangedKey>(&mut &item[..]);
            let map = |changed: &ChangedKey| BOUNDED.get(usize::try_from(changed.map).ok()?);
            if let Some((changed, map)) = changed.and_then(|changed| Some((changed, map(changed)?)))
            {
                visit(map, changed.key);
            }
        }
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

    /// Whether operations of io_uring are followed that the kernel cannot always distinguish.
    pub fn confuses_operations(&self) -> bool {
        let mut attached = self.attached.iter();
        self.uring_ends_by_data && attached.any(|program| program.program == "uring_submit")
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

    /// Statistics of the kernel about each attached program.
    pub fn program_stats(&self) -> Vec<(&'static str, Stats)> {
        let programs = self.descriptors.iter();
        let of = |(name, fd): &(&'static str, ProgramFd)| Some((*name, stats(fd.as_fd())?));
        programs.filter_map(of).collect()
    }

    fn write_state(&mut self) -> Result<(), BpfError> {
        let written = self.control.set(0, self.state, 0);
        written.map_err(write_error::<maps::Control>)
    }

    /// Opens the iterator that [`read_names`](super::read_names) reads; `None` if the kernel has none.
    pub fn open_names(&mut self) -> Option<File> {
        let mut attached = self.attached.iter();
        attached.find(|attached| attached.program == NAMES)?;
        self.open(NAMES, None).ok()
    }

    /// Runs an iterator for all tasks, or for those of the process `pid`.
    fn iterate(&mut self, iterator: &'static str, pid: Option<u32>) -> Result<(), BpfError> {
        let opened = self.open(iterator, pid)?;
        let read = self.output.append(opened);
        read.map_err(|source| BpfError::ReadIterator { iterator, source })
    }

    fn open(&mut self, iterator: &'static str, pid: Option<u32>) -> Result<File, BpfError> {
        let program: &mut Iter = program(&mut self.ebpf, iterator)?;
        let program = program.fd();
        let program = program.map_err(|error| BpfError::attach(iterator, error))?;
        open(program.as_fd(), pid).map_err(|source| BpfError::OpenIterator { iterator, source })
    }
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
