//! Memory of control groups, compared with their limits.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    cgroup_limits::{memory_limit, number},
    cgroup_mounts::Cgroups,
    process_cgroup,
};

/// Memory of a cgroup with a limit, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Memory that the kernel cannot reclaim without swapping; below half of the limit, all memory.
    pub used: u64,
    pub limit: u64,
}

impl MemoryUse {
    /// Used part of the limit, percent.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.limit.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// The cgroups that limit the memory of a process, innermost first.
#[derive(Debug)]
pub struct MemoryCgroups(Vec<PathBuf>);

impl MemoryCgroups {
    /// The cgroups of a process from the lines of its `/proc/PID/cgroup`; `None` if memory is not
    /// accounted by cgroup.
    pub fn new(cgroups: &Cgroups, lines: &[u8]) -> Option<Self> {
        let mut directories = Vec::new();
        for line in process_cgroup::lines(lines) {
            let is_memory = |name: &str| name.split(',').any(|name| name == "memory");
            if !line.controllers.is_empty() && !is_memory(line.controllers) {
                continue;
            }
            let Some(hierarchy) = cgroups.hierarchy(line.controllers) else {
                continue;
            };
            directories.extend(hierarchy.with_ancestors(line.path));
        }
        directories.retain(|directory| current(directory).is_some());
        (!directories.is_empty()).then_some(Self(directories))
    }

    /// The cgroup that is closest to its limit; `None` if none has a limit.
    pub fn closest(&self) -> Option<MemoryUse> {
        let uses = self.0.iter().filter_map(|directory| memory_use(directory));
        uses.max_by_key(MemoryUse::percent)
    }
}

fn memory_use(directory: &Path) -> Option<MemoryUse> {
    let limit = memory_limit(directory)?;
    let mut used = current(directory)?;
    // The kernel computes the statistics when they are read: not while half of the limit is free.
    if used > limit / 2 {
        let statistics = fs::read_to_string(directory.join("memory.stat")).ok()?;
        used = used.saturating_sub(reclaimable(&statistics));
    }
    Some(MemoryUse { used, limit })
}

fn current(directory: &Path) -> Option<u64> {
    number(directory, "memory.current").or_else(|| number(directory, "memory.usage_in_bytes"))
}

/// Bytes of `memory.stat` that the kernel takes back when the limit is reached. In version 1, lines
/// with `total_` include the descendants.
fn reclaimable(statistics: &str) -> u64 {
    let value = |name: &str| {
        let mut lines = statistics.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = lines.find(|(found, _)| *found == name)?;
        value.parse::<u64>().ok()
    };
    let names = [
        "total_active_file",
        "total_inactive_file",
        "total_slab_reclaimable",
    ];
    let values = names.map(|name| {
        let of_v2 = name.trim_start_matches("total_");
        value(name).or_else(|| value(of_v2)).unwrap_or(0)
    });
    values.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::cgroup_mounts::fixture::{hierarchy, write};

    #[test]
    fn cgroup_that_is_closest_to_its_limit() {
        let mount = tempfile::tempdir().expect("a directory");
        let statistics = "anon 600\nfile 300\ninactive_file 100\nactive_file 150\n\
                          slab_reclaimable 20\nslab_unreclaimable 9\n";
        let outer = mount.path().join("outer");
        write(
            &outer,
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "970\n"),
                ("memory.stat", statistics),
            ],
        );
        let inner = outer.join("inner");
        let inner_files = [
            ("memory.max", "max\n"),
            ("memory.current", "600\n"),
            ("memory.stat", "anon 600\n"),
        ];
        write(&inner, &inner_files);
        let cgroups = Cgroups {
            v1: Vec::new(),
            v2: Some(hierarchy(&[], mount.path(), "/")),
        };
        let memory = MemoryCgroups::new(&cgroups, b"0::/outer/inner\n").expect("memory");
        let (used, limit) = (700, 1000);
        assert_eq!(memory.closest(), Some(MemoryUse { used, limit }));
        // A limit can be set while the process runs.
        write(&inner, &[("memory.max", "601\n")]);
        let (used, limit) = (600, 601);
        assert_eq!(memory.closest(), Some(MemoryUse { used, limit }));
        assert!(MemoryCgroups::new(&cgroups, b"0::/\n").is_none());
    }

    #[test]
    fn version_1_has_a_hierarchy_for_memory() {
        let mounts = tempfile::tempdir().expect("a directory");
        let [memory, unified] = ["memory", "unified"].map(|name| mounts.path().join(name));
        write(
            &memory.join("job"),
            &[
                ("memory.limit_in_bytes", "4096\n"),
                ("memory.usage_in_bytes", "3000\n"),
                (
                    "memory.stat",
                    "active_file 1\ntotal_inactive_file 400\ntotal_active_file 552\n",
                ),
            ],
        );
        write(
            &memory,
            &[
                ("memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory.usage_in_bytes", "9000\n"),
            ],
        );
        let cgroups = Cgroups {
            v1: vec![hierarchy(&["memory"], &memory, "/")],
            v2: Some(hierarchy(&[], &unified, "/")),
        };
        let memory = MemoryCgroups::new(&cgroups, b"9:memory:/job\n4:cpu:/\n0::/\n");
        let memory = memory.expect("memory");
        let (used, limit) = (2048, 4096);
        let found = memory.closest().expect("a limit");
        assert_eq!(found, MemoryUse { used, limit });
        assert_eq!(found.percent(), 50);
    }
}
