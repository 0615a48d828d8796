//! Events that are counted together, and what follows from their counts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::{Event, Formula, Pmu, Uarch, event::CORE_PMU};

/// Events that are counted at the same time.
///
/// ```toml
/// [group.MEM]
/// help = "Traffic of the memory controllers"
/// events = {
///     r = "UNC_M_CAS_COUNT.RD",
///     w = "UNC_M_CAS_COUNT.WR",
/// }
/// metrics = [
///     { name = "mem_bw", formula = "64 * (r + w) / time" },
/// ]
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What it tells.
    pub help: String,
    /// What it does not.
    pub note: Option<String>,
    /// The events, by their names in the formulas.
    pub events: BTreeMap<String, String>,
    /// What is computed, in this order: a formula may use the metrics before it.
    #[serde(default)]
    pub metrics: Vec<Metric>,
    /// How counts of several instances become one.
    #[serde(default)]
    pub reduce: Reduce,
}

/// A number that follows from counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its name; `metrics.toml` says what it is.
    pub name: String,
    /// How.
    pub formula: Formula,
}

/// How counts of several instances of a PMU, or of several CPUs, become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduce {
    /// They are added up.
    #[default]
    Sum,
    /// Each counts for its NUMA node: one is read of each node, and those are added up.
    Numa,
    /// Each counts for its socket, likewise.
    Socket,
    /// Each counts for the node: one is read.
    One,
}

/// What a metric is, on whatever CPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meaning {
    /// Its unit: one of [`UNITS`].
    pub unit: String,
    /// What it tells.
    pub help: String,
}

/// Units of metrics.
pub const UNITS: [&str; 8] = [
    "1",
    "1/kinstruction",
    "1/s",
    "B/s",
    "FLOP/s",
    "W",
    "cycles/instruction",
    "slots",
];

/// Names that formulas may use besides those of events and metrics.
pub const CONSTANTS: [&str; 11] = [
    "base_hz",
    "line_size",
    "num_cores",
    "num_cpus",
    "num_numa",
    "num_sockets",
    "slots",
    "smt",
    "sve_bits",
    "time",
    "tsc_hz",
];

/// Events of one core that need a register of their own beside the counter, of which there are two (`OFFCORE_RSP`).
const OFFCORE: &str = "offcore_rsp";
const OFFCORE_REGISTERS: usize = 2;

impl Group {
    /// The events themselves, by their names in the formulas; those that the file does not have are left out.
    pub fn resolve<'a>(&'a self, uarch: &'a Uarch) -> BTreeMap<&'a str, &'a Event> {
        let known =
            |(alias, name): (&'a String, &String)| Some((alias.as_str(), uarch.events.get(name)?));
        self.events.iter().filter_map(known).collect()
    }

    /// Whether all events of each PMU can be counted at the same time; `smt` when cores have several threads.
    pub fn fits(&self, uarch: &Uarch, smt: bool) -> bool {
        let events = self.resolve(uarch);
        let pmus: BTreeSet<_> = events.values().map(|event| event.pmu.as_str()).collect();
        pmus.into_iter().all(|name| {
            let of_pmu = events.values().copied().filter(|event| event.pmu == name);
            let pmu = uarch.pmus.get(name);
            fits(&of_pmu.collect::<Vec<_>>(), pmu, smt)
        })
    }
}

/// Whether the events can be on the counters of one PMU at the same time.
fn fits(events: &[&Event], pmu: Option<&Pmu>, smt: bool) -> bool {
    let Some(counters) = pmu.and_then(|pmu| match pmu.counters_without_smt {
        Some(counters) if !smt => Some(counters),
        _ => pmu.counters,
    }) else {
        return true;
    };
    let offcore = |event: &&&Event| event.pmu == CORE_PMU && event.code.contains_key(OFFCORE);
    if events.iter().filter(offcore).count() > OFFCORE_REGISTERS {
        return false;
    }
    // The fixed counters count theirs anyway.
    let wanted: Vec<&Event> = events
        .iter()
        .filter(|event| event.fixed.is_none())
        .flat_map(|event| std::iter::repeat_n(*event, event.takes as usize))
        .collect();
    // Maximum matching of events and counters: an event may push another to a counter that suits that one as well.
    let mut taken: Vec<Option<usize>> = vec![None; counters as usize];
    (0..wanted.len()).all(|event| {
        let mut tried = vec![false; taken.len()];
        place(event, &wanted, &mut taken, &mut tried)
    })
}

fn place(event: usize, wanted: &[&Event], taken: &mut [Option<usize>], tried: &mut [bool]) -> bool {
    for counter in 0..taken.len() {
        let suits = wanted[event].counters.as_ref().is_none_or(|counters| {
            u32::try_from(counter).is_ok_and(|counter| counters.contains(counter))
        });
        if !suits || std::mem::replace(&mut tried[counter], true) {
            continue;
        }
        let free = match taken[counter] {
            None => true,
            Some(other) => place(other, wanted, taken, tried),
        };
        if free {
            taken[counter] = Some(event);
            return true;
        }
    }
    false
}
