//! `net_io` against workloads whose true counts are known, and the kernel's own.

mod copies;
mod namespaces;
mod tcp;
mod udp;

use e2e::{
    rows::{Row, sum},
    runs::{Finished, Profiler},
};

/// The program of `workload_net/`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload-net");

/// What the profiler says of a workload, and the workload of itself.
struct Account {
    net_io: Vec<Row>,
    latency: Vec<Row>,
    facts: Vec<(String, u64, Vec<u64>)>,
    /// Why some columns are null.
    without: String,
}

/// Runs the workload under the profiler.
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
        // A busy machine may miss a tick.
        let losses = data.manifest()["losses"].clone();
        let mut losses = losses.as_array().into_iter().flatten();
        assert!(losses.all(|loss| loss["what"] == "ticks"), "{losses:?}");
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

    /// Whether this kernel lets a function be hooked.
    fn has(&self, function: &str) -> bool {
        !self.without.contains(function)
    }

    /// What the workload told: the process and the numbers.
    fn fact(&self, name: &str) -> (u64, &[u64]) {
        let found = self.facts.iter().find(|fact| fact.0 == name);
        let (_, pid, numbers) = found.unwrap_or_else(|| panic!("{name}? {:?}", self.facts));
        (*pid, numbers)
    }

    /// The rows with these labels.
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

    /// Checks sums: columns and what they must be.
    #[track_caller]
    fn check(&self, labels: Labels, expected: &[(&str, u64)]) {
        let rows = self.rows(labels);
        let sums: Vec<_> = expected
            .iter()
            .map(|(name, _)| (*name, sum(&rows, name)))
            .collect();
        assert_eq!(sums, expected, "{labels:?} {:?}", self.facts);
    }

    /// The rows of a kind of latency, checked in themselves.
    #[track_caller]
    fn latency(&self, pid: u64, kind: &str) -> Vec<Row> {
        let ours = |row: &&Row| row.u64("pid") == Some(pid) && row.text("kind") == Some(kind);
        let rows: Vec<Row> = self.latency.iter().filter(ours).cloned().collect();
        for row in &rows {
            let number = |column| row.u64(column).expect("a number");
            let buckets = row.list("buckets").expect("buckets");
            assert_eq!(buckets.iter().sum::<u64>(), number("count"), "{row:?}");
            let bounds = |power: fn(u32) -> u64| -> u64 {
                let bound = |(index, count): (usize, &u64)| {
                    count * power(u32::try_from(index).expect("40 at most"))
                };
                buckets.iter().enumerate().map(bound).sum()
            };
            let (least, most) = (bounds(|index| 1 << index), bounds(|index| 2 << index));
            assert!((least..most).contains(&number("sum_ns")), "{row:?}");
            let highest = u32::try_from(buckets.len()).expect("40 at most");
            assert!(number("max_ns") < 1 << highest, "{row:?}");
            assert!(number("max_ns") >= 1 << (highest - 1), "{row:?}");
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

/// Which rows: of any process, family or scope where that is not said.
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

/// Nothing was charged to anybody else, or with other labels.
#[track_caller]
fn assert_only(account: &Account, column: &str, expected: u64) {
    assert_eq!(
        sum(&account.net_io, column),
        expected,
        "{column} of all rows"
    );
}
