//! Counters of CPUs and sockets, opened at the start of a run and when a CPU comes online.

use std::{collections::BTreeMap, io};

use rustix::io::Errno;

use super::{
    count::{Count, add_increase},
    cpus,
    machine::Machine,
    open_group::{CounterScope, OpenError, OpenGroup},
    plan::{PerfGroup, Plan},
};
use crate::host::Host;

/// A group on one CPU.
#[derive(Debug)]
struct PlacedGroup {
    /// `None` while the CPU is offline.
    open: Option<OpenGroup>,
    cpu: u32,
    group: PerfGroup,
}

impl PlacedGroup {
    fn open(group: &PerfGroup, cpu: u32) -> Result<Self, OpenError> {
        Ok(Self {
            open: Some(OpenGroup::open(&group.attributes, CounterScope::Cpu(cpu))?),
            cpu,
            group: group.clone(),
        })
    }

    /// A group that is opened when its CPU comes online.
    fn offline(group: &PerfGroup, cpu: u32) -> Self {
        Self {
            open: None,
            cpu,
            group: group.clone(),
        }
    }

    /// Adds the increases to `counts`; nothing if the CPU is offline or was so since the last reading.
    fn read(&mut self, counts: &mut [Option<Count>]) {
        let Some(open) = &mut self.open else {
            return;
        };
        match open.read() {
            // The kernel detaches the events of a CPU that goes offline: those of a group cannot be
            // read any more, and a single event stands still.
            Ok(increase) if increase.enabled > 0 => {
                add_increase(counts, &self.group.indices, &increase);
            }
            _ => self.open = None,
        }
    }

    fn open_again(&mut self) -> io::Result<()> {
        match Self::open(&self.group, self.cpu) {
            Ok(again) => *self = again,
            // It went offline meanwhile.
            Err(refused) if Errno::from_io_error(&refused.error) == Some(Errno::NODEV) => {}
            Err(refused) => return Err(refused.error),
        }
        Ok(())
    }
}

/// Counters of a CPU or a socket.
#[derive(Debug)]
pub struct UnitCounters {
    /// Number of the CPU or socket.
    pub id: u32,
    /// Time of the last reading, ns of `CLOCK_MONOTONIC`.
    pub read_at: Option<u64>,
    /// Increases of the last reading, by event index; `None` for events that are not open here.
    pub counts: Vec<Option<Count>>,
    groups: Vec<PlacedGroup>,
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
                if !group.covers(cpu.number) {
                    continue;
                }
                match PlacedGroup::open(group, cpu.number) {
                    Ok(open) => unit.groups.push(open),
                    Err(error) => failed.push((group.clone(), error.error)),
                }
            }
            cpus.push(unit);
        }
        // Groups that no online CPU accepts are not tried again.
        let is_open = |group: &&PerfGroup| {
            let mut open = cpus.iter().flat_map(|unit: &UnitCounters| &unit.groups);
            open.any(|placed| placed.group.indices == group.indices)
        };
        let groups: Vec<_> = plan.core_groups.iter().filter(is_open).collect();
        for &cpu in machine.offline.iter().filter(|_| with_cpus) {
            let mut unit = UnitCounters::new(cpu, events);
            let of_cpu = groups.iter().filter(|group| group.covers(cpu));
            unit.groups
                .extend(of_cpu.map(|group| PlacedGroup::offline(group, cpu)));
            cpus.push(unit);
        }
        let mut sockets: BTreeMap<u32, UnitCounters> = BTreeMap::new();
        for node_group in &plan.node_groups {
            let group = &node_group.group;
            match PlacedGroup::open(group, node_group.cpu) {
                Ok(open) => sockets
                    .entry(node_group.socket)
                    .or_insert_with(|| UnitCounters::new(node_group.socket, events))
                    .groups
                    .push(open),
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

    /// Opens the groups of CPUs that have come online. They count from the next reading.
    ///
    /// # Errors
    ///
    /// The first error, with the CPU; the other groups are opened.
    pub fn open_online(&mut self, host: &Host) -> Result<(), (u32, io::Error)> {
        let units = self.cpus.iter_mut().chain(&mut self.sockets);
        let mut closed = units
            .flat_map(|unit| &mut unit.groups)
            .filter(|group| group.open.is_none())
            .peekable();
        if closed.peek().is_none() {
            return Ok(());
        }
        let online = cpus::list(host, "online");
        let mut result = Ok(());
        for group in closed.filter(|group| online.contains(&group.cpu)) {
            let opened = group.open_again();
            result = result.and(opened.map_err(|error| (group.cpu, error)));
        }
        result
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
    pub fn read(&mut self) {
        self.counts.fill(None);
        for group in &mut self.groups {
            group.read(&mut self.counts);
        }
    }
}
