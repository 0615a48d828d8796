//! Sockets, cores, caches and NUMA nodes (Documentation/ABI/stable/sysfs-devices-system-cpu and
//! sysfs-devices-node).

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::Path,
};

use serde::Serialize;

use crate::{
    host::{cpu_list, names, number, text},
    procfs::file,
};

/// Numbers of packages, cores and hardware threads with an online CPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) sockets: Option<u32>,
    pub(super) cores: Option<u32>,
    pub(super) threads: Option<u32>,
    /// Cores of each package; `None` if packages differ.
    pub(super) cores_per_socket: Option<u32>,
    /// Online threads of each core; `None` if cores differ.
    pub(super) threads_per_core: Option<u32>,
    pub(super) smt: Option<bool>,
}

impl Counts {
    pub(super) fn read(sysfs: &Path) -> Self {
        let directory = sysfs.join("devices/system/cpu");
        let online = online(sysfs);
        let mut sockets: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        let mut cores: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for &cpu in &online {
            let topology = directory.join(format!("cpu{cpu}/topology"));
            // -1 if the firmware does not report it.
            let socket = number(&topology.join("physical_package_id"));
            // Before kernel 5.2: thread_siblings_list.
            let siblings = text(&topology.join("core_cpus_list"))
                .or_else(|| text(&topology.join("thread_siblings_list")));
            if let Some(socket) = socket {
                sockets.entry(socket).or_default().extend(siblings.clone());
            }
            if let Some(siblings) = siblings {
                cores.entry(siblings).or_default().insert(cpu);
            }
        }
        let count = |count: usize| u32::try_from(count).ok().filter(|&count| count > 0);
        let cores_per_socket = common(sockets.values().map(BTreeSet::len));
        let threads_per_core = common(cores.values().map(BTreeSet::len));
        let (cores, threads) = (count(cores.len()), count(online.len()));
        Self {
            sockets: count(sockets.len()),
            cores,
            threads,
            cores_per_socket: cores_per_socket.and_then(count),
            threads_per_core: threads_per_core.and_then(count),
            smt: match number::<u32>(&directory.join("smt/active")) {
                Some(active) => Some(active != 0),
                None => cores.zip(threads).map(|(cores, threads)| threads > cores),
            },
        }
    }
}

/// The value of all; `None` if they differ.
fn common(mut values: impl Iterator<Item = usize>) -> Option<usize> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

/// Online CPUs.
fn online(sysfs: &Path) -> Vec<usize> {
    text(&sysfs.join("devices/system/cpu/online"))
        .and_then(|list| cpu_list(&list))
        .unwrap_or_default()
}

/// One cache, which several CPUs may share.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cache {
    pub(crate) level: u32,
    pub(crate) r#type: String,
    pub(crate) size: Option<u64>,
    pub(crate) line: Option<u64>,
    pub(crate) ways: Option<u64>,
    pub(crate) shared_cpus: String,
}

/// All caches, by level, then by CPU.
pub(crate) fn caches(sysfs: &Path) -> Vec<Cache> {
    let mut seen = HashSet::new();
    let mut caches = Vec::new();
    for cpu in online(sysfs) {
        let directory = sysfs.join(format!("devices/system/cpu/cpu{cpu}/cache"));
        for index in names(&directory, "index") {
            let index = directory.join(index);
            let word = |file: &str| text(&index.join(file));
            let (Some(level), Some(shared_cpus)) =
                (number(&index.join("level")), word("shared_cpu_list"))
            else {
                continue;
            };
            let r#type = word("type").unwrap_or_default();
            if !seen.insert((level, r#type.clone(), shared_cpus.clone())) {
                continue;
            }
            caches.push(Cache {
                level,
                r#type,
                // 0 if the firmware does not report it.
                size: word("size")
                    .and_then(|size| bytes(&size))
                    .filter(|&size| size > 0),
                line: number(&index.join("coherency_line_size")).filter(|&line| line > 0),
                ways: number(&index.join("ways_of_associativity")).filter(|&ways| ways > 0),
                shared_cpus,
            });
        }
    }
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// Parses `32K` or `2M`.
fn bytes(size: &str) -> Option<u64> {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &size[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct NumaNode {
    node: usize,
    cpus: Option<String>,
    memory: Option<u64>,
    distances: Vec<u32>,
}

/// Online nodes; some have no CPU, some no memory.
pub(super) fn numa(sysfs: &Path) -> Vec<NumaNode> {
    let directory = sysfs.join("devices/system/node");
    let online = text(&directory.join("online")).and_then(|list| cpu_list(&list));
    let nodes = online.unwrap_or_default().into_iter().map(|node| {
        let directory = directory.join(format!("node{node}"));
        let distances = text(&directory.join("distance")).unwrap_or_default();
        NumaNode {
            node,
            cpus: text(&directory.join("cpulist")),
            memory: std::fs::read(directory.join("meminfo"))
                .ok()
                .and_then(|text| memory(&text)),
            distances: distances.split_whitespace().flat_map(str::parse).collect(),
        }
    });
    nodes.collect()
}

/// Memory of a node in bytes, from the line `Node 0 MemTotal:       24684084 kB`.
fn memory(meminfo: &[u8]) -> Option<u64> {
    let line = file::lines(meminfo).find_map(|line| {
        let words: Vec<_> = file::words(line).collect();
        let [b"Node", _, b"MemTotal:", kib, b"kB"] = words[..] else {
            return None;
        };
        Some(kib)
    });
    file::number(line?)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_their_unit() {
        assert_eq!(bytes("32K"), Some(32_768));
        assert_eq!(bytes("2M"), Some(2 << 20));
        assert_eq!(bytes("64"), Some(64));
        for bad in [
            "",
            "K",
            "-1K",
            "1KB",
            "1.5M",
            "99999999999999999999K",
            "18446744073709551615K",
        ] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn memory_of_a_node_is_parsed() {
        let text = b"Node 0 MemTotal:       24684084 kB\nNode 0 MemFree: 1 kB\n";
        assert_eq!(memory(text), Some(24_684_084 * 1024));
        assert_eq!(memory(b"Node 0 MemTotal: x kB\n"), None);
        assert_eq!(memory(b"Node 0 MemTotal:\n"), None);
    }
}
