//! Tables as they are written: one file each, complete or amending its base.

use std::{collections::BTreeMap, mem};

use serde::Deserialize;

use crate::{
    Event, Group, Match, Metric, Numbers, Origin, Pmu, Reduce, Uarch, WORDS,
    event::CORE_PMU,
    source::{self, Origins},
};

/// One file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventTable {
    name: String,
    vendor: String,
    source: String,
    pub base: Option<String>,
    inherit_sources: Option<Vec<Origin>>,
    #[serde(default)]
    omit_groups: Vec<String>,
    #[serde(rename = "match")]
    matches: Match,
    #[serde(default)]
    pmu: BTreeMap<String, Pmu>,
    #[serde(default)]
    event: BTreeMap<String, EventEntry>,
    #[serde(default)]
    group: BTreeMap<String, GroupEntry>,
}

/// With `help` a complete event, without it an amendment of the inherited one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventEntry {
    help: Option<String>,
    pmu: Option<String>,
    code: Option<BTreeMap<String, u64>>,
    config: Option<u64>,
    config1: Option<u64>,
    alias: Option<String>,
    counters: Option<Numbers>,
    fixed: Option<u32>,
    takes: Option<u32>,
    leads: Option<bool>,
    #[serde(default, deserialize_with = "source::origins")]
    sources: Option<Origins>,
    validated: Option<bool>,
    errata: Option<String>,
}

/// With `help` a complete group, without it an amendment of the inherited one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupEntry {
    help: Option<String>,
    note: Option<String>,
    #[serde(default)]
    events: BTreeMap<String, String>,
    metrics: Option<Vec<Metric>>,
    reduce: Option<Reduce>,
}

/// A table that contradicts its base, or has no value for a required key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventTableError {
    /// `base` names no table.
    #[error("base: there is no table {0}; `profiler events --cpus` lists the built-in ones")]
    UnknownBase(String),
    /// The table is among its own bases.
    #[error("base: {} is a cycle", .0.join(" → "))]
    Cycle(Vec<String>),
    /// `base` without `inherit_sources`.
    #[error("`inherit_sources` is missing: list the sources of {0} that cover this CPU, too")]
    InheritSources(String),
    /// A key that amends a base, without `base`.
    #[error("`{0}` needs `base`")]
    NoBase(&'static str),
    /// `omit_groups` names no group of the base.
    #[error("omit_groups: {base} has no group {group}")]
    UnknownGroup {
        /// The base.
        base: String,
        /// The missing group.
        group: String,
    },
    /// `config1` without `config`.
    #[error("event {0}: `config1` needs `config`")]
    NoConfig(String),
    /// `validated` contradicts `sources`.
    #[error("event {event}: `validated` contradicts `sources`, with {sources} independent ones")]
    Validated {
        /// The event.
        event: String,
        /// The number of its independent sources.
        sources: usize,
    },
    /// An event or group that is neither complete nor inherited.
    #[error("{entry}: `{key}` is required, unless the entry changes one of the base")]
    Incomplete {
        /// `event NAME` or `group NAME`.
        entry: String,
        /// The missing key.
        key: &'static str,
    },
}

impl EventTable {
    /// The microarchitecture, with what it inherits from `base`.
    pub fn into_uarch(self, id: &str, base: Option<&Uarch>) -> Result<Uarch, EventTableError> {
        let mut inherited = match base {
            Some(base) => self.inherit(base)?,
            None if self.inherit_sources.is_some() => {
                return Err(EventTableError::NoBase("inherit_sources"));
            }
            None if !self.omit_groups.is_empty() => {
                return Err(EventTableError::NoBase("omit_groups"));
            }
            None => Inherited::default(),
        };
        let mut groups = mem::take(&mut inherited.groups);
        for (name, entry) in self.group {
            let group = entry.complete(&name, groups.remove(&name))?;
            groups.insert(name, group);
        }
        let mut events = BTreeMap::new();
        for (name, entry) in self.event {
            let event = entry.complete(&name, inherited.events.remove(&name))?;
            events.insert(name, event);
        }
        inherited.events.retain(|name, _| {
            let mut used = groups.values().flat_map(|group| group.events.values());
            used.any(|used| used == name)
        });
        events.append(&mut inherited.events);
        let mut pmus = self.pmu;
        for (name, pmu) in inherited.pmus {
            if events.values().any(|event| event.pmu == name) {
                pmus.entry(name).or_insert(pmu);
            }
        }
        Ok(Uarch {
            id: id.to_owned(),
            name: self.name,
            vendor: self.vendor,
            source: self.source,
            matches: self.matches,
            pmus,
            events,
            groups,
        })
    }

    fn inherit(&self, base: &Uarch) -> Result<Inherited, EventTableError> {
        let Some(origins) = &self.inherit_sources else {
            return Err(EventTableError::InheritSources(base.id.clone()));
        };
        let mut groups = base.groups.clone();
        for group in &self.omit_groups {
            if groups.remove(group).is_none() {
                return Err(EventTableError::UnknownGroup {
                    base: base.id.clone(),
                    group: group.clone(),
                });
            }
        }
        let mut events = base.events.clone();
        for event in events.values_mut() {
            event.errata = None;
            event.origins.retain(|origin, _| origins.contains(origin));
            event.count_sources();
        }
        Ok(Inherited {
            pmus: base.pmus.clone(),
            events,
            groups,
        })
    }
}

/// Entries of the base.
#[derive(Default)]
struct Inherited {
    pmus: BTreeMap<String, Pmu>,
    events: BTreeMap<String, Event>,
    groups: BTreeMap<String, Group>,
}

impl EventEntry {
    fn complete(self, name: &str, inherited: Option<Event>) -> Result<Event, EventTableError> {
        let missing = |key| EventTableError::Incomplete {
            entry: format!("event {name}"),
            key,
        };
        let mut event = match self.help {
            Some(_) if self.sources.is_none() => return Err(missing("sources")),
            Some(help) => Event {
                help,
                pmu: CORE_PMU.to_owned(),
                code: BTreeMap::new(),
                config: None,
                alias: None,
                counters: None,
                fixed: None,
                takes: 1,
                leads: false,
                origins: Origins::new(),
                sources: Vec::new(),
                validated: false,
                errata: None,
            },
            None => inherited.ok_or_else(|| missing("help"))?,
        };
        if let Some(pmu) = self.pmu {
            event.pmu = pmu;
        }
        // `config` and the other words encode `code`, so that a new code replaces all of them.
        if let Some(code) = self.code {
            event.code = code;
            event.config = None;
        }
        match (self.config, self.config1) {
            (Some(config), config1) => {
                let mut words = [0; WORDS];
                words[..2].copy_from_slice(&[config, config1.unwrap_or(0)]);
                event.config = Some(words);
            }
            (None, Some(_)) => return Err(EventTableError::NoConfig(name.to_owned())),
            (None, None) => {}
        }
        event.alias = self.alias.or(event.alias);
        event.counters = self.counters.or(event.counters);
        event.fixed = self.fixed.or(event.fixed);
        event.takes = self.takes.unwrap_or(event.takes);
        event.leads = self.leads.unwrap_or(event.leads);
        event.origins = self.sources.unwrap_or(event.origins);
        event.errata = self.errata.or(event.errata);
        event.count_sources();
        if self
            .validated
            .is_some_and(|validated| validated != event.validated)
        {
            return Err(EventTableError::Validated {
                event: name.to_owned(),
                sources: event.sources.len(),
            });
        }
        Ok(event)
    }
}

impl GroupEntry {
    fn complete(self, name: &str, inherited: Option<Group>) -> Result<Group, EventTableError> {
        let missing = |key| EventTableError::Incomplete {
            entry: format!("group {name}"),
            key,
        };
        let mut group = match self.help {
            Some(_) if self.events.is_empty() => return Err(missing("events")),
            Some(help) => Group {
                help,
                note: None,
                events: BTreeMap::new(),
                metrics: Vec::new(),
                reduce: Reduce::default(),
            },
            None => inherited.ok_or_else(|| missing("help"))?,
        };
        group.note = self.note.or(group.note);
        group.events.extend(self.events);
        group.metrics = self.metrics.unwrap_or(group.metrics);
        group.reduce = self.reduce.unwrap_or(group.reduce);
        Ok(group)
    }
}
