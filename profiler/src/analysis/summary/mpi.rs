//! Time of ranks in MPI, from the marks of kind `mpi` (`clients/mpi`).
//!
//! A rank that waits in MPI uses its CPU: only its calls tell it from one that computes.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::{DerivedFigure, Figures, processes::Process};
use crate::analysis::{
    figure::Unit,
    rows::{ProcessKey, Texts, numbers, processes},
    stored_run::{StoredHost, StoredRun},
};

/// A query for the sum of a value over the processes of each rank.
macro_rules! of_processes {
    ($value:literal, $name:literal) => {
        concat!(
            r"WITH marked AS (
  SELECT host, pid, start_ts, coalesce(sum(interval_ns) FILTER (name LIKE 'MPI\_Init%' ESCAPE '\'), 0) AS starting,
    coalesce(sum(interval_ns) FILTER (op = 'region' AND name NOT LIKE 'MPI\_Init%' ESCAPE '\'), 0) AS inside,
    coalesce(sum(interval_ns) FILTER (op = 'phase'), 0) AS phases
  FROM region WHERE kind = 'mpi' AND op IN ('region', 'phase') AND name IS NOT NULL AND interval_ns IS NOT NULL
  GROUP BY ALL
), total AS (
  SELECT host, pid, start_ts, sum((of.value->>'ns')::BIGINT) AS ns
  FROM region, json_each(attributes, '$.functions') of
  WHERE kind = 'mpi' AND op = 'event' AND name = 'MPI_totals' GROUP BY ALL
), part AS (
  SELECT task_rank, starting, interval_ns, inside + coalesce(ns, phases) AS inside
  FROM marked JOIN process USING (host, pid, start_ts) LEFT JOIN total USING (host, pid, start_ts)
  WHERE task_rank IS NOT NULL
)
SELECT task_rank, sum(",
            $value,
            ") / 1e9 AS ",
            $name,
            " FROM part GROUP BY task_rank"
        )
    };
}

pub(super) const INSIDE: DerivedFigure = DerivedFigure {
    name: "mpi_s",
    unit: Unit::Seconds,
    help: "Time of the processes of the rank in MPI, without its start, from marks of kind `mpi`: those of clients/mpi are collective operations and MPI_Finalize",
    sql: of_processes!("inside", "mpi_s"),
};

pub(super) const OUTSIDE: DerivedFigure = DerivedFigure {
    name: "outside_mpi_s",
    unit: Unit::Seconds,
    help: "Time of these processes outside of MPI and its start",
    sql: of_processes!(
        "greatest(interval_ns::DOUBLE - starting - inside, 0)",
        "outside_mpi_s"
    ),
};

pub(super) const ALL: [DerivedFigure; 2] = [INSIDE, OUTSIDE];

/// Marks of a process, ns.
#[derive(Debug, Default)]
struct Marked {
    /// Whether any of them has one.
    has_length: bool,
    starting: f64,
    regions: f64,
    phases: f64,
    /// Sum over all calls, of which only long ones have phases.
    total: Option<f64>,
}

impl Marked {
    fn add(&mut self, name: &str, op: &str, length: f64, attributes: Option<&str>) {
        if op == "event" {
            if name == "MPI_totals" {
                self.total = attributes.and_then(total).or(self.total);
            }
            return;
        }
        let sum = match op {
            _ if length.is_nan() => return,
            "region" if name.starts_with("MPI_Init") => &mut self.starting,
            "region" => &mut self.regions,
            "phase" => &mut self.phases,
            _ => return,
        };
        *sum += length;
        self.has_length = true;
    }

    fn inside(&self) -> f64 {
        self.regions + self.total.unwrap_or(self.phases)
    }
}

/// Time of all calls in the attributes of `MPI_totals`.
fn total(attributes: &str) -> Option<f64> {
    let attributes: Value = serde_json::from_str(attributes).ok()?;
    let functions = attributes.get("functions")?.as_object()?.values();
    let times = functions.filter_map(|function| function.get("ns")?.as_f64());
    times.reduce(|sum, time| sum + time)
}

/// Times by rank: in MPI and outside of it, s.
pub(super) type Times = BTreeMap<u64, [f64; 2]>;

/// Reads the times of the ranks of a host.
pub(super) fn read_mpi(
    run: &StoredRun,
    host: &StoredHost,
    known: &[Process],
    failures: &mut Vec<String>,
) -> Times {
    const COLUMNS: [&str; 7] = [
        "pid",
        "start_ts",
        "name",
        "op",
        "kind",
        "interval_ns",
        "attributes",
    ];
    let mut marks: HashMap<ProcessKey, Marked> = HashMap::new();
    let read = run.read("region", host, &COLUMNS, |batch| {
        let [names, ops, kinds, attributes] =
            ["name", "op", "kind", "attributes"].map(|name| Texts::of(batch, name));
        let lengths = numbers(batch, "interval_ns");
        for (row, key) in processes(batch).into_iter().enumerate() {
            if let (Some(key), Some(name), Some(op), Some("mpi")) =
                (key, names.get(row), ops.get(row), kinds.get(row))
            {
                let marked = marks.entry(key).or_default();
                marked.add(name, op, lengths[row], attributes.get(row));
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    let mut times = Times::new();
    for process in known {
        let marked = marks.get(&process.key).filter(|marked| marked.has_length);
        let rank = process.rank.and_then(|rank| u64::try_from(rank).ok());
        if let (Some(marked), Some(rank), Some(length)) = (marked, rank, process.interval_ns) {
            let [inside, outside] = times.entry(rank).or_default();
            *inside += marked.inside() / 1e9;
            *outside += (length - marked.starting - marked.inside()).max(0.0) / 1e9;
        }
    }
    times
}

/// Adds the times of hosts to the figures of the ranks.
pub(super) fn add_times<'a>(
    hosts: impl Iterator<Item = &'a Times>,
    ranks: &mut BTreeMap<u64, Figures>,
) {
    for (rank, times) in hosts.flatten() {
        let figures = &mut ranks.entry(*rank).or_default().known;
        for (figure, time) in ALL.iter().zip(times) {
            *figures.entry(figure.name).or_insert(0.0) += time;
        }
    }
}
