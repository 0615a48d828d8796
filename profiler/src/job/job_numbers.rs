//! Numbers of Slurm jobs with cgroup directories named by SLUIDs.

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::JobCgroup;
use crate::procfs::{
    memory_file::{self, MemoryFile},
    process_cgroup, process_file,
    process_status::real_uid,
};

/// Known job numbers by SLUID.
#[derive(Debug, Default)]
pub struct JobNumbers {
    numbers: HashMap<String, Arc<str>>,
    /// SLUIDs without a result, and the end of the pause before the next search.
    retry_at: HashMap<String, Instant>,
}

impl JobNumbers {
    /// Above the number of concurrent jobs of a node. Dropped numbers can be read again.
    const MAX: usize = 4096;
    /// Pause after a search without result. A search reads all processes of the job.
    const RETRY: Duration = Duration::from_secs(1);

    /// Whether [`Self::job_id`] is final for this cgroup.
    pub fn is_known(&self, cgroup: &JobCgroup) -> bool {
        !cgroup.has_sluid() || self.numbers.contains_key(&cgroup.job)
    }

    /// The id by which users know the job of a cgroup; the SLUID as long as the number is unknown.
    pub fn job_id(&self, cgroup: &JobCgroup) -> Arc<str> {
        let number = self.numbers.get(&cgroup.job).filter(|_| cgroup.has_sluid());
        number
            .cloned()
            .unwrap_or_else(|| cgroup.job.as_str().into())
    }

    /// Replaces a SLUID by the number of the job, if it is known.
    pub fn resolve(&self, job: &Arc<str>) -> Arc<str> {
        self.numbers.get(&**job).unwrap_or(job).clone()
    }

    /// Number of the job with this cgroup directory, if it is named by a SLUID. Searches the
    /// processes of the cgroup if the number is unknown.
    pub fn find(
        &mut self,
        procfs: &Path,
        directory: &Path,
        cgroup: &JobCgroup,
    ) -> Option<Arc<str>> {
        if !cgroup.has_sluid() {
            return None;
        }
        if self.is_known(cgroup) {
            return Some(self.job_id(cgroup));
        }
        let now = Instant::now();
        let is_early = |retry_at: &Instant| now < *retry_at;
        if self.retry_at.get(&cgroup.job).is_some_and(is_early) {
            return None;
        }
        self.retry_at.retain(|_, retry_at| is_early(retry_at));
        let Some(number) = slurm_job_number(procfs, directory) else {
            self.retry_at.insert(cgroup.job.clone(), now + Self::RETRY);
            return None;
        };
        self.insert(&cgroup.job, number.into());
        Some(self.job_id(cgroup))
    }

    /// Adds the number of the job of a cgroup, unless it is known.
    pub fn insert_of(&mut self, cgroup: &JobCgroup, number: Arc<str>) {
        if !self.is_known(cgroup) {
            self.insert(&cgroup.job, number);
        }
    }

    /// Adds the number of a job.
    pub fn insert(&mut self, sluid: &str, number: Arc<str>) {
        if self.numbers.len() >= Self::MAX {
            self.numbers.clear();
        }
        self.numbers.insert(sluid.to_owned(), number);
    }
}

/// Number of the Slurm job with this cgroup directory, from the process title of slurmstepd
/// (`slurmstepd: [7.batch]`). Titles of the job's own processes prove nothing.
pub fn slurm_job_number(procfs: &Path, directory: &Path) -> Option<String> {
    process_cgroup::all_members(directory)
        .into_iter()
        .filter(|pid| is_slurmstepd(procfs, *pid))
        .find_map(|pid| {
            let title = memory_file::read(procfs, pid, MemoryFile::Cmdline).ok()?;
            number_in_title(&String::from_utf8_lossy(&title.bytes))
        })
}

/// Whether a process belongs to root and executes a file named slurmstepd. A user can choose the
/// title and the name of a process; as root, only set-user-ID programs can be executed, whose files
/// have other names.
fn is_slurmstepd(procfs: &Path, pid: u32) -> bool {
    real_uid(procfs, pid) == Some(0)
        && process_file::executable(procfs, pid)
            .is_some_and(|exe| exe.file_name() == Some("slurmstepd".as_ref()))
}

fn number_in_title(title: &str) -> Option<String> {
    let name = title.strip_prefix("slurmstepd: [")?;
    let (number, _) = name.split_once(['.', ']'])?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_of_slurmstepd() {
        assert_eq!(
            number_in_title("slurmstepd: [7.batch]").as_deref(),
            Some("7")
        );
        assert_eq!(number_in_title("slurmstepd: [12.0]").as_deref(), Some("12"));
        for other in ["", "slurmstepd", "slurmstepd: []", "slurmstepd: [x.0]"] {
            assert_eq!(number_in_title(other), None);
        }
    }
}
