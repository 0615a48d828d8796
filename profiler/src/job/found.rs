//! A job with processes on this node, as the target of a run.

use std::{collections::BTreeSet, fmt};

use super::{JobDirectory, JobId, Scheduler, Step, cgroups::JobRef, trust};
use crate::host::Hierarchy;

/// Method by which the processes of a job are found, or origin of a process's job id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Membership in a cgroup of the job.
    Cgroup,
    /// List of processes from the scheduler.
    Scheduler,
    /// Environment that names the job.
    Environment,
}

impl Method {
    /// Name in `run.json` and in the column `job_source`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Scheduler => "scheduler",
            Self::Environment => "environment",
        }
    }
}

/// A job with processes on this node.
#[derive(Clone, Debug)]
pub struct FoundJob {
    pub scheduler: Scheduler,
    /// Id in environments and cgroup paths.
    pub id: JobId,
    /// The step that is followed; `None`: the whole job.
    pub step: Option<Step>,
    /// Method by which its processes were found.
    pub method: Method,
    /// Hierarchy with its cgroups; without cgroups, the hierarchy that is searched first.
    pub hierarchy: Option<Hierarchy>,
    /// Its cgroup directories.
    pub directories: Vec<JobDirectory>,
    /// Its processes, if they were not found by cgroup.
    pub pids: Vec<u32>,
    /// Uid of the owner. Environments of other users' processes are ignored.
    pub owner: Option<u32>,
    /// Real uids of its processes, without daemons of the scheduler.
    pub users: BTreeSet<u32>,
    /// Unknown words of the scheduler for its state, which were reported.
    pub unrecognized: BTreeSet<String>,
    /// Problems of the search, one line each.
    pub notes: Vec<String>,
}

impl FoundJob {
    /// The job, as searches take it.
    pub fn job_ref(&self) -> JobRef<'_> {
        JobRef {
            scheduler: self.scheduler,
            id: &self.id,
            step: self.step.as_ref(),
        }
    }

    /// Whether a user may see the job: the owner, if no process belongs to another user. Root and the
    /// account of the scheduler run daemons in the jobs of all users.
    pub fn is_only_of(&self, uid: u32) -> bool {
        let accounts = trust::accounts(self.scheduler);
        let mut users = self.users.iter();
        self.owner == Some(uid) && users.all(|user| *user == uid || accounts.contains(user))
    }

    /// Job and step in messages and in the name of the run: `7`, `7.0`.
    pub fn name(&self) -> String {
        self.job_ref().name()
    }

    /// The job in `run.json`.
    pub fn to_json(&self) -> serde_json::Value {
        let directories: Vec<_> = self
            .directories
            .iter()
            .map(|directory| &directory.path)
            .collect();
        serde_json::json!({
            "id": self.id,
            "step": self.step,
            "scheduler": format!("{:?}", self.scheduler).to_lowercase(),
            "found_by": self.method.name(),
            "cgroups": directories,
            "pids": self.pids,
            "uid": self.owner,
            "notes": self.notes,
        })
    }
}

impl fmt::Display for FoundJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} ({}, ", self.name(), self.scheduler)?;
        match (self.method, self.directories.first()) {
            (Method::Cgroup, Some(directory)) => write!(f, "cgroup {})", directory.path.display()),
            (Method::Scheduler, _) => write!(f, "processes listed by {})", self.scheduler),
            _ => write!(f, "processes found by their environment)"),
        }
    }
}
