//! Which batch job a process is of.

use std::sync::Arc;

use crate::tasks::Process;

/// A batch job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobName {
    /// Who runs it.
    pub scheduler: &'static str,
    /// Its name there.
    pub id: Arc<str>,
}

impl JobName {
    /// Name of the run, which every node finds by itself: `slurm-4711`.
    pub fn run_id(&self) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-[]".contains(c);
        let id: String = self
            .id
            .chars()
            .map(|c| if plain(c) { c } else { '_' })
            .collect();
        format!("{}-{id}", self.scheduler)
    }
}

/// The job of a process, if it is of one.
pub fn job_of(process: &Process) -> Option<JobName> {
    of_path(process.description.cgroup.as_deref()?)
}

/// Slurm's cgroups: `/slurm_node1/uid_0/job_12/step_0` (v1), `/system.slice/slurmstepd.scope/job_12/step_0` (v2).
fn of_path(path: &str) -> Option<JobName> {
    let mut parts = path
        .split('/')
        .skip_while(|part| !part.starts_with("slurm") && !part.ends_with("slurmstepd.scope"));
    let id = parts.find_map(|part| part.strip_prefix("job_"))?;
    Some(JobName {
        scheduler: "slurm",
        id: id.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_jobs_are_folders() {
        for (id, run) in [
            ("4711", "slurm-4711"),
            ("12[3].server", "slurm-12[3].server"),
            ("../x y", "slurm-.._x_y"),
        ] {
            let name = JobName {
                scheduler: "slurm",
                id: id.into(),
            };
            assert_eq!(name.run_id(), run);
            assert!(crate::sink::files::is_plain_name(&name.run_id()));
        }
    }
}
