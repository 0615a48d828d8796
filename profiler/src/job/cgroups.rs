//! The cgroups of a job: where its directories are, and who is in them.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{
    Scheduler,
    cgroup_path::{self, Place},
    slurm_number, trust,
};
use crate::host::{Hierarchy, Host};

/// Levels of directories that are looked at: a job's is near the top.
const DEPTH: u32 = 12;

/// The directory of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Where.
    pub path: PathBuf,
    /// The job as it names it.
    pub job: String,
    /// Its inode, which another directory of the same name does not have.
    pub id: u64,
}

impl Directory {
    /// The name that users know the job by; `None` where the directory is named by a SLUID, and no process in it tells.
    pub fn number(&self, host: &Host) -> Option<String> {
        if !cgroup_path::is_sluid(&self.job) {
            return Some(self.job.clone());
        }
        slurm_number(&host.procfs, &self.path)
    }
}

/// A job as its directories are to be recognized.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Whose.
    pub scheduler: Scheduler,
    /// Name.
    pub id: &'a str,
}

impl Wanted<'_> {
    fn identify(&self, path: &str) -> Option<Place> {
        match self.scheduler {
            Scheduler::None => cgroup_path::identify_unit(path, self.id),
            _ => cgroup_path::identify(path).filter(|place| place.scheduler == self.scheduler),
        }
    }

    fn is(&self, host: &Host, place: &Place, directory: &Path) -> bool {
        place.is_of(self.scheduler, self.id)
            || self.scheduler == Scheduler::None
            || place.has_sluid()
                && slurm_number(&host.procfs, directory).is_some_and(|number| number == self.id)
    }

    /// The uids in whose directories the job is looked for. A unit of systemd can be one of whoever asks for it.
    fn accounts(&self) -> Vec<u32> {
        let mut accounts = trust::accounts(self.scheduler).to_vec();
        if self.scheduler == Scheduler::None {
            accounts.extend(asking_user());
        }
        accounts
    }

    /// Its directories in a hierarchy, found by walking down from its mount, through directories in which no other user can
    /// create one of that name.
    pub fn directories(&self, host: &Host, hierarchy: &Hierarchy) -> Vec<Directory> {
        let mut found = Vec::new();
        walk(hierarchy, &self.accounts(), |directory, path| {
            let Some(place) = self.identify(path) else {
                return true;
            };
            if self.is(host, &place, directory)
                && let Ok(data) = fs::metadata(directory)
            {
                found.push(Directory {
                    path: directory.to_owned(),
                    job: place.job,
                    id: data.ino(),
                });
            }
            false
        });
        found.sort_by(|one, other| one.path.cmp(&other.path));
        found
    }
}

/// Visits the cgroups of a hierarchy in which only these accounts can create others; `visit` is given directory and path,
/// and decides whether to go on below.
fn walk(hierarchy: &Hierarchy, accounts: &[u32], mut visit: impl FnMut(&Path, &str) -> bool) {
    let mut waiting = vec![(hierarchy.mount_point.clone(), String::new(), 0)];
    while let Some((directory, path, depth)) = waiting.pop() {
        if !trust::is_guarded(&directory, accounts) {
            continue;
        }
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = format!("{path}/{}", entry.file_name().to_string_lossy());
            if visit(&entry.path(), &path) && depth < DEPTH {
                waiting.push((entry.path(), path, depth + 1));
            }
        }
    }
}

/// Whether a batch job has a cgroup on this node.
pub fn has_jobs(host: &Host) -> bool {
    hierarchies(host).iter().any(|hierarchy| {
        let mut found = false;
        walk(hierarchy, &[0], |_, path| {
            found |=
                cgroup_path::identify(path).is_some_and(|place| place.scheduler != Scheduler::None);
            !found
        });
        found
    })
}

/// Who runs the profiler: root's own uid only without sudo.
pub(super) fn asking_user() -> Option<u32> {
    let own = rustix::process::getuid();
    if own.is_root() {
        crate::session::target::owner().map(|(uid, _)| uid)
    } else {
        Some(own.as_raw())
    }
}

/// The hierarchies in the order in which the processes of a job are looked for: version 2, then those of version 1 that
/// schedulers follow processes with, then the others.
pub fn hierarchies(host: &Host) -> Vec<Hierarchy> {
    let weight = |hierarchy: &Hierarchy| {
        let order = ["freezer", "cpuset", "memory", "cpuacct", "pids"];
        let has = |name: &&str| hierarchy.controllers.iter().any(|known| known == name);
        order.iter().position(has).unwrap_or(order.len())
    };
    let mut v1 = host.cgroups.v1.clone();
    v1.sort_by_key(weight);
    host.cgroups.v2.clone().into_iter().chain(v1).collect()
}

/// Processes in a cgroup and in those below it.
pub fn members(directory: &Path) -> Vec<u32> {
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
