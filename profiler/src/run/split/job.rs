//! Which batch job a process is of.

use std::sync::Arc;

use crate::{
    job::{self, Scheduler},
    tasks::Process,
};

/// A batch job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobName {
    /// Who runs it.
    pub scheduler: Scheduler,
    /// Its name there.
    pub id: Arc<str>,
}

impl JobName {
    /// Name of the run.
    pub fn run_id(&self) -> String {
        job::run_id(self.scheduler, &self.id)
    }
}

/// The job of a process, if it is of one. A scope of systemd is no batch job.
pub fn job_of(process: &Process) -> Option<JobName> {
    let membership = &process.description.job;
    let scheduler = membership
        .scheduler
        .filter(|scheduler| *scheduler != Scheduler::None)?;
    Some(JobName {
        scheduler,
        id: membership.job.clone()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_jobs_are_folders() {
        for (id, run) in [
            ("4711", "pbs-4711"),
            ("12[3].server", "pbs-12[3].server"),
            ("../x y", "pbs-.._x_y"),
        ] {
            let name = JobName {
                scheduler: Scheduler::Pbs,
                id: id.into(),
            };
            assert_eq!(name.run_id(), run);
            assert!(crate::sink::files::is_plain_name(&name.run_id()));
        }
    }
}
