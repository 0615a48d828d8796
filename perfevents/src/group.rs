//! Events that are counted together, and what follows from their counts.

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
    /// What it tells.
    pub help: String,
    /// What it does not.
    pub note: Option<String>,
    /// The events, by their names in the formulas.
    pub events: BTreeMap<String, String>,
    /// What is computed, in this order: a formula may use the metrics before it.
    pub metrics: Vec<Metric>,
    /// How counts of several instances become one.
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

    /// Whether all events of each PMU can be counted at the same time.
    pub fn fits(&self, uarch: &Uarch, room: Room) -> bool {
        self.bundles(uarch, room)
            .values()
            .all(|bundles| bundles.len() == 1)
    }

    /// The names of the events in the formulas, by PMU, in bundles that can be counted at the same time. In a bundle, the
    /// first is the one that must be first.
    pub fn bundles<'a>(
        &'a self,
        uarch: &'a Uarch,
        room: Room,
    ) -> BTreeMap<&'a str, Vec<Vec<&'a str>>> {
        let mut events: Vec<(&str, &Event)> = self.resolve(uarch).into_iter().collect();
        // Those of fixed counters belong to the one that leads, and take no room.
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

/// What decides how many counters are free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Whether cores have several threads, which share them.
    pub smt: bool,
    /// Whether the kernel's NMI watchdog counts cycles all the time: on a fixed counter where there is one for that.
    pub watchdog: bool,
}

impl Room {
    /// Where cores have two threads: what a table promises.
    pub const WITH_SMT: Self = Self {
        smt: true,
        watchdog: false,
    };
}

/// The fixed counter of cycles, on Intel's processors, which have several fixed ones.
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
        // The fixed counters count theirs anyway.
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
        // Maximum matching of events and counters: an event may push another to a counter that suits that one as well.
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
