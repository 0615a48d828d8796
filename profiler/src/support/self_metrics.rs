//! What the profiler itself costs and loses: the figures behind table `overhead`.

use std::collections::BTreeMap;

/// What is accounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// A source, by its name.
    Source,
    /// A BPF program.
    Program,
    /// A BPF map.
    Map,
    /// Marks of applications, by what became of them.
    Marks,
    /// The writer of files.
    Sink,
    /// The profiler's process.
    Controller,
}

impl Component {
    /// The word in column `part`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Program => "program",
            Self::Map => "map",
            Self::Marks => "marks",
            Self::Sink => "sink",
            Self::Controller => "controller",
        }
    }
}

/// Totals of one component since the start; `None` where there is no such figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComponentMetrics {
    /// Times it ran.
    pub runs: Option<u64>,
    /// Time it took, ns.
    pub run_ns: Option<u64>,
    /// Rows it made.
    pub rows: Option<u64>,
    /// What it lost: rows, events, entries of a map, or ticks.
    pub dropped: Option<u64>,
    /// Failures.
    pub errors: Option<u64>,
}

/// All accounts.
#[derive(Debug, Default)]
pub struct SelfMetrics {
    accounts: BTreeMap<(Component, &'static str), ComponentMetrics>,
    /// How late the present tick began, ns.
    pub late_ns: u64,
}

impl SelfMetrics {
    /// The account of a component.
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

    /// All accounts in order.
    pub fn iter(&self) -> impl Iterator<Item = (Component, &'static str, ComponentMetrics)> {
        self.accounts
            .iter()
            .map(|((part, name), account)| (*part, *name, *account))
    }
}
