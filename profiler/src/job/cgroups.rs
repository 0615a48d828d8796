//! Directories of jobs in the cgroup hierarchies.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};

use super::{
    JobId, Scheduler, Step,
    cgroup_path::{self, JobCgroup},
    id::is_sluid,
    job_numbers::slurm_job_number,
    owner, trust,
};
use crate::{
    host::{Hierarchy, Host},
    procfs::process_cgroup,
    support::invoking_user,
};

/// Levels of directories that are searched. Those of jobs are near the top.
const DEPTH_MAX: u32 = 12;

/// A cgroup directory of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobDirectory {
    pub path: PathBuf,
    /// Job as named by the directory: a number, `7.server`, a SLUID, a systemd unit.
    pub job: String,
    /// Uid of the owner, if the path contains it.
    pub owner: Option<u32>,
    /// Inode, which distinguishes the directory from a later one with the same path.
    pub inode: u64,
}

impl JobDirectory {
    /// The id by which users know the job; `None` if the directory is named by a SLUID and the
    /// number is unknown.
    pub fn job_id(&self, host: &Host) -> Option<String> {
        if !is_sluid(&self.job) {
            return Some(self.job.clone());
        }
        slurm_job_number(&host.procfs, &self.path)
    }
}

/// A job whose directories are searched.
#[derive(Clone, Copy, Debug)]
pub struct JobRef<'a> {
    pub scheduler: Scheduler,
    /// Id as given by the user.
    pub id: &'a JobId,
    /// Only this step of the job.
    pub step: Option<&'a Step>,
}

impl JobRef<'_> {
    /// Job and step as Slurm writes them: `7`, `7.0`.
    pub fn name(&self) -> String {
        match self.step {
            Some(step) => format!("{}.{step}", self.id),
            None => self.id.to_string(),
        }
    }

    fn identify(&self, path: &str) -> Option<JobCgroup> {
        match self.scheduler {
            Scheduler::None => cgroup_path::identify_unit(path, self.id),
            _ => cgroup_path::identify(path).filter(|cgroup| cgroup.scheduler == self.scheduler),
        }
    }

    fn owns(&self, host: &Host, cgroup: &JobCgroup, directory: &Path) -> bool {
        cgroup.is_of(self.scheduler, self.id)
            || self.scheduler == Scheduler::None
            || cgroup.has_sluid()
                && slurm_job_number(&host.procfs, directory)
                    .is_some_and(|number| *number == **self.id)
    }

    /// Uids whose directories are searched. A systemd unit can also belong to the invoking user.
    fn accounts(&self) -> Vec<u32> {
        let mut accounts = trust::accounts(self.scheduler).to_vec();
        if self.scheduler == Scheduler::None {
            accounts.extend(invoking_user::non_root_uid());
        }
        accounts
    }

    /// Directory of the job, or that of the step in it, with its inode; `None` if there is none.
    fn find_in(&self, job: &Path) -> Option<(PathBuf, u64)> {
        let name = self.step.map(|step| format!("step_{step}"));
        let inode = inode_below(job, name.as_deref()).ok()?;
        Some((
            name.map_or_else(|| job.to_owned(), |name| job.join(name)),
            inode,
        ))
    }

    /// Directories of the job in a hierarchy, in order of their paths. The search descends only
    /// into directories in which no other user can create a directory with the same name.
    pub fn directories(&self, host: &Host, hierarchy: &Hierarchy) -> Vec<JobDirectory> {
        let mut found = Vec::new();
        let slurm_node = std::env::var("SLURMD_NODENAME").ok();
        walk(hierarchy, &self.accounts(), |directory, path| {
            let Some(cgroup) = self.identify(path) else {
                return true;
            };
            if self.owns(host, &cgroup, directory)
                && !is_of_other_node(path, slurm_node.as_deref())
                && let Some((directory, inode)) = self.find_in(directory)
            {
                found.push(JobDirectory {
                    path: directory,
                    job: cgroup.job,
                    owner: cgroup.owner,
                    inode,
                });
            }
            false
        });
        found.sort_by(|one, other| one.path.cmp(&other.path));
        found
    }
}

/// Inode of the directory `name` in `directory`, or of that itself. The kernel refuses names that
/// leave it.
fn inode_below(directory: &Path, name: Option<&str>) -> rustix::io::Result<u64> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut opened = open(directory, flags, Mode::empty())?;
    if let Some(name) = name {
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        opened = openat2(&opened, name, flags, Mode::empty(), inside)?;
    }
    Ok(fstat(&opened)?.st_ino)
}

/// Whether a path is below the cgroup of another node's slurmd: several can run on one machine.
fn is_of_other_node(path: &str, own: Option<&str>) -> bool {
    let node = |name: &'_ str| {
        let node = name.strip_prefix("slurm_");
        node.or(name.strip_suffix("_slurmstepd.scope"))
            .map(str::to_owned)
    };
    let mut nodes = path.split('/').filter_map(node);
    own.is_some_and(|own| nodes.any(|node| node != own))
}

/// Visits the cgroups in directories in which only `accounts` can create others. `visit` receives
/// the directory and its path in the hierarchy, and returns whether to descend.
fn walk(hierarchy: &Hierarchy, accounts: &[u32], mut visit: impl FnMut(&Path, &str) -> bool) {
    let mut pending = vec![(hierarchy.mount_point.clone(), String::new(), 0)];
    while let Some((directory, path, depth)) = pending.pop() {
        if !trust::is_protected(&directory, accounts) {
            continue;
        }
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = format!("{path}/{}", entry.file_name().to_string_lossy());
            if visit(&entry.path(), &path) && depth < DEPTH_MAX {
                pending.push((entry.path(), path, depth + 1));
            }
        }
    }
}

/// Whether a batch job has processes in a cgroup on this node. Cgroups of jobs that are over can
/// remain.
pub fn has_jobs(host: &Host) -> bool {
    hierarchies(host).iter().any(|hierarchy| {
        let mut found = false;
        walk(hierarchy, &[0], |directory, path| {
            let is_job = cgroup_path::identify(path)
                .is_some_and(|cgroup| cgroup.scheduler != Scheduler::None);
            found |=
                is_job && !owner::users(host, &process_cgroup::all_members(directory)).is_empty();
            !is_job
        });
        found
    })
}

/// The hierarchies in search order: version 2, the hierarchies of version 1 that schedulers use to
/// track processes, the others.
pub fn hierarchies(host: &Host) -> Vec<Hierarchy> {
    let rank = |hierarchy: &Hierarchy| {
        let order = ["freezer", "cpuset", "memory", "cpuacct", "pids"];
        let has = |name: &&str| hierarchy.controllers.iter().any(|known| known == name);
        order.iter().position(has).unwrap_or(order.len())
    };
    let mut v1 = host.cgroups.v1.clone();
    v1.sort_by_key(rank);
    host.cgroups.v2.clone().into_iter().chain(v1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_directory_of_the_job() {
        let root = tempfile::TempDir::new().expect("a directory");
        let job = root.path().join("job_7");
        fs::create_dir_all(job.join("step_0")).expect("made");
        std::os::unix::fs::symlink("../..", job.join("step_1")).expect("a link");
        assert!(inode_below(&job, None).is_ok() && inode_below(&job, Some("step_0")).is_ok());
        for name in ["step_0/../..", "..", "/", "step_1", "step_2"] {
            assert!(inode_below(&job, Some(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn cgroups_of_another_slurmd() {
        for path in [
            "/slurm_n1/uid_0/job_7",
            "/system.slice/n1_slurmstepd.scope/job_7",
        ] {
            assert!(is_of_other_node(path, Some("n2")), "{path}");
            assert!(!is_of_other_node(path, Some("n1")), "{path}");
            assert!(!is_of_other_node(path, None), "{path}");
        }
        assert!(!is_of_other_node("/slurm/uid_0/job_7", Some("n2")));
    }
}
