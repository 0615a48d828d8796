//! Membership of processes in control groups: `/proc/PID/cgroup` and `cgroup.procs`.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
    str::from_utf8,
};

use super::process_file::{SMALL_MAX, bounded};

/// A line of `/proc/PID/cgroup`: `hierarchy:controllers:path` (`cgroups(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Number of the hierarchy; 0 in version 2.
    pub(crate) hierarchy: &'a str,
    /// Controllers of version 1, separated by commas, or `name=…`; empty in version 2.
    pub(crate) controllers: &'a str,
    /// Path below the root of the reader's cgroup namespace, of any bytes; that of a cgroup outside of the
    /// namespace begins with `/..`.
    pub(crate) path: &'a Path,
}

/// The lines of the file; malformed lines are skipped.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        Some(Line {
            hierarchy: from_utf8(fields.next()?).ok()?,
            controllers: from_utf8(fields.next()?).ok()?,
            path: Path::new(OsStr::from_bytes(fields.next()?)),
        })
    })
}

/// Reads the file of this process.
pub(crate) fn own(procfs: &Path) -> io::Result<Vec<u8>> {
    Ok(bounded(&procfs.join("self/cgroup"), SMALL_MAX)?.bytes)
}

/// A path relative to the root of a cgroup namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamespacePath {
    /// Levels above the root of the namespace, by leading `..`.
    pub(super) up: usize,
    /// Rest of the path; relative.
    pub(super) below: PathBuf,
}

impl NamespacePath {
    /// Splits a path as the kernel writes it; `None` if `..` is elsewhere than at its begin.
    pub(super) fn parse(path: &Path) -> Option<Self> {
        let names = path.components().filter(|part| *part != Component::RootDir);
        let up = names
            .clone()
            .take_while(|part| *part == Component::ParentDir);
        let up = up.count();
        let below = names.skip(up);
        let is_plain = below
            .clone()
            .all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| Self {
            up,
            below: below.collect(),
        })
    }
}

/// Processes in the cgroup with this directory.
pub(super) fn members(directory: &Path) -> Vec<u32> {
    let procs = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    procs.lines().filter_map(|pid| pid.parse().ok()).collect()
}

/// Processes in the cgroup with this directory and in its descendants.
pub(crate) fn all_members(directory: &Path) -> Vec<u32> {
    let mut all = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        all.extend(members(&directory));
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_contain_colons() {
        let text = b"4:cpu,cpuacct:/a:b\n0::/c\xff\ngarbage\n:\n";
        let lines: Vec<_> = lines(text)
            .map(|line| {
                (
                    line.hierarchy,
                    line.controllers,
                    line.path.as_os_str().as_bytes(),
                )
            })
            .collect();
        assert_eq!(
            lines,
            [("4", "cpu,cpuacct", &b"/a:b"[..]), ("0", "", b"/c\xff")]
        );
    }

    #[test]
    fn paths_outside_of_the_namespace_begin_with_levels_above_it() {
        let parsed = |path: &str| {
            let path = NamespacePath::parse(Path::new(path))?;
            Some((
                path.up,
                path.below.into_os_string().into_string().expect("UTF-8"),
            ))
        };
        for (path, up, below) in [
            ("/", 0, ""),
            ("/a/b", 0, "a/b"),
            ("/../a", 1, "a"),
            ("/../..", 2, ""),
        ] {
            assert_eq!(parsed(path), Some((up, below.to_owned())), "{path}");
        }
        assert_eq!(parsed("/a/../../b"), None);
    }

    #[test]
    fn members_of_descendants_are_included() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(root.path().join("a/b")).expect("made");
        fs::write(root.path().join("cgroup.procs"), "1\n").expect("written");
        fs::write(root.path().join("a/b/cgroup.procs"), "22\n3\n").expect("written");
        assert_eq!(members(root.path()), [1]);
        assert_eq!(all_members(root.path()), [1, 22, 3]);
        assert!(all_members(Path::new("/none")).is_empty());
    }
}
