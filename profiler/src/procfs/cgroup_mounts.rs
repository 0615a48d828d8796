//! Mounted control group hierarchies (`cgroups(7)`).

use std::path::{Path, PathBuf};

use super::mounts::Mount;

/// Directories that are read for a cgroup. Users can nest theirs without limit.
const DEPTH_MAX: usize = 64;

/// Controllers of version 1, to distinguish them from other mount options.
const CONTROLLERS: [&str; 15] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "debug",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Controllers of version 1 in alphabetical order, or `name=…`; empty in version 2.
    pub controllers: Vec<String>,
    pub mount_point: PathBuf,
    /// Cgroup at the mount point; not `/` in some containers.
    pub root: String,
}

impl Hierarchy {
    /// Directory of a cgroup with a path as in `/proc/PID/cgroup`; `None` if it is not below the
    /// mount.
    pub(crate) fn directory(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path.trim_start_matches('/'));
        let below = below.strip_prefix(self.root.trim_matches('/')).ok()?;
        Some(self.mount_point.join(below))
    }

    /// The directories of a cgroup and of those that contain it, innermost first.
    pub(crate) fn with_ancestors(&self, path: &str) -> Vec<PathBuf> {
        let innermost = self.directory(path);
        let all = innermost.iter().flat_map(|directory| directory.ancestors());
        let all = all.take_while(|directory| directory.starts_with(&self.mount_point));
        all.take(DEPTH_MAX).map(Path::to_owned).collect()
    }
}

/// All mounted hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// Hierarchies of version 1, each with one controller or several.
    pub v1: Vec<Hierarchy>,
    /// The hierarchy of version 2.
    pub v2: Option<Hierarchy>,
}

impl Cgroups {
    /// Selects the hierarchies among all mounts. Of several mounts of a hierarchy, the first that
    /// begins at its root is used, otherwise the first.
    pub(crate) fn new(mounts: &[Mount]) -> Self {
        let mut cgroups = Self::default();
        let whole_first = mounts.iter().filter(|mount| mount.root == Path::new("/"));
        let whole_first =
            whole_first.chain(mounts.iter().filter(|mount| mount.root != Path::new("/")));
        for mount in whole_first {
            let hierarchy = |controllers| Hierarchy {
                controllers,
                mount_point: mount.mount_point.clone(),
                root: mount.root.to_string_lossy().into_owned(),
            };
            match &mount.fstype[..] {
                "cgroup2" => {
                    cgroups.v2.get_or_insert_with(|| hierarchy(Vec::new()));
                }
                "cgroup" => {
                    let is_controller = |option: &&String| {
                        CONTROLLERS.contains(&&option[..]) || option.starts_with("name=")
                    };
                    let controllers: Vec<_> = mount
                        .options
                        .iter()
                        .filter(is_controller)
                        .cloned()
                        .collect();
                    if !cgroups
                        .v1
                        .iter()
                        .any(|known| known.controllers == controllers)
                    {
                        cgroups.v1.push(hierarchy(controllers));
                    }
                }
                _ => {}
            }
        }
        cgroups
    }

    /// The hierarchy with these controllers, which are separated by commas in any order as in
    /// `/proc/PID/cgroup`.
    pub fn hierarchy(&self, controllers: &str) -> Option<&Hierarchy> {
        if controllers.is_empty() {
            return self.v2.as_ref();
        }
        let mut controllers: Vec<&str> = controllers.split(',').collect();
        controllers.sort_unstable();
        self.v1.iter().find(|hierarchy| {
            let mut known: Vec<&str> = hierarchy.controllers.iter().map(String::as_str).collect();
            known.sort_unstable();
            known == controllers
        })
    }

    /// Setup of the node in the terms of systemd: `v1`, `v2` or `hybrid`.
    pub fn mode(&self) -> Option<&'static str> {
        match (self.v1.is_empty(), &self.v2) {
            (true, Some(_)) => Some("v2"),
            (false, Some(_)) => Some("hybrid"),
            (false, None) => Some("v1"),
            (true, None) => None,
        }
    }
}

/// Hierarchies in directories of tests.
#[cfg(test)]
pub(super) mod fixture {
    use std::fs;

    use super::*;

    pub(in crate::procfs) fn write(directory: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(directory).expect("made");
        for (name, text) in files {
            fs::write(directory.join(name), text).expect("written");
        }
    }

    pub(in crate::procfs) fn hierarchy(
        controllers: &[&str],
        mount_point: &Path,
        root: &str,
    ) -> Hierarchy {
        Hierarchy {
            controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
            mount_point: mount_point.to_owned(),
            root: root.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(fstype: &str, mount_point: &str, root: &str, options: &[&str]) -> Mount {
        Mount {
            source: Some(fstype.into()),
            root: root.into(),
            mount_point: mount_point.into(),
            fstype: fstype.to_owned(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
        }
    }

    #[test]
    fn distinguishes_versions() {
        let cpu = mount(
            "cgroup",
            "/sys/fs/cgroup/cpu,cpuacct",
            "/",
            &["cpu", "cpuacct", "rw", "xattr"],
        );
        let systemd = mount(
            "cgroup",
            "/sys/fs/cgroup/systemd",
            "/",
            &["name=systemd", "rw"],
        );
        let unified = mount("cgroup2", "/sys/fs/cgroup", "/", &["nsdelegate", "rw"]);
        let part = mount("cgroup2", "/run/part", "/system.slice", &["rw"]);
        let v2 = Cgroups::new(&[part, unified.clone()]);
        assert_eq!(
            v2.v2.as_ref().unwrap().mount_point,
            PathBuf::from("/sys/fs/cgroup")
        );
        assert_eq!(v2.mode(), Some("v2"));
        let hybrid = Cgroups::new(&[cpu.clone(), cpu.clone(), systemd, unified]);
        assert_eq!(hybrid.v1.len(), 2);
        assert_eq!(hybrid.v1[0].controllers, ["cpu", "cpuacct"]);
        assert_eq!(hybrid.hierarchy("cpuacct,cpu"), Some(&hybrid.v1[0]));
        assert_eq!(hybrid.hierarchy("name=systemd"), Some(&hybrid.v1[1]));
        assert_eq!(hybrid.hierarchy(""), hybrid.v2.as_ref());
        assert_eq!(hybrid.hierarchy("cpu"), None);
        assert_eq!(hybrid.v1[1].controllers, ["name=systemd"]);
        assert_eq!(hybrid.mode(), Some("hybrid"));
        assert_eq!(Cgroups::new(&[cpu]).mode(), Some("v1"));
        assert_eq!(Cgroups::new(&[]).mode(), None);
    }
}
