//! Differences of the machines and settings, which come before all figures.

use std::collections::{BTreeMap, BTreeSet};

use super::Measured;
use crate::analysis::{figure::Unit, rows::Texts, stored_run::StoredRun, summary::Summary};

/// Facts about the nodes of a run, by name.
#[derive(Clone, Debug, Default)]
pub struct Machine(BTreeMap<&'static str, BTreeSet<String>>);

/// A fact that is not the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    pub what: &'static str,
    pub a: Vec<String>,
    pub b: Vec<String>,
}

/// Columns of table `host` that change what programs cost.
const COLUMNS: [(&str, &str); 18] = [
    ("cpu_model_name", "CPU"),
    ("microarchitecture", "microarchitecture"),
    ("microcode", "microcode"),
    ("sockets", "sockets"),
    ("cores", "cores"),
    ("threads", "online CPUs"),
    ("smt", "SMT"),
    ("max_frequency_hz", "highest frequency"),
    ("cpufreq_driver", "frequency driver"),
    ("cpufreq_governor", "governor"),
    ("memory_total", "memory"),
    ("numa_nodes", "NUMA nodes"),
    ("transparent_hugepages", "huge pages"),
    ("kernel_release", "kernel"),
    ("kernel_cmdline", "boot parameters"),
    ("mitigations", "mitigations"),
    ("hypervisor", "hypervisor"),
    ("distribution", "distribution"),
];

impl Machine {
    /// The facts in table `host` and in `run.json`.
    pub fn of(run: &StoredRun, summary: &Summary) -> Self {
        let mut facts: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
        let mut add = |what, value: String| {
            facts.entry(what).or_default().insert(value);
        };
        let columns = COLUMNS.map(|(column, _)| column);
        for host in run.hosts.iter() {
            let _ = run.read("host", host, &columns, |batch| {
                for (column, what) in COLUMNS {
                    let values = Texts::of(batch, column);
                    for row in 0..batch.num_rows() {
                        if let Some(value) = values.get(row) {
                            add(what, value.to_owned());
                        }
                    }
                }
            });
        }
        let identity = &summary.identity;
        add("profiler", identity.version.clone());
        add("nodes", summary.nodes.len().to_string());
        if let Some(interval) = identity.interval_ns {
            add("interval", crate::support::units::format_ns(interval));
        }
        let sources = identity.sources.iter();
        let missing: BTreeSet<_> = sources.map(|(_, source)| source.name.as_str()).collect();
        add(
            "incomplete sources",
            missing.into_iter().collect::<Vec<_>>().join(", "),
        );
        let get = |name| summary.target.get(name);
        if let Some(cpus) = get("allowed_cpus") {
            add("allowed CPUs", cpus.to_string());
        }
        if let Some(bytes) = get("memory_limit_bytes") {
            add("memory limit", Unit::Bytes.format(bytes));
        }
        // Other processes of the node, as a share of its CPUs.
        if let (Some(all), Some(idle), Some(own)) = (
            get("node_cpu_hours"),
            get("node_unused_cpu_hours"),
            get("cpu_s"),
        ) && all > 0.0
        {
            let others = (all - idle - own / 3600.0).max(0.0) / all;
            let load = match others {
                share if share < 0.05 => "below 5 %",
                share if share < 0.2 => "5 to 20 %",
                share if share < 0.5 => "20 to 50 %",
                _ => "above 50 %",
            };
            add("load by other processes", load.to_owned());
        }
        Self(facts)
    }
}

/// Facts that differ. A fact that one side does not know is no difference.
pub fn differences(sides: [&[&Measured]; 2]) -> Vec<Difference> {
    let facts = sides.map(|runs| {
        let mut facts: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
        for run in runs {
            for (what, values) in &run.machine.0 {
                facts
                    .entry(what)
                    .or_default()
                    .extend(values.iter().cloned());
            }
        }
        facts
    });
    let differ = facts[0].iter().filter_map(|(what, a)| {
        let b = facts[1].get(what)?;
        (a != b).then(|| Difference {
            what,
            a: a.iter().cloned().collect(),
            b: b.iter().cloned().collect(),
        })
    });
    differ.collect()
}
