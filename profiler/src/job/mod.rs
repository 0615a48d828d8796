//! Batch jobs: the job of each process, and the processes of one job on this node.
//!
//! [`cgroup_path`] and [`environment`] parse cgroup paths and environments; they have
//! no side effects. [`trust`] decides which cgroups prove a job. [`find`] searches for the
//! processes of a job, [`scheduler_command`] queries its scheduler, and [`watcher`] continues both
//! while the job runs.

pub mod announcement;
pub mod cgroup_path;
mod cgroup_watch;
mod cgroups;
pub mod environment;
mod environment_search;
pub mod find;
mod found;
pub mod id;
mod identify;
pub mod stop_file;
mod job_numbers;
mod membership;
mod owner;
pub mod scheduler_command;
pub mod trust;
pub mod watcher;
mod work;
mod work_watch;

use std::{fmt, time::Duration};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use self::{
    cgroup_path::JobCgroup,
    cgroups::{JobDirectory, has_jobs},
    environment::JobEnvironment,
    found::{FoundJob, Method},
    id::{IdError, JobId, Step, run_id},
    job_numbers::{JobNumbers, slurm_job_number},
    membership::Membership,
    owner::is_step_daemon,
    watcher::{Changes, Watcher},
};

/// Processes outside of the job's cgroups that the BPF programs can be given at a time.
pub const ROOTS_MAX: usize = 4096;

/// A scheduler of batch jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Slurm
    Slurm,
    /// PBS Professional, OpenPBS
    Pbs,
    /// OAR
    Oar,
    /// Flux
    Flux,
    /// None: the job is a scope or service of systemd
    None,
}

impl Scheduler {
    /// Name as its users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Pbs => "PBS",
            Self::Oar => "OAR",
            Self::Flux => "Flux",
            Self::None => "systemd",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The job requested with `--job`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Id; the job of this process if `None`.
    pub id: Option<JobId>,
    /// Scheduler; detected if `None`.
    pub scheduler: Option<Scheduler>,
    /// Only this step of the job (Slurm).
    pub step: Option<Step>,
    /// Time limit for the first process of the job.
    pub wait: Duration,
}
