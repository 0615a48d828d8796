//! Cycles of the whole node, beside those of the target: whoever shares something out by cycles needs both.

use std::sync::Arc;

use perfevents::{Device, Term};

use super::{
    counters::Attributes,
    machine::{Cpu, Machine},
    plan::{Part, PerfGroup, Plan, everywhere},
};
use crate::schema::Label;

/// Where the cycles of the target are counted: group and event.
pub const OF_TARGET: [&str; 2] = ["HW", "cpu-cycles"];
/// Where those of the node are.
pub const OF_NODE: [&str; 2] = ["NODE", "cycles"];

impl Plan {
    /// Counts the cycles of every CPU as well, if the target's are counted.
    pub fn add_node_cycles(&mut self, machine: &Machine<'_>) {
        let of_target = self.cycles_of_target();
        if of_target.is_empty() {
            return;
        }
        let counted = match aperf(machine) {
            Some((pmu, attributes)) => vec![(pmu, attributes, None)],
            None => of_target,
        };
        let [group, event] = OF_NODE;
        for (pmu, attributes, cpus) in counted {
            let slot = self.add_slot(Some(&Label::Static(group)), event, &pmu, Some(1.0));
            let perf_group = PerfGroup {
                slots: Arc::new([slot]),
                events: vec![attributes],
                cpus: None,
            };
            let has = |cpu: &&Cpu| {
                let cpus: Option<&Vec<u32>> = cpus.as_ref();
                cpus.is_none_or(|cpus| cpus.contains(&cpu.number))
            };
            self.parts
                .extend(machine.cpus.iter().filter(has).map(|cpu| Part {
                    perf_group: perf_group.clone(),
                    cpu: cpu.number,
                    socket: cpu.socket,
                }));
        }
    }

    /// How each kind of core counts them.
    fn cycles_of_target(&self) -> Vec<(Label, Attributes, Option<Vec<u32>>)> {
        let [group, event] = OF_TARGET;
        let of = |perf_group: &PerfGroup| {
            let mut counted = perf_group.slots.iter().zip(&perf_group.events);
            let (slot, attributes) = counted.find(|(slot, _)| {
                let slot = &self.slots[**slot];
                slot.event.as_str() == event
                    && slot.group.as_ref().is_some_and(|own| own.as_str() == group)
            })?;
            let pmu = self.slots[*slot].pmu.clone();
            Some((pmu, *attributes, perf_group.cpus.clone()))
        };
        self.core.iter().filter_map(of).collect()
    }
}

/// x86's register of cycles in which a CPU was not halted: it takes no counter that a group needs
/// (arch/x86/events/msr.c).
fn aperf(machine: &Machine<'_>) -> Option<(Label, Attributes)> {
    let device = Device::named(&machine.host.sysfs, "msr")
        .into_iter()
        .next()?;
    let (encoding, _) = device
        .encode_terms(&[Term::Alias("aperf".to_owned())])
        .ok()?;
    Some((Label::from(device.name), everywhere(encoding)))
}
