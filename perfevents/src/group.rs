//! Groups of events that are counted at the same time, and metrics of their counts.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Event, Formula, Pmu, Uarch, event::CORE_PMU};

/// Events that are counted at the same time.
///
/// ```toml
/// [group.MEM]
/// help = "Traffic of the memory controllers"
/// events = { r = "UNC_M_CAS_COUNT.RD", w = "UNC_M_CAS_COUNT.WR" }
/// metrics = [
///     { name = "mem_bw", formula = "64 * (r + w) / time" },
/// ]
/// ```
#[derive(Clone, Debug)]
pub struct Group {
    /// What the group measures.
    pub help: String,
    /// Limitations.
    pub note: Option<String>,
    /// The events, by their names in the formulas.
    pub events: BTreeMap<String, String>,
    /// The metrics in order: a formula can use the metrics before it.
    pub metrics: Vec<Metric>,
    /// How the counts of several instances are combined.
    pub reduce: Reduce,
}

/// A number that is computed from counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Name; `metrics.toml` has its unit and meaning.
    pub name: String,
    /// Formula over events and metrics of the group.
    pub formula: Formula,
}

/// How the counts of several instances of a PMU, or of several CPUs, are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduce {
    /// Add all.
    #[default]
    Sum,
    /// Each instance counts for its NUMA node: read one per node, and add these.
    Numa,
    /// Each instance counts for its socket: read one per socket, and add these.
    Socket,
    /// Each instance counts for the whole node: read one.
    One,
}

/// Unit and meaning of a metric, the same on every CPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meaning {
    /// One of [`UNITS`].
    pub unit: String,
    /// Meaning.
    pub help: String,
}

/// Units of metrics.
pub const UNITS: [&str; 9] = [
    "1",
    "1/kinstruction",
    "1/s",
    "B/s",
    "FLOP/s",
    "W",
    "cycles/instruction",
    "instructions/cycle",
    "slots",
];

/// Names of constants in formulas.
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

/// Field of events that need one of the core's two off-core response registers in addition to a
/// counter.
const OFFCORE: &str = "offcore_rsp";
const OFFCORE_REGISTERS: usize = 2;

impl Group {
    /// The events by their names in the formulas, without those that are missing in the table.
    pub fn resolve<'a>(&'a self, uarch: &'a Uarch) -> BTreeMap<&'a str, &'a Event> {
        let known =
            |(alias, name): (&'a String, &String)| Some((alias.as_str(), uarch.events.get(name)?));
        self.events.iter().filter_map(known).collect()
    }

    /// Whether all events of each PMU can be counted at the same time, without multiplexing.
    pub fn fits(&self, uarch: &Uarch, room: Room) -> bool {
        self.bundles(uarch, room)
            .values()
            .all(|bundles| bundles.len() == 1)
    }

    /// The names of the events in the formulas, by PMU, in bundles that can be counted at the same
    /// time. An event that must be the first of its bundle is.
    pub fn bundles<'a>(
        &'a self,
        uarch: &'a Uarch,
        room: Room,
    ) -> BTreeMap<&'a str, Vec<Vec<&'a str>>> {
        let mut events: Vec<(&str, &Event)> = self.resolve(uarch).into_iter().collect();
        // Events of fixed counters go with the leading event, and take no programmable counter.
        events.sort_by_key(|(_, event)| (!event.leads, event.fixed.is_none()));
        let mut by_pmu: BTreeMap<&str, Vec<Vec<(&str, &Event)>>> = BTreeMap::new();
        for (alias, event) in events {
            let pmu = uarch.pmus.get(&event.pmu);
            let bundles = by_pmu.entry(&event.pmu).or_default();
            let fitting = bundles.iter_mut().find(|bundle| {
                let with: Vec<_> = bundle
                    .iter()
                    .map(|(_, event)| *event)
                    .chain([event])
                    .collect();
                room.holds(&with, pmu)
            });
            match fitting {
                Some(bundle) => bundle.push((alias, event)),
                None => bundles.push(vec![(alias, event)]),
            }
        }
        let names = |bundle: Vec<(&'a str, _)>| bundle.into_iter().map(|(alias, _)| alias);
        by_pmu
            .into_iter()
            .map(|(pmu, bundles)| {
                let bundles = bundles.into_iter().map(|bundle| names(bundle).collect());
                (pmu, bundles.collect())
            })
            .collect()
    }
}

/// Conditions that determine the number of free counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Whether cores have several threads, which share the counters.
    pub smt: bool,
    /// Whether the kernel's NMI watchdog occupies a counter for cycles: a fixed one if there is one
    /// for cycles.
    pub watchdog: bool,
}

impl Room {
    /// Cores with two threads, the condition that tables are checked for.
    pub const WITH_SMT: Self = Self {
        smt: true,
        watchdog: false,
    };
}

/// The fixed counter of cycles on Intel's processors, which have several fixed counters.
const FIXED_CYCLES: u32 = 1;

impl Room {
    /// Whether the events can be on the counters of one PMU at the same time.
    fn holds(self, events: &[&Event], pmu: Option<&Pmu>) -> bool {
        let Some(pmu) = pmu else {
            return true;
        };
        let Some(mut counters) = pmu
            .counters_without_smt
            .filter(|_| !self.smt)
            .or(pmu.counters)
        else {
            return true;
        };
        let of_core = events.iter().all(|event| event.pmu == CORE_PMU);
        let fixed_taken = self.watchdog && of_core && pmu.fixed > FIXED_CYCLES;
        if self.watchdog && of_core && !fixed_taken {
            counters = counters.saturating_sub(1);
        }
        let offcore = |event: &&&Event| event.pmu == CORE_PMU && event.code.contains_key(OFFCORE);
        if events.iter().filter(offcore).count() > OFFCORE_REGISTERS {
            return false;
        }
        // An event of a fixed counter needs no programmable one, unless the watchdog has the fixed
        // counter.
        let needs = |event: &&Event| match event.fixed {
            None => true,
            Some(fixed) => fixed_taken && fixed == FIXED_CYCLES,
        };
        let wanted: Vec<&Event> = events
            .iter()
            .copied()
            .filter(needs)
            .flat_map(|event| std::iter::repeat_n(event, event.takes as usize))
            .collect();
        // Maximum bipartite matching of events and counters by augmenting paths.
        let mut taken: Vec<Option<usize>> = vec![None; counters as usize];
        (0..wanted.len()).all(|event| {
            let mut tried = vec![false; taken.len()];
            place(event, &wanted, &mut taken, &mut tried)
        })
    }
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
