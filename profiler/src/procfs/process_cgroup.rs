//! Membership of processes in control groups: `/proc/PID/cgroup` and `cgroup.procs`.

use std::{fs, path::Path};

/// A line of `/proc/PID/cgroup`: `hierarchy:controllers:path` (`cgroups(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Number of the hierarchy; 0 in version 2.
    pub(crate) hierarchy: &'a str,
    /// Controllers of version 1, separated by commas, or `name=…`; empty in version 2.
    pub(crate) controllers: &'a str,
    /// Path below the root of the hierarchy.
    pub(crate) path: &'a str,
}

/// The lines of the file; malformed lines are skipped.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        Some(Line {
            hierarchy: fields.next()?,
            controllers: fields.next()?,
            path: fields.next()?,
        })
    })
}

/// Processes in the cgroup with this directory and in its descendants.
pub(crate) fn members(directory: &Path) -> Vec<u32> {
    let mut members = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let procs = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        members.extend(procs.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
            }
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_contain_colons() {
        let text = "4:cpu,cpuacct:/a:b\n0::/c\ngarbage\n:\n";
        let lines: Vec<_> = lines(text)
            .map(|line| (line.hierarchy, line.controllers, line.path))
            .collect();
        assert_eq!(lines, [("4", "cpu,cpuacct", "/a:b"), ("0", "", "/c")]);
    }

    #[test]
    fn members_of_descendants_are_included() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(root.path().join("a/b")).expect("made");
        fs::write(root.path().join("cgroup.procs"), "1\n").expect("written");
        fs::write(root.path().join("a/b/cgroup.procs"), "22\n3\n").expect("written");
        assert_eq!(members(root.path()), [1, 22, 3]);
        assert!(members(Path::new("/none")).is_empty());
    }
}
