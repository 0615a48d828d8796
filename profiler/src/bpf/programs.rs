//! The loaded programs: their target, readings, events and maps.

use std::{
    fs::File,
    io::{ErrorKind, Read as _},
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
    config::{Control, arming},
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
    kernel_map::KernelMap,
    load::{Scope, Settings, config, load_object, observe_wakeups, tracepoints},
    object::{array, hash_map, program, ring_buffer},
    pod::{bytes, bytes_mut, split},
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
    state: Control,
    /// Output of the last reading, in its first `length` bytes.
    buffer: Vec<u64>,
    length: usize,
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
        let (offsets, config, tracepoints, mut ebpf, btf) = thread::scope(|scope| {
            let btf = thread::Builder::new().spawn_scoped(scope, parse);
            let (offsets, config, tracepoints) = {
                let kernel = Btf::read(&path)?;
                let offsets = Offsets::resolve(|name, member| kernel.offset_of(name, member));
                let wakeups = observe_wakeups(host, &offsets, &mut instrumentations);
                let config = config(host, settings, &kernel, wakeups);
                (offsets, config, tracepoints(settings, &kernel, &offsets))
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
            Ok((offsets, config, tracepoints, ebpf, btf))
        })?;
        let btf = btf.map_err(BpfError::ParseBtf)?;
        let mut attached = Vec::new();
        let iterators = [Hook::tasks("mark"), Hook::tasks("sample")];
        let required: Vec<Hook> = iterators.iter().chain(&tracepoints).copied().collect();
        let rejected = load_all(&mut ebpf, &btf, &required, &instrumentations);
        for hook in &required {
            let program = ebpf.program_mut(hook.program);
            let program = program.ok_or(BpfError::NoProgram(hook.program))?;
            load(program, hook, hook.function, &btf)?;
        }
        attached.extend(iterators.iter().map(|hook| Attached {
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
            ebpf,
            state: Control {
                epoch: 1,
                arming: arming::LEARN,
                now: monotonic_ns(),
                only_idle: 0,
            },
            buffer: vec![0; 16 << 10],
            length: 0,
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
        update_cpu_clock();
        let mut marked = self.counters()?.marked;
        for _ in 0..MARK_PASSES {
            let mut file = self.iterate("mark")?;
            std::io::copy(&mut file, &mut std::io::sink()).map_err(|source| {
                BpfError::ReadIterator {
                    iterator: "mark",
                    source,
                }
            })?;
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

    /// Reads all followed tasks once. `now` is the time of the tick, ns of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    ///
    /// When the iterator cannot be read.
    pub fn sample(&mut self, now: u64) -> Result<Reading, BpfError> {
        self.state.now = now;
        self.state.epoch = self.state.epoch.wrapping_add(1);
        self.read_tasks()?;
        let reading = self.last_reading.get(&0, 0);
        let reading = reading.map_err(read_error::<maps::Reading>)?;
        // The program sets it at the first followed task.
        let has_tasks = reading.epoch == u64::from(self.state.epoch);
        Ok(Reading {
            monotonic_ns: self.state.now,
            epoch: self.state.epoch,
            clock: reading.now,
            idle: if has_tasks { reading.idle } else { 0 },
        })
    }

    /// Reads the processes that the last reading has left out.
    ///
    /// # Errors
    ///
    /// When the iterator cannot be read.
    pub fn sample_idle(&mut self) -> Result<(), BpfError> {
        self.state.only_idle = 1;
        let read = self.read_tasks();
        self.state.only_idle = 0;
        read
    }

    fn read_tasks(&mut self) -> Result<(), BpfError> {
        self.write_state()?;
        let mut file = self.iterate("sample")?;
        update_cpu_clock();
        let mut length = 0;
        loop {
            if self.buffer.len() * 8 - length < 64 << 10 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
            match file.read(&mut bytes_mut(&mut self.buffer)[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(BpfError::ReadIterator {
                        iterator: "sample",
                        source,
                    });
                }
            }
        }
        self.length = length;
        Ok(())
    }

    /// Number of the last reading.
    pub fn epoch(&self) -> u32 {
        self.state.epoch
    }

    /// The records of the last reading.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        records(&bytes(&self.buffer)[..self.length])
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

    /// Opens an iterator, whose output is one pass over all tasks.
    fn iterate(&mut self, iterator: &'static str) -> Result<File, BpfError> {
        let program: &mut Iter = program(&mut self.ebpf, iterator)?;
        let link = program
            .attach()
            .and_then(|link| program.take_link(link))
            .map_err(|error| BpfError::attach(iterator, error))?;
        link.into_file()
            .map_err(|source| BpfError::OpenIterator { iterator, source })
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
}
