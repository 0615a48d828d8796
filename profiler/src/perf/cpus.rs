//! Online CPUs and their place in the topology.

use std::path::Path;

use crate::host::{Host, cpu_list, names, number, text};

const DIRECTORY: &str = "devices/system/cpu";

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
    let directory = host.sysfs.join(DIRECTORY);
    let cpus = list(host, "online").into_iter().map(|cpu| {
        let topology = directory.join(format!("cpu{cpu}/topology"));
        // The file reads -1 if the firmware does not report the value.
        let file = |name| number::<u32>(&topology.join(name)).unwrap_or(0);
        Cpu {
            number: cpu,
            socket: file("physical_package_id"),
            core: file("core_id"),
            node: numa_node(&directory.join(format!("cpu{cpu}"))),
        }
    });
    cpus.collect()
}

/// Present CPUs that are offline, in ascending order.
pub(super) fn offline(host: &Host) -> Vec<u32> {
    let online = list(host, "online");
    let mut cpus = list(host, "present");
    cpus.retain(|cpu| !online.contains(cpu));
    cpus
}

/// The CPUs in a list of the kernel (`online`, `present`); none if it cannot be read.
pub(super) fn list(host: &Host, name: &str) -> Vec<u32> {
    let list = text(&host.sysfs.join(DIRECTORY).join(name)).and_then(|list| cpu_list(&list));
    let numbers = list.unwrap_or_default().into_iter();
    numbers.flat_map(u32::try_from).collect()
}

/// The NUMA node of a CPU, to which its directory has a link.
fn numa_node(directory: &Path) -> u32 {
    names(directory, "node")
        .iter()
        .find_map(|name| name.strip_prefix("node")?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn present_cpus_that_are_not_online_are_offline() {
        let sysfs = TempDir::new().expect("a directory");
        let host = Host::probe("/proc", sysfs.path(), None);
        assert!(offline(&host).is_empty(), "no lists");
        let directory = sysfs.path().join(DIRECTORY);
        fs::create_dir_all(&directory).expect("made");
        for (online, expected) in [("0-7", &[] as &[u32]), ("0,2-4,7", &[1, 5, 6])] {
            // More CPUs are possible than present.
            for (name, list) in [("possible", "0-63"), ("present", "0-7"), ("online", online)] {
                fs::write(directory.join(name), format!("{list}\n")).expect("written");
            }
            assert_eq!(offline(&host), expected, "{online}");
        }
    }
}
