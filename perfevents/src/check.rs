//! Checks of a table that was read: contradictions, and codes against their recorded words.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Device, Group, Meaning, Uarch,
    group::{CONSTANTS, UNITS},
};

impl Uarch {
    /// Contradictions in the table and references to missing entries.
    pub fn problems(&self, meanings: &BTreeMap<String, Meaning>) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, event) in &self.events {
            let mut wrong = |what: &str| problems.push(format!("event {name}: {what}"));
            if !self.pmus.contains_key(&event.pmu) {
                wrong("its PMU is not in the table");
            }
            if event.alias.is_none() && event.code.is_empty() {
                wrong("neither `code` nor `alias`");
            }
        }
        let used: BTreeSet<_> = self
            .groups
            .values()
            .flat_map(|group| group.events.values())
            .collect();
        // Events of a table that matches no CPU are requested by name.
        let is_generic = self.matches.is_empty();
        for name in self
            .events
            .keys()
            .filter(|name| !used.contains(name) && !is_generic)
        {
            problems.push(format!("event {name}: no group uses it"));
        }
        for (name, group) in &self.groups {
            let found = self.group_problems(group, meanings);
            problems.extend(
                found
                    .into_iter()
                    .map(|what| format!("group {name}: {what}")),
            );
        }
        problems
    }

    /// Events whose `code` does not make their `config`, and those without `config`.
    pub fn encoding_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, event) in self.events.iter().filter(|(_, event)| event.has_encoding()) {
            let mut wrong = |what: String| problems.push(format!("event {name}: {what}"));
            let Some(config) = event.config else {
                wrong("`config` is missing: copy the whole words from a source".to_owned());
                continue;
            };
            let Some(device) = Device::known(self, &event.pmu) else {
                wrong(format!(
                    "layout.rs does not have the fields of PMU {}",
                    event.pmu
                ));
                continue;
            };
            match device.encode(event) {
                Ok(made) if made.config == config => {}
                Ok(made) => wrong(format!(
                    "`code` makes {:x?}, `config` is {config:x?}",
                    made.config
                )),
                Err(error) => wrong(error.to_string()),
            }
        }
        problems
    }

    fn leaders(&self, group: &Group) -> usize {
        let events = group
            .events
            .values()
            .filter_map(|name| self.events.get(name));
        events.filter(|event| event.leads).count()
    }

    fn group_problems(&self, group: &Group, meanings: &BTreeMap<String, Meaning>) -> Vec<String> {
        let mut problems = Vec::new();
        let leaders = self.leaders(group);
        if leaders > 1 {
            problems.push(format!(
                "{leaders} events with `leads`, only one can be the first"
            ));
        }
        let mut unused: BTreeSet<&str> = group.events.keys().map(String::as_str).collect();
        let mut known: BTreeSet<&str> = unused.iter().copied().chain(CONSTANTS).collect();
        for (alias, name) in &group.events {
            if !self.events.contains_key(name) {
                problems.push(format!("there is no event {name}"));
            }
            if CONSTANTS.contains(&alias.as_str()) {
                problems.push(format!("{alias} is the name of a constant"));
            }
        }
        for metric in &group.metrics {
            let name = metric.name.as_str();
            match meanings.get(name) {
                None => problems.push(format!("metric {name} is not in metrics.toml")),
                Some(meaning) if !UNITS.contains(&meaning.unit.as_str()) => {
                    problems.push(format!("metric {name}: unknown unit {}", meaning.unit));
                }
                Some(_) => {}
            }
            for used in metric.formula.names() {
                unused.remove(used);
                if !known.contains(used) {
                    problems.push(format!("metric {name}: unknown name {used}"));
                }
            }
            if !known.insert(name) {
                problems.push(format!(
                    "metric {name}: another metric, an event or a constant has this name"
                ));
            }
        }
        if !group.metrics.is_empty() {
            problems.extend(unused.iter().map(|alias| format!("no metric uses {alias}")));
        }
        problems
    }
}
