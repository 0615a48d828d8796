//! The loaded programs and their maps.

use std::{fs::File, os::fd::AsFd as _, panic::resume_unwind, thread};

use aya::{Btf, Ebpf, EbpfLoader, Endianness, Pod, programs::ProgramFd};
use profiler_ebpf::{
    maps::{self, Key, Map, Value},
    offsets::MISSING,
    per_key::{BOUNDED, ChangedKey, CounterKey},
};

use super::{
    error::BpfError,
    instrumentation::{
        AttachResult, Attached, Requested, attach, attach_method, load_all, unload_unused,
    },
    kernel_map::KernelMap,
    load::{NAMES, Plan, Settings, load_object},
    object::ring_buffer,
    pod::split,
    ring_buffer::RingBuffer,
    stats::{Stats, stats},
    task_reader::{TaskReader, open_iterator},
};
use crate::host::Host;

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
    changed: RingBuffer,
    /// The followed tasks.
    pub tasks: TaskReader,
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
    /// Loads and attaches the programs. `follow` is called when all forks are seen, while the programs of
    /// sources are loaded.
    ///
    /// # Errors
    ///
    /// When the kernel has no BTF, denies bpf(2), or rejects a program that follows tasks, and those of
    /// `follow`.
    pub fn load(
        host: &Host,
        settings: &Settings,
        follow: impl FnOnce(&mut TaskReader) -> Result<(), BpfError>,
    ) -> Result<Self, BpfError> {
        let plan = || Plan::new(host, settings);
        let (plan, loader) = thread::scope(|scope| {
            let planned = thread::Builder::new().spawn_scoped(scope, plan);
            // aya reads the kernel's types here, to relocate the object, which has no relocations.
            let mut loader = EbpfLoader::new();
            loader.btf(None);
            let plan = match planned {
                Ok(planned) => planned.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // Without a further thread, here.
                Err(_) => plan(),
            };
            (plan, loader)
        });
        let plan = plan?;
        let mut ebpf = load_object(loader, host, settings, &plan)?;
        let btf = &Btf::parse(&plan.types, Endianness::default()).map_err(BpfError::ParseBtf)?;
        let iterators = &plan.iterators;
        let required = [&**iterators, &*plan.tracepoints].concat();
        let (mut rejected, ()) = load_all(&mut ebpf, btf, &required, &plan.of_states, || ());
        let mut all = required.iter();
        if let Some(error) = all.find_map(|hook| rejected.remove(hook.program)) {
            return Err(error);
        }
        let mut tasks = TaskReader::new(&mut ebpf, iterators, plan.config.lists_active != 0)?;
        tasks.start(&settings.scope)?;
        let mut attached: Vec<Attached> = iterators.iter().map(Attached::from).collect();
        for hook in &plan.tracepoints {
            attach(&mut ebpf, btf, hook, &mut rejected, &mut attached)?;
        }
        let mut attach_methods = |requested: &[Requested], ebpf: &mut Ebpf, mut rejected| {
            let requested = requested.iter();
            let results =
                requested.map(|one| attach_method(ebpf, btf, *one, &mut rejected, &mut attached));
            results.collect::<Vec<AttachResult>>()
        };
        let mut instrumentations = attach_methods(&plan.of_states, &mut ebpf, rejected);
        let (rejected, followed) = load_all(
            &mut ebpf,
            btf,
            plan.names.as_slice(),
            &plan.of_sources,
            || follow(&mut tasks),
        );
        followed?;
        let names = plan
            .names
            .filter(|hook| !rejected.contains_key(hook.program));
        instrumentations.extend(attach_methods(&plan.of_sources, &mut ebpf, rejected));
        attached.extend(names.iter().map(Attached::from));
        unload_unused(&mut ebpf, &attached);
        let descriptor = |attached: &Attached| {
            let program = ebpf.program(attached.program)?;
            Some((attached.program, program.fd().ok()?.try_clone().ok()?))
        };
        let descriptors = attached.iter().filter_map(descriptor).collect();
        Ok(Self {
            changed: ring_buffer::<maps::Changed>(&mut ebpf)?,
            tasks,
            ebpf,
            attached,
            descriptors,
            instrumentations,
            support: KernelSupport {
                run_delay: plan.offsets.task_run_delay != MISSING,
                io: plan.offsets.task_ioac != MISSING && plan.offsets.ioac_read_bytes != MISSING,
                sched: settings.sched,
                wakeups: plan.config.wakeups != 0,
            },
            uring_ends_by_data: plan.config.uring_complete_passes_data != 0,
        })
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

    /// Passes the keys of counters that have changed since the last call to `visit`, with the name of the
    /// map. Another CPU can list a key a second time, and change its counters later.
    pub fn changed_keys(&mut self, mut visit: impl FnMut(&'static str, CounterKey)) {
        self.changed.drain(|mut record| {
            let changed = split::<ChangedKey>(&mut record);
            let map = |changed: &ChangedKey| BOUNDED.get(usize::try_from(changed.map).ok()?);
            if let Some((changed, map)) = changed.and_then(|changed| Some((changed, map(changed)?)))
            {
                visit(map, changed.key);
            }
        });
    }

    /// Whether operations of io_uring are followed that the kernel cannot always distinguish.
    pub fn confuses_operations(&self) -> bool {
        let mut attached = self.attached.iter();
        self.uring_ends_by_data && attached.any(|program| program.program == "uring_submit")
    }

    /// Statistics of the kernel about each attached program.
    pub fn program_stats(&self) -> Vec<(&'static str, Stats)> {
        let programs = self.descriptors.iter();
        let of = |(name, fd): &(&'static str, ProgramFd)| Some((*name, stats(fd.as_fd())?));
        programs.filter_map(of).collect()
    }

    /// Opens the iterator that [`read_names`](super::read_names) reads; `None` if the kernel has none.
    pub fn open_names(&self) -> Option<File> {
        let mut programs = self.descriptors.iter();
        let (_, names) = programs.find(|(name, _)| *name == NAMES)?;
        open_iterator(NAMES, names, None).ok()
    }
}
