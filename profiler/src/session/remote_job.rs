//! The end of a job whose processes the service follows: the profiler is part of the job, the
//! service is not.

use std::{collections::HashSet, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;

use super::{
    job_watch::JobWatch,
    readiness::{cannot_wait, wait_readable},
};
use crate::{
    config::Config,
    failure::Failure,
    host::Host,
    job::{FoundJob, JobDirectory, stop_file::StopPath},
    procfs::process_cgroup,
};

/// Watches the job and the file of `--stop-file`.
pub struct RemoteJob {
    pub watch: JobWatch,
    notifier: AsyncFd<OwnedFd>,
    host: Host,
    directories: Vec<JobDirectory>,
    /// Processes that were not found by cgroup.
    pids: HashSet<u32>,
}

impl RemoteJob {
    /// Starts the threads that the target and the settings require.
    pub fn start(
        config: &Config,
        host: &Host,
        found: Option<&FoundJob>,
        stop_file: Option<StopPath>,
        run: Option<OwnedFd>,
    ) -> Result<Option<Self>, Failure> {
        let Some(watch) = JobWatch::start(config, host, found, stop_file, run)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            notifier: watch.notifier().map_err(cannot_wait)?,
            watch,
            host: host.clone(),
            directories: found.map_or_else(Vec::new, |job| job.directories.clone()),
            pids: found.map_or_else(HashSet::new, |job| job.pids.iter().copied().collect()),
        }))
    }

    /// Waits until a thread has news; without a job, forever.
    pub async fn changed(job: Option<&Self>) {
        wait_readable(job.map(|job| &job.notifier)).await;
    }

    /// Applies the news. Returns whether the run is to end.
    pub fn ends_run(&mut self) -> bool {
        let members = || {
            let by_cgroup = self.directories.iter();
            let by_cgroup =
                by_cgroup.flat_map(|directory| process_cgroup::all_members(&directory.path));
            let live = |pid: &u32| self.host.procfs.join(pid.to_string()).exists();
            Ok(by_cgroup
                .chain(self.pids.iter().copied().filter(live))
                .collect())
        };
        // Listing the members cannot fail.
        let changes = self.watch.changes(members).unwrap_or_default();
        if let Some(directories) = changes.directories {
            self.directories = directories;
        }
        self.pids.extend(changes.pids);
        self.watch.ends_run()
    }
}
