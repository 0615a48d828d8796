//! Which batch job a process is of.

use std::sync::Arc;

use crate::{
    job::{self, Method, Scheduler},
    tasks::{Process, TaskTable},
};

/// A batch job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobName {
    /// Who runs it.
    pub scheduler: Scheduler,
    /// Its name there.
    pub id: Arc<str>,
    /// The user whose processes claim to be of it, where no cgroup tells that they can be. Claims of different users are different jobs.
    pub claimant: Option<u32>,
}

impl JobName {
    /// Name of the run.
    pub fn run_id(&self) -> String {
        let run_id = job::run_id(self.scheduler, &self.id);
        match self.claimant {
            Some(uid) => format!("{run_id}-uid{uid}"),
            None => run_id,
        }
    }

    /// What it is known from.
    pub fn method(&self) -> Method {
        match self.claimant {
            Some(_) => Method::Environment,
            None => Method::Cgroup,
        }
    }
}

/// The job of a process, if it is of one. A scope of systemd is no batch job.
pub fn job_of(tasks: &TaskTable, process: &Process) -> Option<JobName> {
    let scheduler = process.description.job.scheduler?;
    let (id, method) = tasks.job_of(process)?;
    let is_claim = method == Method::Environment && !tasks.is_user_of(&id, process.uid);
    (scheduler != Scheduler::None).then(|| JobName {
        scheduler,
        id,
        claimant: is_claim.then_some(process.uid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_jobs_are_directories() {
        for (id, run) in [
            ("4711", "pbs-4711"),
            ("12[3].server", "pbs-12[3].server"),
            ("../x y", "pbs-.._x_y"),
        ] {
            let name = |claimant| JobName {
                scheduler: Scheduler::Pbs,
                id: id.into(),
                claimant,
            };
            assert_eq!(name(None).run_id(), run);
            assert_eq!(name(Some(1000)).run_id(), format!("{run}-uid1000"));
            assert!(crate::output::dataset::files::is_plain_name(
                &name(None).run_id()
            ));
        }
    }
}
