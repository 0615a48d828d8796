//! Checks that processes and cgroups exist.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::{
    bpf::{Roots, Scope},
    failure::{Failure, Reason},
    host::Host,
    procfs::{
        mounts::{Mount, mounts},
        process_cgroup,
        process_file::{self, SMALL_MAX},
    },
};

/// Checks that the processes exist.
///
/// # Errors
///
/// When one does not, is a zombie, or is only a thread of another.
pub fn roots(host: &Host, pids: &[u32]) -> Result<Roots, Failure> {
    let gone = |pid| {
        Failure::new(
            Reason::Target,
            format!("no process {pid} (already exited?)"),
        )
    };
    pids.iter()
        .map(|pid| {
            // Tgid and State come before the groups, of which there can be many.
            let status = process_file::read(&host.procfs, *pid, "status", SMALL_MAX)
                .map_err(|_| gone(*pid))?;
            let status = String::from_utf8_lossy(&status.bytes);
            let field = |name: &str| {
                status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map_or("", str::trim)
            };
            let leader = field("Tgid:");
            if leader.parse() != Ok(*pid) {
                let message = format!("{pid} is a thread of process {leader}: use --pid {leader}");
                return Err(Failure::new(Reason::Target, message));
            }
            if field("State:").starts_with(['Z', 'X']) {
                let message = format!("process {pid} has ended and waits for its parent (zombie)");
                return Err(Failure::new(Reason::Target, message));
            }
            Ok((*pid, 0))
        })
        .collect()
}

/// Finds a cgroup by its path, absolute or below a cgroup mount.
///
/// # Errors
///
/// When there is no such directory, or it is not in a cgroup file system.
pub fn cgroup(host: &Host, path: &Path) -> Result<(PathBuf, Scope), Failure> {
    let fail =
        |what: &str| Failure::new(Reason::Target, format!("cgroup {}: {what}", path.display()));
    let mounts = mounts(&host.procfs).into_iter();
    let mounts: Vec<CgroupMount> = mounts.filter_map(CgroupMount::new).collect();
    if mounts.is_empty() {
        return Err(fail("no cgroup file system is mounted"));
    }
    let below = path.strip_prefix("/").unwrap_or(path);
    let directory = std::iter::once(path.to_owned())
        .filter(|path| path.is_absolute())
        .chain(mounts.iter().map(|mount| mount.point.join(below)))
        .find(|directory| directory.join("cgroup.procs").is_file())
        .ok_or_else(|| fail("not found under any cgroup mount"))?
        .canonicalize()
        .map_err(|error| fail(&error.to_string()))?;
    let mount = mounts
        .iter()
        .filter(|mount| directory.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())
        .ok_or_else(|| fail("not in a cgroup file system"))?;
    let id = fs::metadata(&directory)
        .map_err(|error| fail(&error.to_string()))?
        .ino();
    let hierarchies = process_cgroup::own(&host.procfs)
        .map_err(|error| fail(&format!("/proc/self/cgroup: {error}")))?;
    let hierarchy = mount
        .hierarchy(&hierarchies)
        .ok_or_else(|| fail("its hierarchy is not in /proc/self/cgroup"))?;
    Ok((directory, Scope::Cgroup { id, hierarchy }))
}

/// A mounted cgroup hierarchy.
struct CgroupMount {
    point: PathBuf,
    /// Controllers or name of a v1 hierarchy; `None` for v2.
    options: Option<Vec<String>>,
}

impl CgroupMount {
    fn new(mount: Mount) -> Option<Self> {
        let options = match &mount.fstype[..] {
            "cgroup2" => None,
            "cgroup" => Some(mount.options),
            _ => return None,
        };
        Some(Self {
            point: mount.mount_point,
            options,
        })
    }

    /// Its number, from `hierarchy:controllers:path` lines.
    fn hierarchy(&self, lines: &[u8]) -> Option<u32> {
        let Some(options) = &self.options else {
            return Some(0);
        };
        let is_mounted = |name: &str| options.iter().any(|option| option == name);
        process_cgroup::lines(lines)
            .filter(|line| !line.controllers.is_empty())
            .find(|line| line.controllers.split(',').all(is_mounted))?
            .hierarchy
            .parse()
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies() {
        let mount = |fstype: &str, options: &[&str]| {
            CgroupMount::new(Mount {
                source: None,
                root: "/".into(),
                mount_point: "/sys/fs/cgroup/cpu,cpuacct".into(),
                fstype: fstype.to_owned(),
                options: options.iter().map(|&option| option.to_owned()).collect(),
            })
        };
        let v1 = mount("cgroup", &["cpu", "cpuacct", "nosuid", "rw"]).expect("a cgroup mount");
        assert_eq!(v1.point, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        let lines = b"12:memory:/a\n4:cpu,cpuacct:/b\n1:name=systemd:/c\n0::/d\n";
        assert_eq!(v1.hierarchy(lines), Some(4));
        let v2 = mount("cgroup2", &["rw"]).expect("a cgroup mount");
        assert_eq!(v2.hierarchy(lines), Some(0));
        assert!(mount("ext4", &["rw"]).is_none());
    }

    #[test]
    fn pids() {
        let host = Host::probe("/proc", "/sys", None);
        assert!(roots(&host, &[std::process::id()]).is_ok());
        assert_eq!(
            roots(&host, &[u32::MAX >> 2])
                .expect_err("no such process")
                .reason,
            Reason::Target
        );
    }
}
