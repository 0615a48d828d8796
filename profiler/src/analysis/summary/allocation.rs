//! CPUs and memory that the target may use.

use std::collections::BTreeSet;

use super::{DerivedFigure, Figures};
use crate::{
    analysis::{
        figure::Unit,
        rows::{Texts, numbers},
        stored_run::{StoredHost, StoredRun},
    },
    host::cpu_list,
};

pub(super) const CPUS: DerivedFigure = DerivedFigure {
    name: "allowed_cpus",
    unit: Unit::Count,
    help: "CPUs on which any process of the target may run, at most the largest CPU quota of their cgroups if all have one",
    sql: r"WITH part AS (
  SELECT DISTINCT host, unnest(string_split(allowed_cpus, ',')) AS part FROM process
), cpu AS (
  SELECT DISTINCT host,
    unnest(generate_series(split_part(part, '-', 1)::BIGINT, split_part(part, '-', -1)::BIGINT)) AS cpu
  FROM part
), quota AS (
  SELECT host, CASE WHEN count(quota_cpus) = count(*) THEN max(quota_cpus) END AS quota
  FROM process WHERE allowed_cpus IS NOT NULL GROUP BY host
), allowed AS (
  SELECT least(count(*), coalesce(any_value(quota), count(*))) AS cpus
  FROM cpu JOIN quota USING (host) GROUP BY host
)
SELECT sum(cpus) AS allowed_cpus FROM allowed",
};

pub(super) const MEMORY: DerivedFigure = DerivedFigure {
    name: "memory_limit_bytes",
    unit: Unit::Bytes,
    help: "Largest memory limit of a process of the target by its cgroups, summed over the nodes, if all have one",
    sql: r"WITH part AS (
  SELECT CASE WHEN count(memory_limit) = count(*) THEN max(memory_limit) END AS bytes
  FROM process WHERE allowed_cpus IS NOT NULL GROUP BY host
)
SELECT CASE WHEN count(bytes) = count(*) THEN sum(bytes) END AS memory_limit_bytes FROM part",
};

/// The largest limit, if all processes have one.
#[derive(Default)]
struct Largest {
    value: f64,
    is_unlimited: bool,
}

impl Largest {
    /// Adds the limit of a process; NaN if it has none.
    fn add(&mut self, limit: f64) {
        self.is_unlimited |= limit.is_nan();
        self.value = self.value.max(limit);
    }

    fn get(&self) -> Option<f64> {
        (!self.is_unlimited).then_some(self.value)
    }
}

/// Adds the allocation on a node to its figures. Returns the CPUs on which a process may run.
pub(super) fn read_allocation(
    run: &StoredRun,
    host: &StoredHost,
    figures: &mut Figures,
    failures: &mut Vec<String>,
) -> BTreeSet<usize> {
    let mut cpus = BTreeSet::new();
    let (mut quota, mut memory) = (Largest::default(), Largest::default());
    let columns = ["allowed_cpus", "quota_cpus", "memory_limit"];
    let read = run.read("process", host, &columns, |batch| {
        let lists = Texts::of(batch, "allowed_cpus");
        let [quotas, limits] = ["quota_cpus", "memory_limit"].map(|name| numbers(batch, name));
        let mut last = None;
        for row in 0..batch.num_rows() {
            let Some(list) = lists.get(row) else { continue };
            if last != Some(list) {
                cpus.extend(cpu_list(list).unwrap_or_default());
                last = Some(list);
            }
            quota.add(quotas[row]);
            memory.add(limits[row]);
        }
    });
    failures.extend(read.err().into_iter().flatten());
    if cpus.is_empty() {
        return cpus;
    }
    let allowed = cpus.len() as f64;
    let allowed = quota.get().map_or(allowed, |quota| quota.min(allowed));
    figures.known.insert(CPUS.name, allowed);
    if let Some(memory) = memory.get() {
        figures.known.insert(MEMORY.name, memory);
    }
    cpus
}

/// Sums over the nodes, of those that have any of these figures.
pub(super) fn sum_allocations(nodes: &[Figures], sum: &mut Figures) {
    let nodes = || nodes.iter().filter(|node| node.get(CPUS.name).is_some());
    for figure in [CPUS, MEMORY] {
        let values: Option<Vec<f64>> = nodes().map(|node| node.get(figure.name)).collect();
        if let Some(values) = values.filter(|values| !values.is_empty()) {
            sum.known.insert(figure.name, values.iter().sum());
        }
    }
}
