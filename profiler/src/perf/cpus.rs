//! Online CPUs and their place in the topology.

use std::path::Path;

use crate::host::{Host, cpu_list, names, number, text};

/// An online CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub number: u32,
    /// Package; 0 if unknown.
    pub socket: u32,
    /// Core within the package; 0 if unknown.
    pub core: u32,
    /// NUMA node; 0 without NUMA.
    pub node: u32,
}

/// All online CPUs, in ascending order.
pub(super) fn online(host: &Host) -> Vec<Cpu> {
    let directory = host.sysfs.join("devices/system/cpu");
    let list = text(&directory.join("online")).and_then(|list| cpu_list(&list));
    let numbers = list.unwrap_or_default().into_iter();
    let cpus = numbers.filter_map(|cpu| {
        let topology = directory.join(format!("cpu{cpu}/topology"));
        // The file reads -1 if the firmware does not report the value.
        let file = |name| number::<u32>(&topology.join(name)).unwrap_or(0);
        Some(Cpu {
            number: u32::try_from(cpu).ok()?,
            socket: file("physical_package_id"),
            core: file("core_id"),
            node: numa_node(&directory.join(format!("cpu{cpu}"))),
        })
    });
    cpus.collect()
}

/// The NUMA node of a CPU, to which its directory has a link.
fn numa_node(directory: &Path) -> u32 {
    names(directory, "node")
        .iter()
        .find_map(|name| name.strip_prefix("node")?.parse().ok())
        .unwrap_or(0)
}
