//! Where numbers come from: the trait of a source and the registry of all.
//!
//! A source knows nothing of files; it turns one reading into batches of its tables.

pub mod block_io;
pub mod cpu;
pub mod disk;
pub mod energy;
pub mod fabric;
pub mod file_io;
pub mod filesystem;
pub mod gpu;
pub mod host;
pub mod latency;
pub mod net_io;
pub mod netdev;
pub mod overhead;
pub mod perf;
pub mod process;
pub mod region;
pub mod sched;
pub mod syscalls;
pub mod system;
pub mod timeline;
pub mod usage;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Result;

use crate::{
    bpf::{
        AttachResult, Attached, Instrumentation, LoadError, Programs, REFUSED, Requested, Scope,
        Settings,
    },
    host::{Host, refusal},
    marks::MarkReceiver,
    perf::Selection,
    privileges,
    schema::{Batch, OwnerKey, ProcessKey, Table},
    support::{clock::Tick, self_metrics::SelfMetrics},
    tasks::{ProcessId, Row, TaskTable, per_key::CounterRow},
};

/// What a source is given at each tick.
pub struct TickContext<'a> {
    /// The moment; all rows of a tick carry the same `ts`.
    pub tick: Tick,
    /// The processes of the target, read once for all sources.
    pub tasks: &'a TaskTable,
    /// What the profiler itself has cost so far.
    pub self_metrics: &'a SelfMetrics,
    /// Whether this is the run's last reading.
    pub last: bool,
    /// Between two ticks, because regions begin or end: whose (see [`read_at_boundaries`]). The rows are those of these
    /// processes and their descendants.
    pub boundary: Option<&'a hashbrown::HashSet<u32>>,
}

/// Something that is read at every tick.
pub trait Source: Send {
    /// Reads once. The first call sets baselines; later ones add rows to `out`, where those of the sources before are.
    ///
    /// # Errors
    ///
    /// When nothing could be read. The loop counts the error, says it once, and goes on.
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()>;

    /// How far it works, when that shows only when it is opened.
    fn support(&self) -> Support {
        Support::Works
    }

    /// Lines for people at the end of a run that took so long.
    fn summary(&self, _elapsed_ns: u64) -> Option<String> {
        None
    }
}

/// How far a source can work on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// All columns.
    Works,
    /// Some columns are null.
    Partly {
        /// What is missing.
        why: String,
        /// What would enable it.
        remedy: String,
    },
    /// No rows.
    No {
        /// What is missing.
        why: String,
        /// What would enable it.
        remedy: String,
    },
}

/// What a source is opened with.
pub struct Context<'a> {
    /// Facts about this machine.
    pub host: &'a Host,
    /// Time between ticks.
    pub interval: Duration,
    /// Whether per-thread rows are wanted.
    pub threads: bool,
    /// What became of its feature, if the programs are loaded.
    pub result: Option<&'a AttachResult>,
    /// Whether the target is the node.
    pub node: bool,
    /// Whether processes join the target that are no descendants of others.
    pub joins_without_fork: bool,
    /// Which hardware events are wanted.
    pub perf: &'a Selection,
    /// What applications mark, or why they cannot.
    pub marks: Result<&'a Arc<MarkReceiver>, &'a str>,
}

/// An entry of the registry.
pub struct SourceSpec {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for `profiler check` and the reference.
    pub help: &'static str,
    /// Its tables.
    pub tables: &'static [&'static Table],
    /// What this machine lets it do.
    pub probe: fn(&Host) -> Support,
    /// Whether it reads the processes of the target.
    pub tasks: bool,
    /// Whether it has something to tell when the processes are read from /proc.
    pub procfs: bool,
    /// What it accounts in the kernel, beyond what is known of every process.
    pub instrumentation: Option<&'static Instrumentation>,
    /// Whether it is on when nothing else is said.
    pub default: bool,
    /// Opens it.
    pub open: fn(&Context<'_>) -> Result<Box<dyn Source>>,
}

pub use crate::support::file_limit::raise as raise_file_limit;

/// Every source.
pub static REGISTRY: &[&SourceSpec] = &[
    &process::SPEC,
    &region::SPEC,
    &sched::SPEC,
    &usage::SPEC,
    &file_io::SPEC,
    &block_io::SPEC,
    &net_io::SPEC,
    &syscalls::SPEC,
    &perf::SPEC,
    &system::SPEC,
    &cpu::SPEC,
    &energy::SPEC,
    &gpu::SPEC,
    &disk::SPEC,
    &filesystem::SPEC,
    &netdev::SPEC,
    &fabric::SPEC,
    &host::SPEC,
    &timeline::SPEC,
    &overhead::SPEC,
];

/// Those made from what the others have read at the tick, in the order in which they follow them.
pub static DERIVED: &[&SourceSpec] = &[
    &region::SPEC,
    &process::SPEC,
    &timeline::SPEC,
    &overhead::SPEC,
];

/// Whether a source is read where a region begins or ends: those of processes, and who adds up what they read.
pub fn read_at_boundaries(name: &str) -> bool {
    let mut specs = REGISTRY.iter();
    specs.any(|spec| spec.name == name && (spec.tasks || spec.name == timeline::SPEC.name))
}

/// Whether a source has nothing to tell because the hardware is not there: no news, unless it was asked for.
pub fn is_absent(name: &str, host: &Host) -> bool {
    [energy::SPEC.name, fabric::SPEC.name].contains(&name)
        || name == gpu::SPEC.name && !gpu::is_there(host)
}

/// The columns that identify a process's or thread's row.
fn process_key(at: &TickContext<'_>, row: &Row) -> ProcessKey {
    process_key_of(at, row.id, row.tid, row.interval_ns)
}

fn process_key_of(
    at: &TickContext<'_>,
    id: ProcessId,
    tid: Option<u32>,
    interval_ns: u64,
) -> ProcessKey {
    ProcessKey {
        ts: at.tick.ts,
        interval_ns,
        pid: id.pid,
        start_ts: at.tasks.clock.wall_of_boottime(id.start_boottime),
        tid,
    }
}

/// The columns that identify a row of flows.
fn counter_key<I>(at: &TickContext<'_>, row: &CounterRow<I>) -> OwnerKey {
    owner_key(at, row.id, row.tid, row.interval_ns)
}

fn owner_key(
    at: &TickContext<'_>,
    id: Option<ProcessId>,
    tid: Option<u32>,
    interval_ns: u64,
) -> OwnerKey {
    OwnerKey {
        ts: at.tick.ts,
        interval_ns,
        pid: id.map(|id| id.pid),
        start_ts: id.map(|id| at.tasks.clock.wall_of_boottime(id.start_boottime)),
        tid,
    }
}

/// What came of loading all programs.
pub struct LoadTrial {
    /// Those that can be used.
    pub attached: Vec<Attached>,
    /// What became of each feature.
    pub instrumentations: Vec<AttachResult>,
}

/// What the programs can do here; found out by loading all of them, once.
pub fn trial(host: &Host) -> &'static Result<LoadTrial, LoadError> {
    static TRIAL: OnceLock<Result<LoadTrial, LoadError>> = OnceLock::new();
    TRIAL.get_or_init(|| {
        let wanted = |instrumentation| Requested {
            instrumentation,
            method: None,
        };
        let settings = Settings {
            scope: Scope::Pids,
            sched: true,
            threads: false,
            moves: true,
            instrumentations: REGISTRY
                .iter()
                .filter_map(|spec| spec.instrumentation.map(wanted))
                .collect(),
            max_entries: Some(1),
            map_entries: Vec::new(),
        };
        Programs::load(host, &settings).map(|programs| LoadTrial {
            attached: programs.attached,
            instrumentations: programs.instrumentations,
        })
    })
}

/// How the processes of the target can be followed here.
fn task_support(host: &Host) -> Support {
    if !privileges::may_load_bpf() {
        return Support::No {
            why: "not root, and without CAP_BPF and CAP_PERFMON".to_owned(),
            remedy:
                "sudo, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep profiler"
                    .to_owned(),
        };
    }
    match trial(host) {
        Ok(_) => Support::Works,
        Err(error) => Support::Partly {
            why: format!("{error}; from /proc only: no process that lives less than an interval"),
            remedy: error.remedy(),
        },
    }
}

/// As [`task_support`], for a source that has nothing to tell without the programs.
fn program_support(host: &Host) -> Support {
    match task_support(host) {
        Support::Partly { why, remedy } => {
            let why = why
                .split_once("; from /proc")
                .map_or(why.as_str(), |(why, _)| why)
                .to_owned();
            Support::No { why, remedy }
        }
        other => other,
    }
}

/// What this machine lets a feature account.
fn feature_support(host: &Host, instrumentation: &Instrumentation) -> Support {
    match (program_support(host), trial(host)) {
        (Support::Works, Ok(trial)) => trial
            .instrumentations
            .iter()
            .find(|result| result.source == instrumentation.source)
            .map_or(Support::Works, |result| {
                outcome_support(result, instrumentation)
            }),
        (support, _) => support,
    }
}

/// The best way is all columns; what another lacks, or an optional hook, is said.
pub fn outcome_support(result: &AttachResult, instrumentation: &Instrumentation) -> Support {
    let Some(taken) = result.method else {
        let why: Vec<_> = result
            .missing
            .iter()
            .map(|missing| format!("no {}: {}", missing.hook.name(), missing.why))
            .collect();
        return Support::No {
            why: why.join("; "),
            remedy: remedy(result),
        };
    };
    let without = instrumentation
        .methods
        .iter()
        .find(|method| method.name == taken)
        .map_or("", |method| method.without);
    let mut why: Vec<String> = Vec::new();
    if !without.is_empty() {
        let refused = result
            .missing
            .iter()
            .find(|missing| missing.method != taken);
        why.push(match refused {
            Some(refused) => format!("{without} (no {}: {})", refused.hook.name(), refused.why),
            None => without.to_owned(),
        });
    }
    let mut optional: Vec<(&str, Vec<String>)> = Vec::new();
    for missing in result
        .missing
        .iter()
        .filter(|missing| missing.method == taken)
    {
        let hook = missing.hook.name();
        match optional.iter_mut().find(|(why, _)| *why == missing.why) {
            Some((_, hooks)) => hooks.push(hook),
            None => optional.push((&missing.why, vec![hook])),
        }
    }
    why.extend(
        optional
            .into_iter()
            .map(|(why, hooks)| format!("no {}: {why}", hooks.join(", "))),
    );
    if why.is_empty() {
        Support::Works
    } else {
        Support::Partly {
            why: why.join("; "),
            remedy: remedy(result),
        }
    }
}

/// What would let more programs load.
fn remedy(result: &AttachResult) -> String {
    let (refused, absent): (Vec<_>, Vec<_>) = result
        .missing
        .iter()
        .partition(|missing| missing.why == REFUSED);
    let mut remedies = Vec::new();
    if !refused.is_empty() {
        let cause = refusal("/proc".as_ref(), "/sys".as_ref());
        remedies.push(format!("cause of EPERM: {cause}"));
    }
    if !absent.is_empty() {
        remedies.push(
            "a kernel with these functions in its BTF, and with CONFIG_FUNCTION_TRACER".to_owned(),
        );
    }
    remedies.join("; ")
}
