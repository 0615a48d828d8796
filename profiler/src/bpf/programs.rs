//! Loads, attaches and reads the programs of `profiler-ebpf`.

use std::{
    fs::File,
    io::{ErrorKind, Read as _},
    os::fd::AsFd as _,
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    maps::{Array, HashMap, MapData, RingBuf},
    programs::{BtfTracePoint, Iter, ProgramError},
};
use profiler_ebpf::{
    offsets::{MISSING, Offsets},
    wire::{ARMING_LEARN, ARMING_REPORT, Config, Control, Counters, Process, calls, scope},
};
use thiserror::Error;

use super::{
    btf::{Btf, BtfError},
    instrumentation::{AttachResult, Attached, Requested, take_way},
    map_reader::{Plain, Table},
    records::{Event, Record, event, records},
    stats::{Stats, stats},
};
use crate::{
    host::{Host, refusal},
    privileges::may_load_bpf,
    support::clock::monotonic_ns,
    tasks::KernelSupport,
};

/// The BPF object, built by `cargo xtask build`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/profiler.bpf.o"));

/// Environment variable: when set, errors end with all that the verifier said. Loading takes longer then.
const VERIFIER_LOG: &str = "PROFILER_VERIFIER_LOG";

/// Passes of `mark` before it is given up: one is enough unless tasks are born all the time.
const MARK_PASSES: usize = 64;

/// Why the programs cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// No type information of the kernel.
    #[error("no BTF: {0}")]
    Btf(#[from] BtfError),
    /// The kernel's structs are not what the programs need.
    #[error("this kernel's BTF lacks {0}")]
    Members(String),
    /// bpf(2) is refused.
    #[error("bpf() is denied: {0}")]
    Denied(String),
    /// Anything else on the way, with the verifier's words.
    #[error("BPF program `{program}`: {message}")]
    Program {
        /// Its name.
        program: String,
        /// What went wrong.
        message: String,
    },
    /// The object or a map is unusable.
    #[error("BPF: {0}")]
    Object(String),
    /// Reading a map or an iterator failed.
    #[error("reading BPF {what}: {source}")]
    Read {
        /// Map or iterator.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl LoadError {
    /// What would enable it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Btf(_) => "run a kernel built with CONFIG_DEBUG_INFO_BTF=y".to_owned(),
            Self::Members(_) => "run Linux 5.19 or later".to_owned(),
            Self::Denied(_) if may_load_bpf() => {
                refusal("/proc".as_ref(), "/sys".as_ref())
            }
            Self::Denied(_) => {
                "run as root, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep profiler".to_owned()
            }
            Self::Program { .. } | Self::Object(_) | Self::Read { .. } => {
                format!("report this, with what `{VERIFIER_LOG}=1 profiler check --json` prints")
            }
        }
    }
}

/// Which tasks are the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Processes named by pid, and their descendants.
    Pids,
    /// Members of a cgroup and of those below it.
    Cgroup {
        /// Inode of its directory.
        id: u64,
        /// Hierarchy it belongs to, 0 for v2.
        hierarchy: u32,
    },
    /// Members of cgroups, processes named by pid, and the descendants of both; both can grow.
    Job {
        /// Inodes of the directories.
        ids: Vec<u64>,
        /// Hierarchy they belong to, 0 for v2.
        hierarchy: u32,
    },
    /// Everything.
    Node,
}

/// What to load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which tasks are the target.
    pub scope: Scope,
    /// Whether time asleep and the run-queue histogram are kept.
    pub sched: bool,
    /// Whether threads that end are reported.
    pub threads: bool,
    /// Whether moves between cgroups are reported.
    pub moves: bool,
    /// What else is accounted.
    pub instrumentations: Vec<Requested>,
    /// Entries of each map of flows, instead of a number made from the size of the node.
    pub max_entries: Option<u32>,
    /// Entries of single maps instead of these; of `EVENTS`, bytes.
    pub map_entries: Vec<(String, u32)>,
}

/// Processes that are targets by pid, with their start on `CLOCK_BOOTTIME` in ns (0: whoever has the pid).
pub type Roots = Vec<(u32, u64)>;

/// The loaded programs.
pub struct Programs {
    ebpf: Ebpf,
    control: Array<MapData, Control>,
    counters: Array<MapData, Counters>,
    roots: HashMap<MapData, u32, u64>,
    cgroups: HashMap<MapData, u64, u32>,
    processes: HashMap<MapData, u32, Process>,
    events: RingBuf<MapData>,
    state: Control,
    buffer: Vec<u64>,
    length: usize,
    /// Programs that are attached, and to what.
    pub attached: Vec<Attached>,
    /// What became of the features that were wanted.
    pub instrumentations: Vec<AttachResult>,
    /// What this kernel keeps of a task.
    pub keeps: KernelSupport,
}

impl Programs {
    /// Loads and attaches. Nothing is followed until [`Programs::mark`].
    ///
    /// # Errors
    ///
    /// When the kernel has no BTF, refuses bpf(2) or rejects a program.
    pub fn load(host: &Host, settings: &Settings) -> Result<Self, LoadError> {
        let path = host.sysfs.join("kernel/btf/vmlinux");
        // Dropped before aya parses the same file: both at once would be the peak of our memory.
        let (offsets, config) = {
            let kernel = Btf::read(&path)?;
            let offsets = Offsets::resolve(|name, member| kernel.offset_of(name, member));
            (offsets, config(host, settings, &kernel))
        };
        let missing = offsets.missing();
        if !missing.is_empty() {
            return Err(LoadError::Members(missing.join(", ")));
        }
        let btf = aya::Btf::parse_file(&path, aya::Endianness::default())
            .map_err(|error| LoadError::Object(error.to_string()))?;
        let mut ebpf = load_object(host, settings, &btf, &offsets, &config)?;
        let mut attached = Vec::new();
        for iterator in ["mark", "sample"] {
            let program: &mut Iter = program(&mut ebpf, iterator)?;
            program
                .load("task", &btf)
                .map_err(|error| program_error(iterator, &error))?;
            attached.push(Attached {
                program: iterator,
                hook: "iter/task".to_owned(),
            });
        }
        let tracepoints = tracepoints(settings);
        for (name, hook) in &tracepoints {
            let program: &mut BtfTracePoint = program(&mut ebpf, name)?;
            program
                .load(hook, &btf)
                .map_err(|error| program_error(name, &error))?;
        }
        let mut programs = Self {
            control: typed(&mut ebpf, "CONTROL")?,
            counters: typed(&mut ebpf, "COUNTERS")?,
            roots: typed(&mut ebpf, "ROOTS")?,
            cgroups: typed(&mut ebpf, "CGROUPS")?,
            processes: typed(&mut ebpf, "PROCESSES")?,
            events: typed(&mut ebpf, "EVENTS")?,
            ebpf,
            state: Control {
                epoch: 1,
                arming: ARMING_LEARN,
                now: monotonic_ns(),
                ..Control::default()
            },
            buffer: vec![0; 16 << 10],
            length: 0,
            attached,
            instrumentations: Vec::new(),
            keeps: KernelSupport {
                run_delay: offsets.task_run_delay != MISSING,
                io: offsets.task_ioac != MISSING && offsets.ioac_read_bytes != MISSING,
                sched: settings.sched,
            },
        };
        programs.write_state()?;
        match &settings.scope {
            Scope::Cgroup { id, .. } => programs.set_cgroups(&[*id])?,
            Scope::Job { ids, .. } => programs.set_cgroups(ids)?,
            Scope::Pids | Scope::Node => {}
        }
        programs.mark()?;
        programs.state.arming = ARMING_REPORT;
        programs.write_state()?;
        programs.attach(settings, tracepoints, &btf)?;
        Ok(programs)
    }

    /// Attaches the tracepoints, and each instrumentation by the best method that this kernel allows.
    fn attach(
        &mut self,
        settings: &Settings,
        tracepoints: Vec<(&'static str, &'static str)>,
        btf: &aya::Btf,
    ) -> Result<(), LoadError> {
        for (name, hook) in tracepoints {
            let program: &mut BtfTracePoint = program(&mut self.ebpf, name)?;
            program
                .attach()
                .map_err(|error| program_error(name, &error))?;
            self.attached.push(Attached {
                program: name,
                hook: format!("tp_btf/{hook}"),
            });
        }
        for wanted in &settings.instrumentations {
            let result = take_way(&mut self.ebpf, btf, *wanted, &mut self.attached);
            self.instrumentations.push(result);
        }
        Ok(())
    }

    /// A map of flows, or another hash map that is read as a whole.
    ///
    /// # Errors
    ///
    /// When the object has no such map.
    pub fn table<K: Plain, V: Plain>(&mut self, name: &str) -> Result<Table<K, V>, LoadError> {
        self.ebpf
            .take_map(name)
            .and_then(Table::new)
            .ok_or_else(|| {
                LoadError::Object(format!("the object has no map `{name}` of this kind"))
            })
    }

    /// Adds processes to the target; [`Programs::mark`] then finds them and their descendants.
    ///
    /// # Errors
    ///
    /// When there are too many.
    pub fn add_roots(&mut self, roots: &Roots) -> Result<(), LoadError> {
        for (pid, start) in roots {
            self.roots
                .insert(pid, start, 0)
                .map_err(|error| LoadError::Object(format!("map ROOTS: {error}")))?;
        }
        Ok(())
    }

    /// Follows processes that are there, and their descendants. That they are roots is forgotten then, so that nobody who
    /// has one of these pids later is taken for one.
    ///
    /// # Errors
    ///
    /// When there are too many at a time, or the iterator cannot be read.
    pub fn adopt(&mut self, roots: &Roots) -> Result<(), LoadError> {
        self.add_roots(roots)?;
        let marked = self.mark();
        self.forget_roots()?;
        marked
    }

    /// Nobody is a root any more; who is followed still is, with all descendants.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn forget_roots(&mut self) -> Result<(), LoadError> {
        let roots: Vec<u32> = self.roots.keys().filter_map(Result::ok).collect();
        for pid in roots {
            self.roots
                .remove(&pid)
                .map_err(|error| LoadError::Object(format!("map ROOTS: {error}")))?;
        }
        Ok(())
    }

    /// Makes the cgroups with these inodes the target; [`Programs::mark`] then finds their members.
    ///
    /// # Errors
    ///
    /// When there are too many.
    pub fn set_cgroups(&mut self, ids: &[u64]) -> Result<(), LoadError> {
        let fail = |error| LoadError::Object(format!("map CGROUPS: {error}"));
        let known: Vec<u64> = self.cgroups.keys().filter_map(Result::ok).collect();
        for gone in known.iter().filter(|id| !ids.contains(id)) {
            self.cgroups.remove(gone).map_err(fail)?;
        }
        for id in ids {
            self.cgroups.insert(id, 0, 0).map_err(fail)?;
        }
        Ok(())
    }

    /// Follows all tasks of the target that exist.
    ///
    /// # Errors
    ///
    /// When the iterator cannot be read.
    pub fn mark(&mut self) -> Result<(), LoadError> {
        let mut marked = self.counters()?.marked;
        for _ in 0..MARK_PASSES {
            let mut file = self.iterate("mark")?;
            std::io::copy(&mut file, &mut std::io::sink()).map_err(|source| LoadError::Read {
                what: "iterator mark",
                source,
            })?;
            let now = self.counters()?.marked;
            if now == marked {
                break;
            }
            marked = now;
        }
        Ok(())
    }

    /// From now on births outside the target are not reported.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn armed(&mut self) -> Result<(), LoadError> {
        self.state.arming = 0;
        self.write_state()
    }

    /// Reads all followed tasks once; `now` is the time of the tick, ns of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    ///
    /// When the iterator cannot be read.
    pub fn sample(&mut self, now: u64) -> Result<Reading, LoadError> {
        self.state.previous = self.state.now;
        self.state.now = now;
        self.state.epoch = self.state.epoch.wrapping_add(1);
        self.write_state()?;
        let mut file = self.iterate("sample")?;
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
                    return Err(LoadError::Read {
                        what: "iterator sample",
                        source,
                    });
                }
            }
        }
        self.length = length;
        Ok(Reading {
            monotonic_ns: self.state.now,
            epoch: self.state.epoch,
        })
    }

    /// Number of the last reading.
    pub fn epoch(&self) -> u32 {
        self.state.epoch
    }

    /// The records of the last reading.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        records(&bytes(&self.buffer)[..self.length])
    }

    /// Moves every event since the last call to `events`.
    pub fn drain(&mut self, events: &mut Vec<Event>) {
        while let Some(item) = self.events.next() {
            events.extend(event(&item));
        }
    }

    /// Becomes readable when the target has ended, or before the buffer of events is full.
    pub fn events_fd(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        use std::os::fd::AsRawFd as _;
        // SAFETY: the map owns the descriptor for as long as the borrow lives.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.events.as_raw_fd()) };
        borrowed.try_clone_to_owned()
    }

    /// What the programs counted of themselves.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<Counters, LoadError> {
        self.counters
            .get(&0, 0)
            .map_err(|error| LoadError::Object(format!("map COUNTERS: {error}")))
    }

    /// Process ids of the target's processes whose end has not been reported, in our pid namespace.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn live_processes(&self) -> Result<Vec<u32>, LoadError> {
        let pids = self.processes.iter().map(|entry| {
            let entry = entry.map_err(|error| LoadError::Object(format!("map PROCESSES: {error}")));
            Ok(entry?.1.pid)
        });
        pids.collect()
    }

    /// What the kernel counts of each attached program.
    pub fn program_stats(&self) -> Vec<(&'static str, Stats)> {
        let of = |attached: &Attached| {
            let program = self.ebpf.program(attached.program)?;
            Some((attached.program, stats(program.fd().ok()?.as_fd())?))
        };
        self.attached.iter().filter_map(of).collect()
    }

    fn write_state(&mut self) -> Result<(), LoadError> {
        self.control
            .set(0, self.state, 0)
            .map_err(|error| LoadError::Object(format!("map CONTROL: {error}")))
    }

    fn iterate(&mut self, name: &'static str) -> Result<File, LoadError> {
        let program: &mut Iter = program(&mut self.ebpf, name)?;
        let link = program
            .attach()
            .map_err(|error| program_error(name, &error))?;
        let link = program
            .take_link(link)
            .map_err(|error| program_error(name, &error))?;
        link.into_file().map_err(|error| LoadError::Program {
            program: name.to_owned(),
            message: error.to_string(),
        })
    }
}

/// One reading of all followed tasks.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// When it began.
    pub monotonic_ns: u64,
    /// Its number.
    pub epoch: u32,
}

fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: any memory of integers is also memory of bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

fn bytes_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are valid integers.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

fn verifier_log_level() -> VerifierLogLevel {
    if std::env::var_os(VERIFIER_LOG).is_some() {
        VerifierLogLevel::VERBOSE
    } else {
        VerifierLogLevel::DISABLE
    }
}

fn config(host: &Host, settings: &Settings, kernel: &Btf) -> Config {
    let (scope, cgroup_hierarchy) = match settings.scope {
        Scope::Pids => (scope::PIDS, 0),
        Scope::Cgroup { hierarchy, .. } => (scope::CGROUP, hierarchy),
        Scope::Job { hierarchy, .. } => (scope::JOB, hierarchy),
        Scope::Node => (scope::NODE, 0),
    };
    Config {
        cgroup_hierarchy,
        scope,
        sched: settings.sched.into(),
        has_prev_state: (kernel.tracepoint_arguments("sched_switch") >= Some(4)).into(),
        threads: settings.threads.into(),
        cpus: u32::try_from(host.possible_cpus).unwrap_or(1),
        rss_percpu: kernel.is_array("mm_struct", "rss_stat").into(),
        percpu_counter_size: kernel.size_of("percpu_counter").unwrap_or(0),
        upid_size: kernel.size_of("upid").unwrap_or(0),
        calls: calls(settings),
        dirty_pages: kernel.enumerator("I_DIRTY_PAGES").unwrap_or(1 << 2),
        writeback_bit: kernel.enumerator("PG_writeback").unwrap_or(64),
        in_pid_namespace: in_pid_namespace().into(),
    }
}

/// Whether our pid namespace is not the initial one, whose number is fixed (include/uapi/linux/nsfs.h).
fn in_pid_namespace() -> bool {
    const PID_NS_INIT_INO: u32 = 0xefff_fffc;
    let initial = format!("pid:[{PID_NS_INIT_INO}]");
    std::fs::read_link("/proc/self/ns/pid")
        .is_ok_and(|namespace| namespace.as_os_str() != &*initial)
}

/// What the features want of system calls: bits of [`calls`].
fn calls(settings: &Settings) -> u32 {
    let of = |wanted: &Requested| match (wanted.instrumentation.source, wanted.method) {
        ("syscalls", _) => calls::COUNT,
        ("file_io", Some("syscalls")) => calls::FILES,
        _ => 0,
    };
    settings
        .instrumentations
        .iter()
        .map(of)
        .fold(0, |all, bit| all | bit)
}

/// Loads the maps, with room for what `settings` ask for.
fn load_object(
    host: &Host,
    settings: &Settings,
    btf: &aya::Btf,
    offsets: &Offsets,
    config: &Config,
) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    loader
        .btf(Some(btf))
        // aya has no user side for task storage, and none is needed.
        .allow_unsupported_maps()
        .verifier_log_level(verifier_log_level())
        .override_global("OFFSETS", offsets, true)
        .override_global("CONFIG", config, true)
        .map_max_entries("PROCESSES", processes_max(host));
    // Maps of flows that nobody wants have a single entry.
    let wanted = settings
        .instrumentations
        .iter()
        .map(|wanted| wanted.instrumentation);
    for map in wanted.flat_map(|instrumentation| instrumentation.maps) {
        let room = match *map {
            "REQUESTS" => REQUESTS_MAX,
            _ => flows_max(host, settings),
        };
        loader.map_max_entries(map, room);
    }
    for (map, room) in &settings.map_entries {
        loader.map_max_entries(map, *room);
    }
    loader
        .load(OBJECT)
        .map_err(|error| denied_or(&error, LoadError::Object))
}

/// The tracepoints that follow the target, with the programs for them.
fn tracepoints(settings: &Settings) -> Vec<(&'static str, &'static str)> {
    let mut tracepoints = vec![
        ("sched_switch", "sched_switch"),
        ("sched_wakeup_new", "sched_wakeup_new"),
        ("process_fork", "sched_process_fork"),
        ("process_exec", "sched_process_exec"),
    ];
    if settings.sched {
        tracepoints.push(("sched_wakeup", "sched_wakeup"));
    }
    if settings.moves {
        tracepoints.push(("cgroup_attach", "cgroup_attach_task"));
    }
    tracepoints
}

/// Room for processes: as many as the kernel allows, within reason. Entries take memory only while used.
fn processes_max(host: &Host) -> u32 {
    std::fs::read_to_string(host.procfs.join("sys/kernel/pid_max"))
        .ok()
        .and_then(|max| max.trim().parse::<u32>().ok())
        .unwrap_or(32768)
        .clamp(4096, 1 << 18)
}

/// Block requests under way; the map takes all its memory (4 MiB) at once.
const REQUESTS_MAX: u32 = 1 << 15;

/// Entries of a map of flows: some for each process that the kernel allows; they take memory only while used, the
/// hash table itself 16 bytes each.
fn flows_max(host: &Host, settings: &Settings) -> u32 {
    settings
        .max_entries
        .unwrap_or_else(|| (2 * processes_max(host)).clamp(1 << 15, 1 << 18))
}

pub(super) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, LoadError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or_else(|| LoadError::Object(format!("the object has no program `{name}`")))?
        .try_into()
        .map_err(|error| program_error(name, &error))
}

fn typed<M: TryFrom<aya::maps::Map>>(ebpf: &mut Ebpf, name: &str) -> Result<M, LoadError>
where
    M::Error: std::fmt::Display,
{
    ebpf.take_map(name)
        .ok_or_else(|| LoadError::Object(format!("the object has no map `{name}`")))?
        .try_into()
        .map_err(|error: M::Error| LoadError::Object(format!("map `{name}`: {error}")))
}

fn program_error(name: &str, error: &ProgramError) -> LoadError {
    denied_or(error, |message| LoadError::Program {
        program: name.to_owned(),
        message,
    })
}

/// Tells a refusal of the kernel from other errors.
fn denied_or(error: &dyn std::error::Error, other: impl FnOnce(String) -> LoadError) -> LoadError {
    match describe(error) {
        (message, true) => LoadError::Denied(message),
        (message, false) => other(message),
    }
}

/// An error with all its causes, and whether the kernel refused.
pub(super) fn describe(error: &dyn std::error::Error) -> (String, bool) {
    let mut message = error.to_string();
    let mut cause: Option<&dyn std::error::Error> = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && io.kind() == ErrorKind::PermissionDenied
        {
            return (message, true);
        }
        cause = inner.source();
    }
    (message, false)
}
