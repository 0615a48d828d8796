//! Job, step and rank of one process, from its cgroup and its environment.

use std::sync::Arc;

use super::{JobCgroup, JobEnvironment, Method, Scheduler, id::is_same_job};

/// The job, step and rank of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Job id.
    pub job: Option<Arc<str>>,
    /// Scheduler of the job.
    pub scheduler: Option<Scheduler>,
    /// Step of the job.
    pub step: Option<Arc<str>>,
    /// Rank in MPI, or task number in the step.
    pub rank: Option<u32>,
    /// Whether a cgroup that only root or the scheduler can create proves the job.
    by_cgroup: bool,
}

impl Membership {
    /// Job id, and the origin of it.
    pub fn job(&self) -> Option<(&Arc<str>, Method)> {
        let method = if self.by_cgroup {
            Method::Cgroup
        } else {
            Method::Environment
        };
        self.job.as_ref().map(|job| (job, method))
    }

    /// Id of the batch job that a cgroup proves; a systemd unit is not a batch job.
    pub fn proven_job(&self) -> Option<&Arc<str>> {
        let is_proven = self.by_cgroup && self.scheduler != Some(Scheduler::None);
        self.job.as_ref().filter(|_| is_proven)
    }

    /// Applies the cgroup of the process. `job` is the id by which users know the job.
    pub fn set_cgroup(&mut self, cgroup: &JobCgroup, job: Arc<str>) {
        if self.job.as_ref() != Some(&job) {
            *self = Self::default();
        }
        self.job = Some(job);
        self.scheduler = Some(cgroup.scheduler);
        self.by_cgroup = true;
        if let Some(step) = &cgroup.step {
            self.step = Some(step.as_str().into());
        }
        self.rank = self.rank.or(cgroup.task);
    }

    /// Applies the environment of the process. It can be inherited from a process of another job.
    pub fn set_environment(&mut self, environment: &JobEnvironment) {
        let same = self.job.as_ref().and_then(|job| {
            let mut jobs = environment.jobs.iter();
            jobs.find(|(scheduler, id)| is_same_job(*scheduler, job, id))
        });
        let first = environment.jobs.first();
        match (same.or(first), same.is_some()) {
            // The environment has a rank without a job.
            (None, _) => {}
            (Some((scheduler, _)), true) => {
                if *scheduler == Scheduler::Slurm && self.step.is_none() {
                    self.step = environment.step.as_deref().map(Into::into);
                } else if !self.by_cgroup {
                    let step = environment.step.as_deref().map(Into::into);
                    self.step = step.or(self.step.take());
                }
            }
            (Some(_), false) if self.by_cgroup => return,
            (Some((scheduler, id)), false) => {
                *self = Self {
                    job: Some((**id).into()),
                    scheduler: Some(*scheduler),
                    step: environment.step.as_deref().map(Into::into),
                    rank: None,
                    by_cgroup: false,
                };
            }
        }
        self.rank = environment.rank.or(self.rank);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::cgroup_path, *};

    fn environment(text: &str) -> JobEnvironment {
        JobEnvironment::parse(text.split(' ').map(str::as_bytes))
    }

    fn cgroup(path: &str) -> JobCgroup {
        cgroup_path::identify(path).expect("a job")
    }

    #[track_caller]
    fn check(membership: &Membership, job: &str, step: Option<&str>, rank: Option<u32>) {
        let found = (
            membership.job.as_deref(),
            membership.step.as_deref(),
            membership.rank,
        );
        assert_eq!(found, (Some(job), step, rank));
    }

    #[test]
    fn environment_completes_the_cgroup() {
        let mut task = Membership::default();
        task.set_cgroup(&cgroup("/slurm/uid_0/job_7"), "7".into());
        check(&task, "7", None, None);
        // The process ended before its cgroup could be read.
        task.set_environment(&environment(
            "SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3",
        ));
        check(&task, "7", Some("1"), Some(3));
        task.set_cgroup(&cgroup("/slurm/uid_0/job_7/step_1"), "7".into());
        check(&task, "7", Some("1"), Some(3));
        // A program executed without these variables, or with those of another job.
        task.set_environment(&environment("PATH=/bin"));
        check(&task, "7", Some("1"), Some(3));
        task.set_environment(&environment(
            "SLURM_JOB_ID=8 SLURM_STEP_ID=0 SLURM_PROCID=0",
        ));
        check(&task, "7", Some("1"), Some(3));
        // A rank started by mpirun.
        task.set_environment(&environment(
            "SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3 PMIX_RANK=9",
        ));
        check(&task, "7", Some("1"), Some(9));
    }

    #[test]
    fn environment_without_cgroup() {
        let mut shell = Membership::default();
        shell.set_environment(&environment("SLURM_JOB_ID=7"));
        check(&shell, "7", None, None);
        shell.set_environment(&environment("SLURM_JOB_ID=7 OMPI_COMM_WORLD_RANK=1"));
        check(&shell, "7", None, Some(1));
        shell.set_environment(&environment("OAR_JOB_ID=5"));
        check(&shell, "5", None, None);
        let mut no_job = Membership::default();
        no_job.set_environment(&environment("PMI_RANK=1"));
        assert_eq!((no_job.job, no_job.rank), (None, Some(1)));
    }

    #[test]
    fn cgroup_has_precedence_over_environment() {
        let mut task = Membership::default();
        task.set_environment(&environment(
            "SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3",
        ));
        task.set_cgroup(&cgroup("/slurm/uid_0/job_8/step_0"), "8".into());
        check(&task, "8", Some("0"), None);
    }
}
