//! The counting plan of a run: the selected groups and events, arranged in groups that the PMUs of
//! this machine can hold.

mod build;
mod custom_events;
mod instances;
pub mod node_cycles;
mod probe;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc};

use perfevents::{Encoding, Formula};

use super::{count::Count, machine::Machine, open_error, open_group::Attributes};
use crate::schema::Label;

/// Index into [`Plan::events`] and into counts.
pub type EventIndex = usize;

/// An event of a plan.
#[derive(Clone, Debug)]
pub struct PlannedEvent {
    /// Group; `None` for a custom event.
    pub group: Option<Label>,
    /// Name.
    pub event: Label,
    /// PMU that counts it; without the number if it is counted by several instances.
    pub pmu: Label,
    /// Value of one count in the event's unit; `None` if unknown, and then no count has a value.
    pub scale: Option<f64>,
}

impl PlannedEvent {
    /// The value of a count in the event's unit.
    pub fn value(&self, count: &Count) -> Option<f64> {
        Some(count.value()? * self.scale?)
    }
}

/// Events that are opened as one group of the kernel.
#[derive(Clone, Debug)]
pub struct PerfGroup {
    pub indices: Arc<[EventIndex]>,
    /// Attributes of the events, in the same order.
    pub attributes: Vec<Attributes>,
    /// CPUs of the PMU; `None` for all.
    pub cpus: Option<Vec<u32>>,
}

impl PerfGroup {
    /// Whether the PMU counts on a CPU.
    pub fn covers(&self, cpu: u32) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }
}

/// A perf group that is opened once, on a CPU, for a part of the node: an instance of an uncore
/// PMU, or the CPU itself.
#[derive(Clone, Debug)]
pub struct NodeGroup {
    /// Events.
    pub group: PerfGroup,
    /// CPU on which it is opened.
    pub cpu: u32,
    /// Socket to which it belongs.
    pub socket: u32,
}

/// A metric of a group.
#[derive(Clone, Debug)]
pub struct Metric {
    pub name: Label,
    pub unit: Label,
    pub formula: Formula,
}

/// A group of an event table, on one kind of core or node-wide.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    pub name: Label,
    /// PMU that counts it.
    pub pmu: Label,
    /// Events by their names in formulas.
    pub events: BTreeMap<String, EventIndex>,
    /// Metrics, in order of evaluation.
    pub metrics: Vec<Metric>,
    /// Whether it counts parts of the node, whatever the target is.
    pub is_node_wide: bool,
}

/// Everything that a run counts.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub events: Vec<PlannedEvent>,
    /// Groups that are opened on each thread or CPU.
    pub core_groups: Vec<PerfGroup>,
    /// Groups that are opened once.
    pub node_groups: Vec<NodeGroup>,
    /// Groups of the tables, with their metrics.
    pub groups: Vec<GroupPlan>,
    /// Events that are omitted or multiplexed.
    pub notes: Vec<Note>,
    /// Remedy of the first note that has one.
    pub remedy: String,
}

/// Reason for which groups or events are omitted or multiplexed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Groups or events; empty if it applies to all.
    pub items: Vec<String>,
    pub reason: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.items.is_empty() {
            write!(f, "{}: ", self.items.join(", "))?;
        }
        f.write_str(&self.reason)
    }
}

/// Reason of a note.
const MULTIPLEXED: &str = "more events than counters, multiplexed";
/// Reason of a note.
const NOT_BY_DEFAULT: &str = "more events than counters, not counted by default";

impl Plan {
    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.core_groups.is_empty() && self.node_groups.is_empty()
    }

    /// All notes in one line.
    pub fn reasons(&self) -> String {
        let notes: Vec<_> = self.notes.iter().map(Note::to_string).collect();
        notes.join("; ")
    }

    /// Adds a note for `item`, or for all events. Items with the same reason share a note.
    fn note(&mut self, item: Option<&str>, reason: String, remedy: &str) {
        let same_reason = self
            .notes
            .iter_mut()
            .find(|note| note.reason == reason && note.items.is_empty() == item.is_none());
        match (same_reason, item) {
            (Some(note), Some(item)) if note.items.iter().all(|known| known != item) => {
                note.items.push(item.to_owned());
            }
            (Some(_), _) => {}
            (None, item) => self.notes.push(Note {
                items: item.map(str::to_owned).into_iter().collect(),
                reason,
            }),
        }
        if self.remedy.is_empty() {
            remedy.clone_into(&mut self.remedy);
        }
    }

    /// Omits the events of energy meters: of the PMUs `power` (RAPL) and `power_core`.
    pub fn omit_energy(&mut self, reason: &str) {
        let events = &self.events;
        let is_meter = |group: &PerfGroup| {
            let mut pmus = group
                .indices
                .iter()
                .map(|index| events[*index].pmu.as_str());
            pmus.any(|pmu| pmu.starts_with("power"))
        };
        let core = self.core_groups.extract_if(.., |group| is_meter(group));
        let node = self
            .node_groups
            .extract_if(.., |group| is_meter(&group.group))
            .map(|group| group.group);
        let omitted: Vec<_> = core
            .chain(node)
            .flat_map(|group| group.indices.to_vec())
            .collect();
        for index in omitted {
            let event = self.events[index].event.clone();
            self.note(Some(event.as_str()), reason.to_owned(), "");
        }
    }

    /// Adds a note for each event of a group that cannot be opened.
    pub(super) fn note_open_error(
        &mut self,
        group: &PerfGroup,
        error: &std::io::Error,
        machine: &Machine<'_>,
    ) {
        for index in &*group.indices {
            let event = self.events[*index].event.clone();
            let reason = open_error::explain(error, machine.host);
            let remedy = open_error::remedy(error, machine.host);
            self.note(Some(event.as_str()), reason, &remedy);
        }
    }

    fn add_event(
        &mut self,
        group: Option<&Label>,
        event: &str,
        pmu: &Label,
        scale: Option<f64>,
    ) -> EventIndex {
        if scale.is_none() {
            let reason = format!(
                "PMU {} has no scale for this event (events/*.scale)",
                pmu.as_str()
            );
            self.note(Some(event), reason, "");
        }
        self.events.push(PlannedEvent {
            group: group.cloned(),
            event: Label::from(event.to_owned()),
            pmu: pmu.clone(),
            scale,
        });
        self.events.len() - 1
    }
}

/// Attributes of an event that is counted in user space and in the kernel.
fn user_and_kernel(encoding: Encoding) -> Attributes {
    Attributes {
        encoding,
        user: true,
        kernel: true,
    }
}
