//! Cost and losses of the profiler itself, stored in table `overhead`.

use std::collections::BTreeMap;

/// Kind of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    Source,
    /// A BPF program.
    Program,
    /// A BPF map.
    Map,
    /// Processes read from `/proc` instead of by BPF programs.
    Procfs,
    /// Marks of applications, by kind of loss.
    Marks,
    /// Rows that were left out because memory was short.
    Memory,
    /// An output.
    Sink,
    /// The profiler's process.
    Profiler,
    /// The start of the profiler, up to the first sample.
    Start,
}

impl Component {
    /// Value of column `component_kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Program => "program",
            Self::Map => "map",
            Self::Procfs => "procfs",
            Self::Marks => "marks",
            Self::Memory => "memory",
            Self::Sink => "sink",
            Self::Profiler => "profiler",
            Self::Start => "start",
        }
    }
}

/// Totals of one component since the start; `None` where a figure does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComponentMetrics {
    /// Number of runs.
    pub runs: Option<u64>,
    /// Time of all runs, ns.
    pub run_ns: Option<u64>,
    /// Rows produced.
    pub rows: Option<u64>,
    /// Losses: rows, events, map entries, or samples.
    pub dropped: Option<u64>,
    /// Failed runs.
    pub errors: Option<u64>,
}

/// Totals of all components.
#[derive(Debug, Default)]
pub struct SelfMetrics {
    accounts: BTreeMap<(Component, &'static str), ComponentMetrics>,
    /// Delay of the present tick after its deadline, ns.
    pub late_ns: u64,
    /// Parquet files written.
    pub files: u64,
    /// CPU time of the profiler before the baselines, ns.
    pub start_cpu_ns: u64,
}

impl SelfMetrics {
    /// Totals of a component, for changes.
    pub fn account(&mut self, part: Component, name: &'static str) -> &mut ComponentMetrics {
        self.accounts.entry((part, name)).or_default()
    }

    /// Adds one run of a source.
    pub fn ran(&mut self, name: &'static str, ns: u64, rows: u64, failed: bool) {
        let account = self.account(Component::Source, name);
        *account.runs.get_or_insert(0) += 1;
        *account.run_ns.get_or_insert(0) += ns;
        *account.rows.get_or_insert(0) += rows;
        *account.errors.get_or_insert(0) += u64::from(failed);
    }

    /// Totals of all components, sorted by kind and name.
    pub fn iter(&self) -> impl Iterator<Item = (Component, &'static str, ComponentMetrics)> {
        self.accounts
            .iter()
            .map(|((part, name), account)| (*part, *name, *account))
    }
}
