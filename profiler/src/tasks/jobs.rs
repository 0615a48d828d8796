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
        let id: Arc<str> = (*job.id).into();
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

    /// Records the users of jobs that cgroups prove. The cgroup of a process can be known before its
    /// other names.
    pub(super) fn update_job_users(&mut self, first: bool) {
        self.jobs_have_cgroups |= first && job::has_jobs(&self.host);
        for id in &self.touched {
            let Some(process) = self.processes.get(*id) else {
                continue;
            };
            if job::is_step_daemon(process.uid, &process.description.comm) {
                continue;
            }
            if let Some(job) = process.description.job.proven_job() {
                self.jobs_have_cgroups = true;
                let user = (self.job_numbers.resolve(job), process.uid);
                self.job_users.insert(user, ());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::ProcessId, *};
    use crate::{
        host::Host,
        job::{JobEnvironment, cgroup_path},
        support::clock::Clock,
    };

    /// A process of a job that ends before its cgroup can be read.
    #[test]
    fn environment_is_believed_although_other_names_of_the_job_are_unknown() {
        let nowhere = Path::new("/nowhere");
        let host = Host::probe(nowhere, nowhere, Some("n1".to_owned()));
        let mut tasks = TaskTable::without_reader(&host, Clock::new());
        tasks.jobs_have_cgroups = true;
        let id = |pid| ProcessId {
            pid,
            start_boottime: 1,
        };
        let script = tasks.processes.entry(id(1), 0);
        let cgroup = cgroup_path::identify("/slurm/uid_0/job_7").expect("a job");
        script.description.job.set_cgroup(&cgroup, "7".into());
        let short = tasks.processes.entry(id(2), 0);
        let variables = ["SLURM_JOB_ID=7", "SLURM_STEP_ID=0"].map(str::as_bytes);
        let environment = JobEnvironment::parse(variables.into_iter());
        short.description.job.set_environment(&environment);
        assert!(!tasks.get(id(1)).expect("a process").described);
        let job = |tasks: &TaskTable| tasks.job_of(tasks.get(id(2)).expect("a process"));
        assert_eq!(job(&tasks), None);
        tasks.touched = vec![id(1), id(2)];
        tasks.update_job_users(false);
        assert_eq!(job(&tasks), Some(("7".into(), Method::Environment)));
    }
}
