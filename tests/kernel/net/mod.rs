//! `net_io` compared with workloads of known counts and with the kernel's counters.

mod namespaces;
mod tcp;
mod udp;
mod zero_copy;

use e2e::{
    histogram::{bounds, edges},
    rows::{Row, sum},
    runs::{Finished, Profiler},
};

/// Path of the program `bin/workload_net`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload-net");

/// The tables of a run and the counts printed by its workload.
struct Account {
    net_io: Vec<Row>,
    latency: Vec<Row>,
    facts: Vec<(String, u64, Vec<u64>)>,
    /// Reason for null columns.
    without: String,
}

/// Profiles the workload.
#[track_caller]
fn account(words: &[&str]) -> Account {
    account_of(Profiler::new(), &[&[WORKLOAD], words].concat())
}

#[track_caller]
fn account_of(profiler: Profiler, command: &[&str]) -> Account {
    let finished = profiler.args(["-i", "100ms"]).command(command).finish();
    Account::of(&finished)
}

impl Account {
    #[track_caller]
    fn of(finished: &Finished) -> Self {
        let data = finished.dataset();
        let sources = data.manifest()["sources"].clone();
        let sources = sources.as_array().expect("a list");
        let ours = sources.iter().find(|source| source["name"] == "net_io");
        // Samples may be missed on a busy machine.
        let losses = data.manifest()["losses"].clone();
        let mut losses = losses.as_array().into_iter().flatten();
        assert!(losses.all(|loss| loss["what"] == "samples"), "{losses:?}");
        Self {
            net_io: data.table("net_io"),
            latency: data.table("latency"),
            facts: finished.stdout.lines().map(fact).collect(),
            without: ours.expect("net_io")["why"]
                .as_str()
                .unwrap_or("")
                .to_owned(),
        }
    }

    /// Whether this kernel supports a hook on a function.
    fn has(&self, function: &str) -> bool {
        !self.without.contains(function)
    }

    /// Pid and numbers of a line that the workload printed.
    fn fact(&self, name: &str) -> (u64, &[u64]) {
        let found = self.facts.iter().find(|fact| fact.0 == name);
        let (_, pid, numbers) = found.unwrap_or_else(|| panic!("{name}? {:?}", self.facts));
        (*pid, numbers)
    }

    /// Rows with these labels.
    fn rows(&self, labels: Labels) -> Vec<Row> {
        let ours = |row: &&Row| {
            labels.pid.is_none_or(|pid| row.u64("pid") == Some(pid))
                && row.text("protocol") == Some(labels.protocol)
                && labels
                    .family
                    .is_none_or(|family| label(row, "family") == family)
                && labels
                    .scope
                    .is_none_or(|scope| label(row, "scope") == scope)
        };
        self.net_io.iter().filter(ours).cloned().collect()
    }

    /// Asserts the sums of columns.
    #[track_caller]
    fn check(&self, labels: Labels, expected: &[(&str, u64)]) {
        let rows = self.rows(labels);
        let sums: Vec<_> = expected
            .iter()
            .map(|(name, _)| (*name, sum(&rows, name)))
            .collect();
        assert_eq!(sums, expected, "{labels:?} {:?}", self.facts);
    }

    /// Rows of a kind of latency; asserts that they are consistent.
    #[track_caller]
    fn latency(&self, pid: u64, kind: &str) -> Vec<Row> {
        let ours = |row: &&Row| row.u64("pid") == Some(pid) && row.text("kind") == Some(kind);
        let rows: Vec<Row> = self.latency.iter().filter(ours).cloned().collect();
        for row in &rows {
            let number = |column| row.u64(column).expect("a number");
            let buckets = row.list("buckets").expect("buckets");
            assert_eq!(buckets.iter().sum::<u64>(), number("count"), "{row:?}");
            let (least, most) = bounds(buckets);
            assert!((least..=most).contains(&number("sum_ns")), "{row:?}");
            let (least, end) = edges(buckets.len() - 1);
            assert!((least..end).contains(&number("max_ns")), "{row:?}");
        }
        rows
    }
}

fn fact(line: &str) -> (String, u64, Vec<u64>) {
    let mut words = line.split_whitespace();
    let name = words.next().expect("a name").to_owned();
    let mut numbers = words.map(|word| word.parse().expect("a number"));
    (name, numbers.next().expect("a pid"), numbers.collect())
}

fn label<'a>(row: &'a Row, column: &str) -> &'a str {
    row.text(column).unwrap_or("null")
}

/// Selects rows; `None` matches any process, family or scope.
#[derive(Clone, Copy, Debug)]
struct Labels {
    pid: Option<u64>,
    protocol: &'static str,
    family: Option<&'static str>,
    scope: Option<&'static str>,
}

impl Labels {
    fn all(protocol: &'static str) -> Self {
        Self {
            pid: None,
            protocol,
            family: None,
            scope: None,
        }
    }

    fn pid(self, pid: u64) -> Self {
        Self {
            pid: Some(pid),
            ..self
        }
    }

    fn family(self, family: &'static str) -> Self {
        Self {
            family: Some(family),
            ..self
        }
    }

    fn scope(self, scope: &'static str) -> Self {
        Self {
            scope: Some(scope),
            ..self
        }
    }
}

/// Asserts the sum over all rows, so that nothing was charged to other processes or labels.
#[track_caller]
fn assert_only(account: &Account, column: &str, expected: u64) {
    assert_eq!(
        sum(&account.net_io, column),
        expected,
        "{column} of all rows"
    );
}
