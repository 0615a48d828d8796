//! CPUs on which PMUs are opened.

use std::collections::BTreeSet;

use perfevents::{Device, Reduce};

use crate::{
    host::cpu_list,
    perf::{cpus::Cpu, machine::Machine},
};

/// An instance of a PMU.
pub(super) struct Instance {
    /// Index of its device.
    pub(super) device: usize,
    /// CPU on which it is opened.
    pub(super) cpu: Cpu,
}

/// Instances of PMUs: on each CPU of their masks or, depending on `reduce`, on one CPU of each NUMA
/// node, of each socket, or of the machine.
pub(super) fn instances(
    machine: &Machine<'_>,
    devices: &[Device],
    reduce: Reduce,
) -> Vec<Instance> {
    let mut instances = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, device) in devices.iter().enumerate() {
        let mask = device.cpumask().and_then(|list| cpu_list(&list));
        for number in mask.unwrap_or_else(|| vec![0]) {
            let found = machine
                .cpus
                .iter()
                .find(|cpu| usize::try_from(cpu.number) == Ok(number));
            let Some(cpu) = found.copied() else {
                continue;
            };
            let domain = match reduce {
                Reduce::Sum => None,
                Reduce::Numa => Some((cpu.socket, cpu.node)),
                Reduce::Socket => Some((cpu.socket, 0)),
                Reduce::One => Some((0, 0)),
            };
            if domain.is_none_or(|domain| seen.insert(domain)) {
                instances.push(Instance { device: index, cpu });
            }
        }
    }
    instances
}

/// CPUs that a PMU covers; `None` for all.
pub(super) fn covered_cpus(device: &Device) -> Option<Vec<u32>> {
    let cpus = cpu_list(&device.cpus()?)?;
    Some(cpus.into_iter().flat_map(u32::try_from).collect())
}
