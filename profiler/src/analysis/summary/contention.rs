//! Why threads waited for CPUs: the target itself, its quota, or other processes.
//!
//! A sample with a demand of D threads (on a CPU or waiting for one) on C allowed CPUs has D − C threads
//! that wait because of the target itself. Of the other waits, at most the time in which a quota stopped
//! a CPU is because of it, and at most the CPU time of other processes on these CPUs because of them.
//! What remains are threads of the target that were runnable at the same moments.

use std::collections::{BTreeSet, HashMap};

use super::{DerivedFigure, Figures};
use crate::analysis::{
    figure::Unit,
    rows::{numbers, times},
    stored_run::{StoredHost, StoredRun},
};

/// A query for the sum of a value over all samples.
macro_rules! of_samples {
    ($value:literal, $name:literal) => {
        concat!(
            r"WITH part AS (
  SELECT DISTINCT host, unnest(string_split(allowed_cpus, ',')) AS part FROM process
), allowed AS (
  SELECT DISTINCT host,
    unnest(generate_series(split_part(part, '-', 1)::BIGINT, split_part(part, '-', -1)::BIGINT)) AS cpu
  FROM part
), cpus AS (
  SELECT host, count(*) AS cpus FROM allowed GROUP BY host
), busy AS (
  SELECT host, ts, sum(user_ns + nice_ns + system_ns + guest_ns + guest_nice_ns) / 1e9 AS busy_s
  FROM cpu JOIN allowed USING (host, cpu) GROUP BY host, ts
), stopped AS (
  SELECT host, ts, sum(throttled_ns) / 1e9 AS stopped_s FROM throttle GROUP BY host, ts
), sample AS (
  SELECT target_runqueue_ns / 1e9 AS waited, coalesce(stopped_s, 0) AS stopped,
    greatest(busy_s - target_cpu_percent / 100 * interval_ns / 1e9, 0) AS others,
    least(waited, greatest(0, waited + (target_cpu_percent / 100 - cpus) * interval_ns / 1e9)) AS excess
  FROM timeline JOIN busy USING (host, ts) JOIN cpus USING (host) LEFT JOIN stopped USING (host, ts)
  WHERE target_cpu_percent IS NOT NULL AND target_runqueue_ns IS NOT NULL AND busy_s IS NOT NULL
), shared AS (
  SELECT *, least(waited - excess, stopped) AS of_quota,
    least(waited - excess - of_quota, others) AS of_others FROM sample
) SELECT sum(",
            $value,
            ") AS ",
            $name,
            " FROM shared"
        )
    };
}

pub(super) const OTHERS: DerivedFigure = DerivedFigure {
    name: "others_cpu_s",
    unit: Unit::Seconds,
    help: "CPU time of other processes on the CPUs on which the target may run",
    sql: of_samples!("others", "others_cpu_s"),
};

pub(super) const BY_TARGET: DerivedFigure = DerivedFigure {
    name: "runqueue_own_s",
    unit: Unit::Seconds,
    help: "Part of runqueue_s because more threads of the target were runnable than it has CPUs",
    sql: of_samples!("waited - of_quota - of_others", "runqueue_own_s"),
};

pub(super) const BY_QUOTA: DerivedFigure = DerivedFigure {
    name: "runqueue_quota_s",
    unit: Unit::Seconds,
    help: "Part of runqueue_s because a CPU quota was used up",
    sql: of_samples!("of_quota", "runqueue_quota_s"),
};

pub(super) const BY_OTHERS: DerivedFigure = DerivedFigure {
    name: "runqueue_others_s",
    unit: Unit::Seconds,
    help: "Part of runqueue_s because other processes used the CPUs",
    sql: of_samples!("of_others", "runqueue_others_s"),
};

pub(super) const ALL: [DerivedFigure; 4] = [OTHERS, BY_TARGET, BY_QUOTA, BY_OTHERS];

/// A sample, s.
#[derive(Clone, Copy)]
struct Sample {
    seconds: f64,
    ran: f64,
    waited: f64,
    /// CPU time of all processes on the allowed CPUs.
    busy: f64,
    /// Time in which a quota stopped a CPU.
    stopped: f64,
}

/// Why threads waited, s.
#[derive(Debug, Default, PartialEq)]
struct Waits {
    others_cpu: f64,
    own: f64,
    quota: f64,
    others: f64,
}

impl Waits {
    fn add(&mut self, cpus: f64, sample: Sample) {
        let demand = sample.ran + sample.waited;
        let excess = (demand - cpus * sample.seconds).clamp(0.0, sample.waited);
        let others_cpu = (sample.busy - sample.ran).max(0.0);
        let quota = sample.stopped.min(sample.waited - excess);
        let others = others_cpu.min(sample.waited - excess - quota);
        self.others_cpu += others_cpu;
        self.own += sample.waited - quota - others;
        self.quota += quota;
        self.others += others;
    }
}

/// The sum of a value of each row by the time of its sample.
fn by_time(
    run: &StoredRun,
    host: &StoredHost,
    (table, columns): (&str, &[&str]),
    is_counted: impl Fn(usize) -> bool,
    failures: &mut Vec<String>,
) -> HashMap<i64, f64> {
    let mut sums = HashMap::new();
    let all = [&["ts", "cpu"], columns].concat();
    let read = run.read(table, host, &all, |batch| {
        let columns: Vec<_> = columns.iter().map(|name| numbers(batch, name)).collect();
        let cpus = numbers(batch, "cpu");
        for (row, ts) in times(batch, "ts").into_iter().enumerate() {
            let value: f64 = columns.iter().map(|column| column[row]).sum();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the number of a CPU; 0 in tables without"
            )]
            let cpu = cpus[row] as usize;
            if let Some(ts) = ts
                && !value.is_nan()
                && is_counted(cpu)
            {
                *sums.entry(ts).or_insert(0.0) += value / 1e9;
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    sums
}

/// Adds the figures of a node, whose target may use these CPUs.
pub(super) fn read_contention(
    run: &StoredRun,
    host: &StoredHost,
    allowed: &BTreeSet<usize>,
    figures: &mut Figures,
    failures: &mut Vec<String>,
) {
    const BUSY: &[&str] = &[
        "user_ns",
        "nice_ns",
        "system_ns",
        "guest_ns",
        "guest_nice_ns",
    ];
    const COLUMNS: [&str; 4] = [
        "ts",
        "interval_ns",
        "target_cpu_percent",
        "target_runqueue_ns",
    ];
    if allowed.is_empty() {
        return;
    }
    let is_allowed = |cpu| allowed.contains(&cpu);
    let busy = by_time(run, host, ("cpu", BUSY), is_allowed, failures);
    let stopped = ("throttle", &["throttled_ns"][..]);
    let stopped = by_time(run, host, stopped, |_| true, failures);
    let mut waits = None;
    let read = run.read("timeline", host, &COLUMNS, |batch| {
        let [lengths, cpus, waited] = ["interval_ns", "target_cpu_percent", "target_runqueue_ns"]
            .map(|name| numbers(batch, name));
        for (row, ts) in times(batch, "ts").into_iter().enumerate() {
            let Some((ts, busy)) = ts.and_then(|ts| Some((ts, *busy.get(&ts)?))) else {
                continue;
            };
            let seconds = lengths[row] / 1e9;
            let sample = Sample {
                seconds,
                ran: cpus[row] / 100.0 * seconds,
                waited: waited[row] / 1e9,
                busy,
                stopped: stopped.get(&ts).copied().unwrap_or(0.0),
            };
            if !(sample.ran + sample.waited).is_nan() {
                let waits: &mut Waits = waits.get_or_insert_default();
                waits.add(allowed.len() as f64, sample);
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    if let Some(waits) = waits {
        let values = [waits.others_cpu, waits.own, waits.quota, waits.others];
        let named = ALL.into_iter().zip(values);
        figures
            .known
            .extend(named.map(|(figure, value)| (figure.name, value)));
    }
}

/// Sums over the nodes that have these figures.
pub(super) fn sum_contention(nodes: &[Figures], sum: &mut Figures) {
    for figure in ALL {
        let values: Vec<f64> = nodes
            .iter()
            .filter_map(|node| node.get(figure.name))
            .collect();
        if !values.is_empty() {
            sum.known.insert(figure.name, values.iter().sum());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts the parts of the waits of a second on two CPUs: because of the target, a quota and others.
    fn check([ran, waited, busy, stopped]: [f64; 4], expected: [f64; 3]) {
        let mut waits = Waits::default();
        let seconds = 1.0;
        waits.add(
            2.0,
            Sample {
                seconds,
                ran,
                waited,
                busy,
                stopped,
            },
        );
        let parts = [waits.own, waits.quota, waits.others];
        let mut pairs = parts.iter().zip(expected);
        assert!(
            pairs.all(|(part, expected)| (part - expected).abs() < 1e-9),
            "{parts:?} instead of {expected:?}"
        );
    }

    #[test]
    fn waits_have_a_cause() {
        // Six threads on two CPUs.
        check([2.0, 4.0, 2.0, 0.0], [4.0, 0.0, 0.0]);
        // Two threads; others use half a CPU.
        check([1.5, 0.5, 2.0, 0.0], [0.0, 0.0, 0.5]);
        // A thread with a quota of half a CPU, on a node on which others use a CPU, too.
        check([0.5, 0.5, 1.5, 0.5], [0.0, 0.5, 0.0]);
        // Three threads with that quota: one of them has no CPU at any time.
        check([0.5, 2.5, 0.5, 1.5], [1.0, 1.5, 0.0]);
        // Four threads for a quarter of the time.
        check([0.5, 0.5, 0.5, 0.0], [0.5, 0.0, 0.0]);
        // Four threads, and two of others.
        check([1.25, 2.75, 2.0, 0.0], [2.0, 0.0, 0.75]);
        check([2.0, 0.0, 2.0, 0.0], [0.0; 3]);
    }
}
