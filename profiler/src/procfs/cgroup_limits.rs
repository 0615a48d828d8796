//! Limits of control groups: memory and CPU time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{cgroup_mounts::Cgroups, process_cgroup};

/// Without a limit, version 1 has the largest multiple of the page size.
const UNLIMITED: u64 = 1 << 60;

/// The smallest limits of a cgroup and those that contain it; `None` if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CgroupLimits {
    /// Memory, bytes.
    pub memory: Option<u64>,
    /// CPU time per time.
    pub cpus: Option<f64>,
}

impl CgroupLimits {
    /// Reads the limits of a process from the lines of its `/proc/PID/cgroup`.
    pub(crate) fn read(cgroups: &Cgroups, lines: &[u8]) -> Self {
        let directories = with_ancestors(cgroups, lines).into_iter();
        directories.fold(Self::default(), |limits, (directory, _)| {
            limits.and(Self::of_directory(&directory))
        })
    }

    fn of_directory(directory: &Path) -> Self {
        Self {
            memory: memory_limit(directory),
            cpus: cpu_quota(directory).map(|quota| quota.cpus),
        }
    }

    fn and(self, other: Self) -> Self {
        let smaller = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::min);
        Self {
            memory: self.memory.into_iter().chain(other.memory).min(),
            cpus: smaller(self.cpus, other.cpus),
        }
    }
}

/// The directories of the cgroups of a process, by the lines of its `/proc/PID/cgroup`, and of those
/// that contain them, with their paths below the mount point.
pub(crate) fn with_ancestors(cgroups: &Cgroups, lines: &[u8]) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for line in process_cgroup::lines(lines) {
        let Some(hierarchy) = cgroups.hierarchy(line.controllers) else {
            continue;
        };
        for directory in hierarchy.with_ancestors(line.path) {
            let below = directory.strip_prefix(&hierarchy.mount_point);
            let path = format!("/{}", below.unwrap_or(&directory).display());
            all.push((directory, path));
        }
    }
    all
}

/// A CPU quota.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CpuQuota {
    /// CPU time per time.
    pub(crate) cpus: f64,
    /// Time after which it is renewed, ns.
    pub(crate) period_ns: u64,
}

/// The quota of the cgroup with this directory; `None` without a limit.
pub(crate) fn cpu_quota(directory: &Path) -> Option<CpuQuota> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    let quota = read("cpu.max").or_else(|| {
        let [quota, period] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(read);
        Some(format!("{} {}", quota?, period?))
    });
    parse_quota(&quota?)
}

/// Memory limit of the cgroup with this directory, bytes; `None` without a limit.
pub(super) fn memory_limit(directory: &Path) -> Option<u64> {
    let limit = number(directory, "memory.max");
    let limit = limit.or_else(|| number(directory, "memory.limit_in_bytes"));
    limit.filter(|bytes| *bytes < UNLIMITED)
}

/// The number in a file of a cgroup.
pub(super) fn number(directory: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    text.trim().parse().ok()
}

/// `quota period` in µs; the quota is `max` or negative if there is none.
fn parse_quota(text: &str) -> Option<CpuQuota> {
    let mut words = text.split_whitespace();
    let quota: u32 = words.next()?.parse().ok()?;
    let period: u32 = words.next()?.parse().ok()?;
    (period > 0).then(|| CpuQuota {
        cpus: f64::from(quota) / f64::from(period),
        period_ns: u64::from(period) * 1000,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::cgroup_mounts::fixture::{hierarchy, write};

    #[test]
    fn smallest_limit_of_a_cgroup_and_its_ancestors() {
        let mount = tempfile::tempdir().expect("a directory");
        // In a container, the root of the mount has limits, too.
        write(
            mount.path(),
            &[("memory.max", "3000\n"), ("cpu.max", "150000 100000\n")],
        );
        write(
            &mount.path().join("a"),
            &[("memory.max", "1000\n"), ("cpu.max", "max 100000\n")],
        );
        write(
            &mount.path().join("a/b"),
            &[("memory.max", "max\n"), ("cpu.max", "200000 100000\n")],
        );
        let v2 = |root| Cgroups {
            v1: Vec::new(),
            v2: Some(hierarchy(&[], mount.path(), root)),
        };
        let limited = |memory, cpus| CgroupLimits { memory, cpus };
        let of = |lines: &str| CgroupLimits::read(&v2("/"), lines.as_bytes());
        assert_eq!(of("0::/a/b\n"), limited(Some(1000), Some(1.5)));
        assert_eq!(of("0::/\n"), limited(Some(3000), Some(1.5)));
        assert_eq!(of("4:cpu:/a\ngarbage\n"), limited(None, None));
        let nested = CgroupLimits::read(&v2("/outer"), b"0::/outer/a\n");
        assert_eq!(nested, limited(Some(1000), Some(1.5)));
        for outside in [("/outer", "/elsewhere"), ("/", "/../a"), ("/", "/..")] {
            let (root, path) = outside;
            let limits = CgroupLimits::read(&v2(root), format!("0::{path}\n").as_bytes());
            assert_eq!(limits, limited(None, None), "{outside:?}");
        }
    }

    #[test]
    fn controllers_of_version_1_have_hierarchies_of_their_own() {
        let mounts = tempfile::tempdir().expect("a directory");
        let [memory, cpu] = ["memory", "cpu,cpuacct"].map(|name| mounts.path().join(name));
        write(
            &memory,
            &[("memory.limit_in_bytes", "9223372036854771712\n")],
        );
        write(&memory.join("job"), &[("memory.limit_in_bytes", "4096\n")]);
        write(
            &cpu,
            &[
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
            ],
        );
        write(
            &cpu.join("job"),
            &[
                ("cpu.cfs_quota_us", "50000\n"),
                ("cpu.cfs_period_us", "100000\n"),
            ],
        );
        let cgroups = Cgroups {
            v1: vec![
                hierarchy(&["memory"], &memory, "/"),
                hierarchy(&["cpu", "cpuacct"], &cpu, "/"),
            ],
            v2: None,
        };
        let of = |lines: &str| CgroupLimits::read(&cgroups, lines.as_bytes());
        let both = of("9:memory:/job\n4:cpu,cpuacct:/job\n0::/\n");
        assert_eq!(
            both,
            CgroupLimits {
                memory: Some(4096),
                cpus: Some(0.5)
            }
        );
        assert_eq!(of("9:memory:/\n4:cpu,cpuacct:/\n"), CgroupLimits::default());
    }
}
