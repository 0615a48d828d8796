//! Identity of the batch job that a process belongs to.

use std::sync::Arc;

use crate::{
    job::{self, Method, Scheduler},
    tasks::{Process, TaskTable},
};

/// A batch job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobIdentity {
    /// The batch scheduler.
    pub scheduler: Scheduler,
    /// Id of the job in the scheduler.
    pub id: Arc<str>,
    /// The user, if only the environments of the user's processes name the job and no cgroup proves
    /// it. Claims of different users are different jobs.
    pub claimant: Option<u32>,
}

impl JobIdentity {
    /// The job of a process, if it has one. A scope of systemd is not a batch job.
    pub fn of(tasks: &TaskTable, process: &Process) -> Option<Self> {
        let scheduler = process.description.job.scheduler?;
        let (id, method) = tasks.job_of(process)?;
        let is_claim = method == Method::Environment && !tasks.is_user_of(&id, process.uid);
        (scheduler != Scheduler::None).then(|| Self {
            scheduler,
            id,
            claimant: is_claim.then_some(process.uid),
        })
    }

    /// Name of the run.
    pub fn run_id(&self) -> String {
        let run_id = job::run_id(self.scheduler, &self.id);
        match self.claimant {
            Some(uid) => format!("{run_id}-uid{uid}"),
            None => run_id,
        }
    }

    /// How the job was found.
    pub fn method(&self) -> Method {
        match self.claimant {
            Some(_) => Method::Environment,
            None => Method::Cgroup,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::dataset::files::is_plain_name;

    #[test]
    fn run_ids_are_directory_names() {
        for (id, run) in [
            ("4711", "pbs-4711"),
            ("12[3].server", "pbs-12[3].server"),
            ("../x y", "pbs-.._x_y"),
        ] {
            let job = |claimant| JobIdentity {
                scheduler: Scheduler::Pbs,
                id: id.into(),
                claimant,
            };
            assert_eq!(job(None).run_id(), run);
            assert_eq!(job(Some(1000)).run_id(), format!("{run}-uid1000"));
            assert!(is_plain_name(&job(None).run_id()));
        }
    }
}
