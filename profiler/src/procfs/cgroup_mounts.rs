//! Mounted control group hierarchies (`cgroups(7)`).

use std::{
    cmp::Reverse,
    fs,
    path::{Path, PathBuf},
};

use super::{
    mounts::{Mount, mounts},
    process_cgroup::{self, NamespacePath},
};

/// Directories that are read for a cgroup. Users can nest theirs without limit.
const DEPTH_MAX: usize = 64;

/// Directories of a level among which the root of the namespace is searched.
const SEARCHED_MAX: usize = 4096;

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
    /// Cgroup at the mount point; not the root of the namespace in some containers.
    root: NamespacePath,
    /// Directory of the root of the cgroup namespace; `None` if it is not below the mount, or unknown.
    namespace: Option<PathBuf>,
}

impl Hierarchy {
    /// A mount of the cgroup `root`, relative to the root of the cgroup namespace; `None` for another path
    /// than that of a cgroup.
    pub fn new(controllers: Vec<String>, mount_point: &Path, root: &Path) -> Option<Self> {
        let root = NamespacePath::parse(root)?;
        let is_namespace = root.up == 0 && root.below.as_os_str().is_empty();
        Some(Self {
            controllers,
            namespace: is_namespace.then(|| mount_point.to_owned()),
            mount_point: mount_point.to_owned(),
            root,
        })
    }

    /// Finds the root of the namespace below the mount, by the members of the cgroup of this process.
    fn find_namespace(&mut self, own: &[u8]) {
        let contains_root = self.root.up != 0 && self.root.below.as_os_str().is_empty();
        let mut lines = process_cgroup::lines(own).filter(|line| self.has(line.controllers));
        let own = lines
            .next()
            .and_then(|line| NamespacePath::parse(line.path));
        let Some(own) = own.filter(|own| contains_root && own.up == 0) else {
            return;
        };
        let mut level = vec![self.mount_point.clone()];
        for _ in 0..self.root.up {
            let entries = level
                .iter()
                .filter_map(|directory| fs::read_dir(directory).ok());
            let entries = entries.flatten().flatten();
            let directories =
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            level = directories
                .map(|entry| entry.path())
                .take(SEARCHED_MAX)
                .collect();
        }
        let pid = std::process::id();
        let is_root =
            |root: &PathBuf| process_cgroup::members(&root.join(&own.below)).contains(&pid);
        self.namespace = level.into_iter().find(is_root);
    }

    /// Whether the directories of all cgroups below the mount are found.
    fn is_known(&self) -> bool {
        self.root.up == 0 || self.namespace.is_some()
    }

    /// Whether these are its controllers, which are separated by commas in any order as in
    /// `/proc/PID/cgroup`.
    fn has(&self, controllers: &str) -> bool {
        let mut controllers: Vec<&str> = controllers
            .split(',')
            .filter(|name| !name.is_empty())
            .collect();
        let mut known: Vec<&str> = self.controllers.iter().map(String::as_str).collect();
        controllers.sort_unstable();
        known.sort_unstable();
        known == controllers
    }

    /// Directory of a cgroup with a path as in `/proc/PID/cgroup`; `None` if it is not below the
    /// mount.
    pub(crate) fn directory(&self, path: &Path) -> Option<PathBuf> {
        let path = NamespacePath::parse(path)?;
        if path.up == self.root.up {
            let below = path.below.strip_prefix(&self.root.below).ok()?;
            return Some(self.mount_point.join(below));
        }
        let above = self.namespace.as_ref()?.ancestors().nth(path.up)?;
        let directory = above.join(path.below);
        directory
            .starts_with(&self.mount_point)
            .then_some(directory)
    }

    /// The directories of a cgroup and of those that contain it, innermost first.
    pub(crate) fn with_ancestors(&self, path: &Path) -> Vec<PathBuf> {
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
    /// Reads the mounts of this process.
    pub(crate) fn read(procfs: &Path) -> Self {
        let own = process_cgroup::own(procfs).unwrap_or_default();
        Self::new(&mounts(procfs), &own)
    }

    /// Selects the hierarchies among all mounts; `own` is `/proc/self/cgroup`. Of several mounts of a
    /// hierarchy, the first with most of its cgroups is used.
    fn new(mounts: &[Mount], own: &[u8]) -> Self {
        let hierarchies = mounts.iter().filter_map(|mount| {
            let is_controller = |option: &&String| {
                CONTROLLERS.contains(&&option[..]) || option.starts_with("name=")
            };
            let controllers = match &mount.fstype[..] {
                "cgroup2" => Vec::new(),
                "cgroup" => mount
                    .options
                    .iter()
                    .filter(is_controller)
                    .cloned()
                    .collect(),
                _ => return None,
            };
            let is_v2 = mount.fstype == "cgroup2";
            let mut hierarchy = Hierarchy::new(controllers, &mount.mount_point, &mount.root)?;
            hierarchy.find_namespace(own);
            Some((is_v2, hierarchy))
        });
        let mut hierarchies: Vec<_> = hierarchies.collect();
        hierarchies.sort_by_key(|(_, hierarchy)| {
            let is_part = !hierarchy.root.below.as_os_str().is_empty();
            (!hierarchy.is_known(), is_part, Reverse(hierarchy.root.up))
        });
        let mut cgroups = Self::default();
        for (is_v2, hierarchy) in hierarchies {
            if is_v2 {
                cgroups.v2.get_or_insert(hierarchy);
            } else if !cgroups
                .v1
                .iter()
                .any(|known| known.controllers == hierarchy.controllers)
            {
                cgroups.v1.push(hierarchy);
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
        self.v1.iter().find(|hierarchy| hierarchy.has(controllers))
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
        let controllers = controllers.iter().map(|&name| name.to_owned()).collect();
        Hierarchy::new(controllers, mount_point, Path::new(root)).expect("a cgroup")
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
        let v2 = Cgroups::new(&[part, unified.clone()], b"");
        assert_eq!(
            v2.v2.as_ref().unwrap().mount_point,
            PathBuf::from("/sys/fs/cgroup")
        );
        assert_eq!(v2.mode(), Some("v2"));
        let hybrid = Cgroups::new(&[cpu.clone(), cpu.clone(), systemd, unified], b"");
        assert_eq!(hybrid.v1.len(), 2);
        assert_eq!(hybrid.v1[0].controllers, ["cpu", "cpuacct"]);
        assert_eq!(hybrid.hierarchy("cpuacct,cpu"), Some(&hybrid.v1[0]));
        assert_eq!(hybrid.hierarchy("name=systemd"), Some(&hybrid.v1[1]));
        assert_eq!(hybrid.hierarchy(""), hybrid.v2.as_ref());
        assert_eq!(hybrid.hierarchy("cpu"), None);
        assert_eq!(hybrid.v1[1].controllers, ["name=systemd"]);
        assert_eq!(hybrid.mode(), Some("hybrid"));
        assert_eq!(Cgroups::new(&[cpu], b"").mode(), Some("v1"));
        assert_eq!(Cgroups::new(&[], b"").mode(), None);
    }

    #[test]
    fn cgroups_of_other_namespaces_are_found_below_a_mount_that_has_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let own = directory.path().join("slice/own");
        fs::create_dir_all(directory.path().join("slice/other")).expect("made");
        fixture::write(&own, &[("cgroup.procs", &std::process::id().to_string())]);
        let at = directory.path().to_str().expect("UTF-8");
        let all = mount("cgroup2", at, "/../..", &["rw"]);
        let container = mount("cgroup2", "/container", "/", &["rw"]);
        let find = |mounts: &[&Mount], path: &str| {
            let mounts: Vec<_> = mounts.iter().copied().cloned().collect();
            let v2 = Cgroups::new(&mounts, b"4:cpu:/x\n0::/\n")
                .v2
                .expect("mounted");
            let found = v2.directory(Path::new(path))?;
            found.strip_prefix(at).map(Path::to_owned).ok()
        };
        for mounts in [&[&all][..], &[&container, &all]] {
            for (path, directory) in [
                ("/", "slice/own"),
                ("/below", "slice/own/below"),
                ("/../other", "slice/other"),
                ("/../../slice/other", "slice/other"),
                ("/../..", ""),
            ] {
                let found = find(mounts, path);
                assert_eq!(found.as_deref(), Some(Path::new(directory)), "{path}");
            }
            for outside in ["/../../../other", "/a/../b"] {
                assert_eq!(find(mounts, outside), None, "{outside}");
            }
        }
        fs::remove_file(own.join("cgroup.procs")).expect("removed");
        assert_eq!(find(&[&all], "/"), None);
        assert_eq!(find(&[&all], "/../other"), None);
        assert_eq!(
            find(&[&all], "/../../slice").as_deref(),
            Some(Path::new("slice"))
        );
        // The mount of the container has the own cgroup at least.
        let mounts = [all, container];
        let v2 = Cgroups::new(&mounts, b"0::/\n").v2.expect("mounted");
        assert_eq!(v2.directory(Path::new("/a")), Some("/container/a".into()));
        assert_eq!(v2.directory(Path::new("/../sibling")), None);
    }
}
