//! Cycles of the whole node in addition to those of the target, for shares by cycles.

use std::sync::Arc;

use perfevents::{Device, Term};

use super::{NodeGroup, PerfGroup, Plan, user_and_kernel};
use crate::{
    perf::{cpus::Cpu, machine::Machine, open_group::Attributes},
    schema::Label,
};

/// Group and event of the target's cycles.
pub const TARGET_CYCLES: [&str; 2] = ["HW", "cpu-cycles"];
/// Group and event of the node's cycles.
pub const NODE_CYCLES: [&str; 2] = ["NODE", "cycles"];

/// The event of cycles on a PMU.
struct CyclesEvent {
    pmu: Label,
    attributes: Attributes,
    /// CPUs of the PMU; `None` for all.
    cpus: Option<Vec<u32>>,
}

impl Plan {
    /// Adds the cycles of every CPU, if the target's are counted.
    pub fn add_node_cycles(&mut self, machine: &Machine<'_>) {
        let in_target = self.target_cycles();
        if in_target.is_empty() {
            return;
        }
        let cycles = match aperf(machine) {
            Some(event) => vec![event],
            None => in_target,
        };
        let [group, event] = NODE_CYCLES;
        for CyclesEvent {
            pmu,
            attributes,
            cpus,
        } in cycles
        {
            let index = self.add_event(Some(&Label::Static(group)), event, &pmu, Some(1.0));
            let group = PerfGroup {
                indices: Arc::new([index]),
                attributes: vec![attributes],
                cpus: None,
            };
            let is_covered = |cpu: &&Cpu| {
                let cpus = cpus.as_ref();
                cpus.is_none_or(|cpus| cpus.contains(&cpu.number))
            };
            let cpus = machine.cpus.iter().filter(is_covered);
            self.node_groups.extend(cpus.map(|cpu| NodeGroup {
                group: group.clone(),
                cpu: cpu.number,
                socket: cpu.socket,
            }));
        }
    }

    /// The event of the target's cycles on each kind of core.
    fn target_cycles(&self) -> Vec<CyclesEvent> {
        let [group, event] = TARGET_CYCLES;
        let cycles = |perf_group: &PerfGroup| {
            let mut events = perf_group.indices.iter().zip(&perf_group.attributes);
            let (index, attributes) = events.find(|(index, _)| {
                let planned = &self.events[**index];
                planned.event.as_str() == event
                    && planned
                        .group
                        .as_ref()
                        .is_some_and(|own| own.as_str() == group)
            })?;
            Some(CyclesEvent {
                pmu: self.events[*index].pmu.clone(),
                attributes: *attributes,
                cpus: perf_group.cpus.clone(),
            })
        };
        self.core_groups.iter().filter_map(cycles).collect()
    }
}

/// The register of unhalted cycles on x86 (arch/x86/events/msr.c), which occupies no counter.
fn aperf(machine: &Machine<'_>) -> Option<CyclesEvent> {
    let device = Device::named(&machine.host.sysfs, "msr")
        .into_iter()
        .next()?;
    let (encoding, _) = device
        .encode_terms(&[Term::Alias("aperf".to_owned())])
        .ok()?;
    Some(CyclesEvent {
        pmu: Label::from(device.name),
        attributes: user_and_kernel(encoding),
        cpus: None,
    })
}
