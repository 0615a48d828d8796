//! Batch jobs of the processes.

use std::sync::Arc;

use super::{Process, TaskTable};
use crate::job::{self, FoundJob, Method, id::is_sluid};

/// Pairs of a job and a user that are remembered.
pub(super) const USERS_MAX: usize = 4096;

impl TaskTable {
    /// Sets the job that is the target. All processes belong to it, also those for which neither
    /// cgroup nor environment names it.
    pub fn set_job(&mut self, job: &FoundJob) {
        let id: Arc<str> = job.id.as_str().into();
        for directory in job
            .directories
            .iter()
            .filter(|directory| is_sluid(&directory.job))
        {
            self.job_numbers.insert(&directory.job, Arc::clone(&id));
        }
        self.target_job = Some((id, job.method));
    }

    /// Job id of a process, and its origin. If jobs have cgroups on this node, an environment is
    /// believed only for users of the job it names; if the target is a job, it is never believed.
    pub fn job_of(&self, process: &Process) -> Option<(Arc<str>, Method)> {
        let own = process.description.job.job();
        let own = own.map(|(job, method)| (self.job_numbers.resolve(job), method));
        own.filter(|(job, method)| {
            let is_believed = || !self.jobs_have_cgroups || self.is_user_of(job, process.uid);
            *method == Method::Cgroup || self.target_job.is_none() && is_believed()
        })
        .or_else(|| self.target_job.clone())
    }

    /// Whether processes of this user have been in the cgroup of the job.
    pub fn is_user_of(&self, job: &Arc<str>, uid: u32) -> bool {
        self.job_users.contains(&(Arc::clone(job), uid))
    }

    /// Records the users of jobs that cgroups prove.
    pub(super) fn update_job_users(&mut self, first: bool) {
        self.jobs_have_cgroups |= first && job::has_jobs(&self.host);
        let changed = self.changed.iter();
        let changed = changed.filter_map(|id| self.processes.get(id));
        for process in
            changed.filter(|process| !job::is_step_daemon(process.uid, &process.description.comm))
        {
            if let Some(job) = process.description.job.proven_job() {
                self.jobs_have_cgroups = true;
                let user = (self.job_numbers.resolve(job), process.uid);
                self.job_users.insert(user, ());
            }
        }
    }
}
