//! Planning of the selected groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use perfevents::{CORE_PMU, Catalog, Device, Event, Group, SOFTWARE_PMU, Uarch};
use rustix::io::Errno;

use super::{
    EventIndex, GroupPlan, MULTIPLEXED, Metric, NOT_BY_DEFAULT, NodeGroup, PerfGroup, Plan,
    instances::{Instance, covered_cpus, instances},
    user_and_kernel,
};
use crate::{
    perf::{
        Error,
        machine::{CoreKind, Machine},
        open_error,
        selection::Selection,
    },
    schema::Label,
};

/// Remedy of a missing uncore PMU.
const LOAD_UNCORE: &str = "load the kernel module (modprobe intel_uncore, amd_uncore, arm_cmn …); \
                           most virtual machines have no such PMU";

/// Aliases of events that are opened together, by PMU.
type AliasGroups<'a> = BTreeMap<&'a str, Vec<Vec<&'a str>>>;

/// A group of an event table.
#[derive(Clone, Copy)]
struct TableGroup<'a> {
    table: &'a Uarch,
    label: &'a Label,
    group: &'a Group,
}

impl Plan {
    /// Plans the selected groups and events.
    ///
    /// # Errors
    ///
    /// If a given group or event is unknown, or its PMU is missing.
    pub fn new(machine: &Machine<'_>, selection: &Selection) -> Result<Self, Error> {
        let mut plan = Self::default();
        if machine.has_core_pmu() && machine.kinds.is_empty() && !selection.is_explicit() {
            let reason =
                "this CPU has no event table: only the kernel's generic events are counted";
            let remedy = "add a table for this CPU: docs/perfevents.md";
            plan.note(None, reason.to_owned(), remedy);
        }
        for name in selection.group_names(&machine.tables())? {
            for kind in &machine.kinds {
                let Some(group) = kind.table.groups.get(name) else {
                    continue;
                };
                if selection.is_optional(name) && !group.fits(kind.table, machine.room) {
                    plan.note(Some(name), NOT_BY_DEFAULT.to_owned(), "");
                } else {
                    plan.add_group(machine, kind, name, group);
                }
            }
            let generic = machine.generic.and_then(|table| {
                let group = table.groups.get(name)?;
                let device = None;
                Some((CoreKind { table, device }, group))
            });
            if let Some((kind, group)) = generic {
                plan.add_group(machine, &kind, name, group);
            }
        }
        for items in &selection.events.0 {
            plan.add_custom_events(machine, items)?;
        }
        Ok(plan)
    }

    fn add_group(&mut self, machine: &Machine<'_>, kind: &CoreKind<'_>, name: &str, group: &Group) {
        let alias_groups = group.bundles(kind.table, machine.room);
        let label = Label::from(name.to_owned());
        let group = TableGroup {
            table: kind.table,
            label: &label,
            group,
        };
        let events = group.group.resolve(group.table);
        if events.values().any(|event| !event.is_core()) {
            self.add_node_groups(machine, group, &alias_groups);
        } else {
            self.add_core_groups(machine, kind, group, &alias_groups);
        }
    }

    /// Adds a group of core events, once for each kind of core that its PMUs cover.
    fn add_core_groups(
        &mut self,
        machine: &Machine<'_>,
        kind: &CoreKind<'_>,
        group: TableGroup<'_>,
        alias_groups: &AliasGroups<'_>,
    ) {
        let devices = |pmu: &str| match (pmu, &kind.device) {
            (CORE_PMU, Some(device)) => vec![device.clone()],
            _ => Device::all(&machine.host.sysfs, pmu),
        };
        let kinds = alias_groups
            .keys()
            .filter(|pmu| **pmu != SOFTWARE_PMU || alias_groups.len() == 1)
            .map(|pmu| devices(pmu).len())
            .min()
            .unwrap_or(0);
        if kinds == 0 {
            self.note_no_pmu(machine);
        } else if alias_groups.values().any(|groups| groups.len() > 1) {
            self.note(Some(group.label.as_str()), MULTIPLEXED.to_owned(), "");
        }
        for index in 0..kinds {
            let mut events = BTreeMap::new();
            let mut first_pmu = None;
            for (pmu, groups) in alias_groups {
                let devices = devices(pmu);
                let Some(device) = devices.get(index).or(devices.first()) else {
                    continue;
                };
                let pmu = Label::from(device.name.clone());
                first_pmu.get_or_insert_with(|| pmu.clone());
                for aliases in groups {
                    events.extend(self.add_core_group(group, aliases, device, &pmu));
                }
            }
            if let (Some(pmu), false) = (first_pmu, events.is_empty()) {
                self.groups.push(group.plan(pmu, events, false));
            }
        }
    }

    /// Adds a perf group of core events. Returns the indices of the events by alias.
    fn add_core_group(
        &mut self,
        group: TableGroup<'_>,
        aliases: &[&str],
        device: &Device,
        pmu: &Label,
    ) -> BTreeMap<String, EventIndex> {
        let mut events = BTreeMap::new();
        let mut attributes = Vec::new();
        let mut indices = Vec::new();
        for (alias, name, event) in group.named(aliases) {
            match device.encode(event) {
                Ok(encoding) => {
                    let index = self.add_event(Some(group.label), name, pmu, device.scale(event));
                    events.insert(alias.to_owned(), index);
                    indices.push(index);
                    attributes.push(user_and_kernel(encoding));
                }
                Err(error) => self.note(Some(name), error.to_string(), ""),
            }
        }
        if !attributes.is_empty() {
            self.core_groups.push(PerfGroup {
                indices: indices.into(),
                attributes,
                cpus: covered_cpus(device),
            });
        }
        events
    }

    /// Adds a group with uncore events, on all instances of their PMUs.
    fn add_node_groups(
        &mut self,
        machine: &Machine<'_>,
        group: TableGroup<'_>,
        alias_groups: &AliasGroups<'_>,
    ) {
        let mut events = BTreeMap::new();
        let mut pmus = BTreeSet::new();
        for (pattern, groups) in alias_groups {
            let devices = Device::all(&machine.host.sysfs, pattern);
            let instances = instances(machine, &devices, group.group.reduce);
            if instances.is_empty() {
                if machine.has_core_pmu() {
                    let reason = format!("PMU {pattern} not found");
                    self.note(Some(group.label.as_str()), reason, LOAD_UNCORE);
                } else {
                    self.note_no_pmu(machine);
                }
                continue;
            }
            if groups.len() > 1 {
                self.note(Some(group.label.as_str()), MULTIPLEXED.to_owned(), "");
            }
            let pmu = without_wildcard(pattern);
            pmus.insert(pmu.clone());
            for aliases in groups {
                let pmu = Label::from(pmu.clone());
                events.extend(self.add_node_group(group, aliases, &devices, &instances, &pmu));
            }
        }
        if !events.is_empty() {
            let pmu = pmus.into_iter().collect::<Vec<_>>().join("+");
            self.groups.push(group.plan(pmu.into(), events, true));
        }
    }

    /// Adds a perf group of uncore events on each instance. Returns the indices of the events by
    /// alias.
    fn add_node_group(
        &mut self,
        group: TableGroup<'_>,
        aliases: &[&str],
        devices: &[Device],
        instances: &[Instance],
        pmu: &Label,
    ) -> BTreeMap<String, EventIndex> {
        let events = group.named(aliases);
        let scale = |event| devices.first().and_then(|device| device.scale(event));
        let indices: Arc<[EventIndex]> = events
            .iter()
            .map(|(_, name, event)| self.add_event(Some(group.label), name, pmu, scale(event)))
            .collect();
        for instance in instances {
            let device = &devices[instance.device];
            let attributes: Result<Vec<_>, _> = events
                .iter()
                .map(|(_, _, event)| device.encode(event).map(user_and_kernel))
                .collect();
            match attributes {
                Ok(attributes) => self.node_groups.push(NodeGroup {
                    group: PerfGroup {
                        indices: indices.clone(),
                        attributes,
                        cpus: None,
                    },
                    cpu: instance.cpu.number,
                    socket: instance.cpu.socket,
                }),
                Err(error) => self.note(Some(group.label.as_str()), error.to_string(), ""),
            }
        }
        let aliases = events.iter().map(|(alias, ..)| (*alias).to_owned());
        aliases.zip(indices.iter().copied()).collect()
    }

    fn note_no_pmu(&mut self, machine: &Machine<'_>) {
        self.note(
            None,
            "no PMU found, hardware events cannot be counted".to_owned(),
            &open_error::remedy(&Errno::NODEV.into(), machine.host),
        );
    }
}

impl<'a> TableGroup<'a> {
    /// Alias, name and event for each alias.
    fn named(self, aliases: &[&'a str]) -> Vec<(&'a str, &'a str, &'a Event)> {
        let event = |alias: &&'a str| {
            let name = self.group.events.get(*alias)?;
            Some((*alias, name.as_str(), self.table.events.get(name)?))
        };
        aliases.iter().filter_map(event).collect()
    }

    fn plan(
        self,
        pmu: Label,
        events: BTreeMap<String, EventIndex>,
        is_node_wide: bool,
    ) -> GroupPlan {
        let metrics = self.group.metrics.iter().map(|metric| Metric {
            name: Label::from(metric.name.clone()),
            unit: Catalog::meanings()
                .get(&metric.name)
                .map_or(Label::Static(""), |meaning| {
                    Label::from(meaning.unit.clone())
                }),
            formula: metric.formula.clone(),
        });
        GroupPlan {
            name: self.label.clone(),
            pmu,
            events,
            metrics: metrics.collect(),
            is_node_wide,
        }
    }
}

/// Name of a PMU in rows: `uncore_imc` for `uncore_imc_*`.
fn without_wildcard(pattern: &str) -> String {
    pattern.replace("_*", "").replace('*', "")
}
