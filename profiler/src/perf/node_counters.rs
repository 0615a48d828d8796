//! Counters of CPUs and sockets, opened once at the start of a run.

use std::{collections::BTreeMap, io, sync::Arc};

use super::{
    count::Count,
    machine::Machine,
    open_group::{CounterScope, OpenGroup},
    plan::{EventIndex, Plan},
};

/// An open group, with the indices of its counts.
pub(super) type IndexedGroup = (OpenGroup, Arc<[EventIndex]>);

/// Counters of a CPU or a socket.
#[derive(Debug)]
pub struct UnitCounters {
    /// Number of the CPU or socket.
    pub id: u32,
    /// Time of the last reading, ns of `CLOCK_MONOTONIC`.
    pub read_at: Option<u64>,
    /// Increases of the last reading, by event index; `None` for events that are not open here.
    pub counts: Vec<Option<Count>>,
    groups: Vec<IndexedGroup>,
}

#[derive(Debug, Default)]
pub struct NodeCounters {
    /// CPUs, with `--node`.
    pub cpus: Vec<UnitCounters>,
    /// Sockets, with the instances of uncore PMUs that belong to them.
    pub sockets: Vec<UnitCounters>,
}

impl NodeCounters {
    /// Opens the node-wide groups and, `with_cpus`, the core groups on every CPU. Failures become
    /// notes of the plan.
    pub fn open(plan: &mut Plan, machine: &Machine<'_>, with_cpus: bool) -> Self {
        let events = plan.events.len();
        let mut failed = Vec::new();
        let mut cpus = Vec::new();
        for cpu in machine.cpus.iter().filter(|_| with_cpus) {
            let mut unit = UnitCounters::new(cpu.number, events);
            for group in &plan.core_groups {
                let covered = group.cpus.as_ref();
                if covered.is_some_and(|cpus| !cpus.contains(&cpu.number)) {
                    continue;
                }
                match OpenGroup::open(&group.attributes, CounterScope::Cpu(cpu.number)) {
                    Ok(open) => unit.groups.push((open, group.indices.clone())),
                    Err(error) => failed.push((group.clone(), error.error)),
                }
            }
            cpus.push(unit);
        }
        let mut sockets: BTreeMap<u32, UnitCounters> = BTreeMap::new();
        for node_group in &plan.node_groups {
            let group = &node_group.group;
            match OpenGroup::open(&group.attributes, CounterScope::Cpu(node_group.cpu)) {
                Ok(open) => sockets
                    .entry(node_group.socket)
                    .or_insert_with(|| UnitCounters::new(node_group.socket, events))
                    .groups
                    .push((open, group.indices.clone())),
                Err(error) => failed.push((group.clone(), error.error)),
            }
        }
        for (group, error) in failed {
            plan.note_open_error(&group, &error, machine);
        }
        cpus.retain(|unit| !unit.groups.is_empty());
        Self {
            cpus,
            sockets: sockets.into_values().collect(),
        }
    }

    /// Whether no group is open.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.sockets.is_empty()
    }
}

impl UnitCounters {
    fn new(id: u32, events: usize) -> Self {
        Self {
            id,
            read_at: None,
            counts: vec![None; events],
            groups: Vec::new(),
        }
    }

    /// Replaces [`Self::counts`] by the increases since the previous reading.
    ///
    /// # Errors
    ///
    /// The last error; the other groups are read.
    pub fn read(&mut self) -> io::Result<()> {
        self.counts.fill(None);
        read(&mut self.groups, &mut self.counts)
    }
}

/// Adds the increases of all groups to `counts`. Continues after an error, and returns the last
/// one.
pub(super) fn read(groups: &mut [IndexedGroup], counts: &mut [Option<Count>]) -> io::Result<()> {
    let mut result = Ok(());
    for (group, indices) in groups {
        match group.read() {
            Ok(increase) => {
                for (index, raw) in indices.iter().zip(increase.counts) {
                    let count = counts[*index].get_or_insert_default();
                    count.add(*raw, increase.enabled, increase.running);
                }
            }
            Err(error) => result = Err(error),
        }
    }
    result
}
