//! Names of the mounts that the BPF programs report by number, looked up once in the mount
//! namespace of a process that has them.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use profiler_ebpf::per_key::mount;

use super::mounts::{Numbered, mounts_of};
use crate::{schema::Label, support::cache::Cache};

/// Mount ids are reused: a name is looked up again after this time.
const FRESH: Duration = Duration::from_secs(60);
/// Time between two searches for an unknown mount.
const RETRY: Duration = Duration::from_secs(10);
/// Other processes whose mounts are searched if the process itself does not have the mount.
const OTHERS: usize = 16;

/// Cached mounts. Any user can create namespaces with thousands of them.
const KNOWN: usize = 16_384;

/// Time per second that searches may take. Other mounts have no name until the next second.
const PACE: Duration = Duration::from_millis(20);

/// Labels of one mount.
#[derive(Clone, Debug, Default)]
pub struct Name {
    /// Mount point.
    pub mount: Option<Label>,
    /// Type of the file system.
    pub fstype: Option<Label>,
    /// Mounted device or `server:/export`.
    pub source: Option<Label>,
}

/// Cache of the names.
pub struct MountNames {
    procfs: PathBuf,
    known: Cache<u64, Known>,
    /// Start of the present second, and the time that searches have taken since.
    second: (Instant, Duration),
}

struct Known {
    name: Name,
    found: bool,
    at: Instant,
}

impl Known {
    fn is_due(&self) -> bool {
        self.at.elapsed() > if self.found { FRESH } else { RETRY }
    }
}

impl MountNames {
    /// An empty cache.
    pub fn new(procfs: &Path) -> Self {
        Self {
            procfs: procfs.to_owned(),
            known: Cache::new(KNOWN),
            second: (Instant::now(), Duration::ZERO),
        }
    }

    /// Name of the mount of a per-key counter, as the process `pid` sees it or, if that has ended,
    /// as one of `others` does.
    pub fn get(&mut self, dimension: u64, pid: u32, others: impl Iterator<Item = u32>) -> Name {
        let is_due = self
            .known
            .get(&dimension)
            .is_none_or(|known| known.is_due());
        if is_due && self.has_time() {
            let begin = Instant::now();
            self.look_up(dimension, pid, others);
            self.second.1 += begin.elapsed();
        }
        self.known
            .get(&dimension)
            .map(|known| known.name.clone())
            .unwrap_or_default()
    }

    fn has_time(&mut self) -> bool {
        if self.second.0.elapsed() > Duration::from_secs(1) {
            self.second = (Instant::now(), Duration::ZERO);
        }
        self.second.1 < PACE
    }

    fn look_up(&mut self, dimension: u64, pid: u32, others: impl Iterator<Item = u32>) {
        // With its own mount namespace (ProtectSystem= of systemd), the profiler does not see the
        // mounts of the node; pid 1 does.
        const FIRST: u32 = 1;
        let own = std::process::id();
        let pids = [pid, FIRST, own].into_iter().chain(others.take(OTHERS));
        let mut namespaces = Vec::new();
        for pid in pids {
            let namespace = std::fs::read_link(self.procfs.join(format!("{pid}/ns/mnt")));
            let Ok(namespace) = namespace else { continue };
            if namespaces.contains(&namespace) {
                continue;
            }
            namespaces.push(namespace);
            self.learn(pid);
            if self
                .known
                .get(&dimension)
                .is_some_and(|known| !known.is_due())
            {
                return;
            }
        }
        // A removed mount keeps its name.
        let at = Instant::now();
        match self.known.get(&dimension) {
            Some(known) => known.at = at,
            None => self.known.insert(
                dimension,
                Known {
                    name: Name::default(),
                    found: false,
                    at,
                },
            ),
        }
    }

    /// Caches all mounts that a process sees.
    fn learn(&mut self, pid: u32) {
        for Numbered { id, dev, mount, .. } in mounts_of(&self.procfs, pid) {
            let known = Known {
                name: Name {
                    mount: Some(mount.mount_point.as_os_str().into()),
                    fstype: Some(mount.fstype.into()),
                    source: mount.source.as_deref().map(Into::into),
                },
                found: true,
                at: Instant::now(),
            };
            self.known.insert(mount::dimension(id, dev), known);
        }
    }
}

/// Device number of the mount of a per-key counter, `major:minor` as in `mountinfo`.
pub fn dev_label(dimension: u64) -> Label {
    let (major, minor) = mount::numbers(dimension);
    format!("{major}:{minor}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_through_a_process_that_has_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let process = |pid: u32, text: &str| {
            let path = directory.path().join(pid.to_string());
            std::fs::create_dir_all(path.join("ns")).expect("made");
            std::os::unix::fs::symlink(format!("mnt:[{pid}]"), path.join("ns/mnt")).expect("made");
            std::fs::write(path.join("mountinfo"), text).expect("written");
        };
        process(7, "21 1 8:2 / / rw - ext4 /dev/sda2 rw\n");
        process(8, "99 1 0:44 / /data rw - tmpfs none rw\n");
        let mut names = MountNames::new(directory.path());
        let data = mount::dimension(99, 44);
        let name = names.get(data, 7, [8].into_iter());
        assert_eq!(name.mount, Some("/data".into()));
        assert_eq!(name.source, None);
        let root = names.get(mount::dimension(21, 8 << 20 | 2), 7, std::iter::empty());
        assert_eq!(root.fstype, Some("ext4".to_owned().into()));
        // The same id on another device is another mount, which no process has.
        let other = names.get(mount::dimension(99, 45), 7, [8].into_iter());
        assert_eq!(other.mount, None);
        assert_eq!(dev_label(data).as_str(), "0:44");
    }
}
