//! What a source is: its declaration, how it is opened, and what it gets at each reading.

use std::{ptr, sync::Arc, time::Duration};

use anyhow::Result;
use caps::Capability;
use hashbrown::HashSet;

use super::bpf_support;
use crate::{
    bpf::{AttachResult, Instrumentation},
    failure::{Failure, os_error::without_code},
    host::Host,
    marks::MarkReceiver,
    perf::Selection,
    schema::{Batch, OwnerKey, ProcessKey, Table, TickKey, View},
    support::{clock::Tick, self_metrics::SelfMetrics},
    tasks::{ProcessId, Row, TaskTable, per_key::CounterRow},
};

/// Something that is read at every sample.
pub trait Source: Send {
    /// Reads once and adds rows to `out`, which holds the batches of the sources read before. The
    /// first reading sets the baselines of counters.
    ///
    /// # Errors
    ///
    /// When nothing could be read. The error is counted, and the first one is reported; the source
    /// is read again at the next sample.
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()>;

    /// How far the source works, if that shows only after it is opened.
    fn support(&self) -> Support {
        Support::Ok
    }

    /// Lines for the summary at the end of a run of this length.
    fn summary(&self, _elapsed_ns: u64) -> Option<String> {
        None
    }
}

/// How far a source works on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// All columns.
    Ok,
    /// Some columns are null.
    Limited {
        /// What is missing.
        why: String,
        /// How to enable it.
        remedy: String,
    },
    /// No rows.
    Unavailable {
        /// What is missing.
        why: String,
        /// How to enable it.
        remedy: String,
    },
}

impl Support {
    /// Whether a source works that needs this file.
    pub fn of_file(path: &std::path::Path, remedy: &str) -> Self {
        match std::fs::read(path) {
            Ok(_) => Self::Ok,
            Err(error) => Self::Unavailable {
                why: without_code(&format!("{}: {error}", path.display())).into_owned(),
                remedy: remedy.to_owned(),
            },
        }
    }

    /// This support if it is limited, else `other`.
    #[must_use]
    pub fn and(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Ok => other(),
            limited => limited,
        }
    }
}

/// What a source reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Files and drivers of the node.
    Node,
    /// Processes of the target, as the BPF programs report them.
    Tasks {
        /// Whether the source also works with processes that are read from `/proc`.
        procfs: bool,
    },
    /// Only what the other sources produced or cost in the same reading.
    Sources,
}

/// Position of a source within a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The source reads the system.
    Collect,
    /// The source computes rows from the batches of the stage before.
    Derive,
    /// The source accounts what the stages before cost.
    Account,
}

/// Declaration of a source, its entry in the registry.
///
/// ```ignore
/// pub static SPEC: SourceSpec = SourceSpec {
///     name: "cpu",
///     help: "times per state and frequency of each CPU",
///     tables: &[TABLE.untyped()],
///     open: |context| Ok(Box::new(AllCpus::open(context.host))),
///     ..SourceSpec::DEFAULT
/// };
/// ```
pub struct SourceSpec {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for `profiler check` and the reference.
    pub help: &'static str,
    /// Tables that the source fills.
    pub tables: &'static [&'static Table],
    /// Views beyond those that every table has.
    pub views: &'static [&'static View],
    pub open: fn(&OpenContext<'_>) -> Result<Box<dyn Source>>,

    /// What the source reads.
    pub input: Input,
    /// When it is read.
    pub stage: Stage,
    /// Whether it is also read when a region begins or ends, between two samples. Sources that read
    /// processes always are.
    pub at_boundaries: bool,
    /// Whether it runs unless it is deselected.
    pub default: bool,

    /// What this machine allows, if that depends on more than the input.
    pub probe: Option<fn(&Host) -> Support>,
    /// Whether this machine has the hardware that the source reads. If not, the missing source is
    /// reported only when it was selected by name.
    pub has_hardware: fn(&Host) -> bool,
    /// BPF programs beyond those that follow processes.
    pub instrumentation: Option<&'static Instrumentation>,
    /// Whether the source needs time asleep and the histogram of waits.
    pub waits: bool,
    /// Whether it stores the marks of applications; the session then opens a socket for them.
    pub marks: bool,
    /// Capabilities that later readings need when processes join the target.
    pub capabilities: fn(&Host) -> &'static [Capability],
    /// Rejects a selection of hardware events that this machine does not have, before anything is
    /// started.
    pub validate: fn(&Host, &Selection) -> Result<(), Failure>,
    /// Whether `--strict` rejects null columns. It always does for sources whose BPF programs have
    /// maps of their own.
    pub strict: fn(&Selection) -> bool,
}

impl SourceSpec {
    /// Defaults of all fields but name, help, tables and `open`: a source that reads files of the
    /// node at every sample.
    pub const DEFAULT: Self = Self {
        name: "",
        help: "",
        tables: &[],
        views: &[],
        open: |_| anyhow::bail!("not declared"),
        input: Input::Node,
        stage: Stage::Collect,
        at_boundaries: false,
        default: true,
        probe: None,
        has_hardware: |_| true,
        instrumentation: None,
        waits: false,
        marks: false,
        capabilities: |_| &[],
        validate: |_, _| Ok(()),
        strict: |_| false,
    };

    /// Whether the source reads the processes of the target.
    pub fn reads_tasks(&self) -> bool {
        matches!(self.input, Input::Tasks { .. })
    }

    /// Whether the source is read where a region begins or ends.
    pub fn is_read_at_boundaries(&self) -> bool {
        self.at_boundaries || self.reads_tasks()
    }

    /// Whether `--strict` rejects null columns.
    pub fn rejects_nulls(&self, selection: &Selection) -> bool {
        let programs = self.instrumentation;
        programs.is_some_and(|programs| !programs.maps.is_empty()) || (self.strict)(selection)
    }

    /// How far the source works on this machine.
    pub fn support(&self, host: &Host) -> Support {
        match (self.probe, self.input) {
            (Some(probe), _) => probe(host),
            (None, Input::Tasks { procfs }) => {
                bpf_support::of_tasks(host, procfs, self.instrumentation)
            }
            (None, Input::Node | Input::Sources) => Support::Ok,
        }
    }
}

/// What a source is opened with.
pub struct OpenContext<'a> {
    /// Facts about this machine.
    pub host: &'a Host,
    /// Time between samples.
    pub interval: Duration,
    /// Whether the rows are for an ordinary user, from whom the kernel hides the energy of the node.
    pub for_user: bool,
    /// Whether rows per thread are requested.
    pub threads: bool,
    /// Attach result of the source's BPF programs, if they are loaded.
    pub result: Option<&'a AttachResult>,
    /// Whether the target is the node.
    pub node: bool,
    /// Whether processes can join the target that are not descendants of its processes.
    pub joins_without_fork: bool,
    /// Selected hardware events.
    pub perf: &'a Selection,
    /// Receiver of marks, or why there is none.
    pub marks: Result<&'a Arc<MarkReceiver>, &'a str>,
}

/// What a source gets at each reading.
pub struct TickContext<'a> {
    /// Time and number of the sample; all rows of a sample have the same `ts`.
    pub tick: Tick,
    /// Processes of the target, read once for all sources.
    pub tasks: &'a TaskTable,
    /// What the profiler itself has cost and lost so far.
    pub self_metrics: &'a SelfMetrics,
    /// Sources read before in this reading without an error.
    pub completed: &'a [&'static SourceSpec],
    /// Whether this is the last reading of the run.
    pub last: bool,
    /// Processes with marks, if this reading is made between two samples because a region begins or
    /// ends. Its rows are those of these processes and their descendants.
    pub boundary: Option<&'a HashSet<u32>>,
}

impl TickContext<'_> {
    /// Whether the source of a table was read in this reading without an error. If so, a table
    /// without rows means that nothing happened.
    pub fn has_read(&self, table: &Table) -> bool {
        let mut tables = self.completed.iter().flat_map(|source| source.tables);
        tables.any(|filled| ptr::eq(*filled, table))
    }

    /// Key of a row of the node.
    pub fn key(&self, interval_ns: u64) -> TickKey {
        TickKey {
            ts: self.tick.ts,
            interval_ns,
        }
    }

    /// Key of the row of a process or thread.
    pub fn key_of_task(&self, row: &Row) -> ProcessKey {
        self.key_of_process(row.id, row.tid, row.interval_ns)
    }

    /// Key of a row of a process, or of its thread `tid`.
    pub fn key_of_process(&self, id: ProcessId, tid: Option<u32>, interval_ns: u64) -> ProcessKey {
        ProcessKey {
            ts: self.tick.ts,
            interval_ns,
            pid: id.pid,
            start_ts: self.tasks.clock.wall_of_boottime(id.start_boottime),
            tid,
        }
    }

    /// Key of a row of per-key counters.
    pub fn key_of_counters<I>(&self, row: &CounterRow<I>) -> OwnerKey {
        self.key_of_owner(row.id, row.tid, row.interval_ns)
    }

    /// Key of a row of a process if it is known, or of its thread `tid`.
    pub fn key_of_owner(
        &self,
        id: Option<ProcessId>,
        tid: Option<u32>,
        interval_ns: u64,
    ) -> OwnerKey {
        OwnerKey {
            ts: self.tick.ts,
            interval_ns,
            pid: id.map(|id| id.pid),
            start_ts: id.map(|id| self.tasks.clock.wall_of_boottime(id.start_boottime)),
            tid,
        }
    }
}
