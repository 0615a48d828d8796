//! Batch jobs: the search before the session, and the threads that watch a job during it.

use std::os::fd::OwnedFd;

use anyhow::Result;
use tokio::io::unix::AsyncFd;

use super::readiness::readable;
use crate::{
    config::{Config, Target},
    failure::{Failure, Reason},
    host::Host,
    job::{
        self, Watcher,
        ipc_file::{self, IpcFile, Progress},
    },
    privileges, report,
    support::notifier::Notifier,
    tasks::TaskTable,
};

/// Finds the job, if one is the target. A separate thread searches, because it can wait for a
/// minute and a signal must end it.
pub async fn find(config: &Config, host: &Host) -> Result<Option<job::FoundJob>, Failure> {
    let Target::Job(request) = &config.target else {
        return Ok(None);
    };
    let unprivileged = config.sources.need_tasks() && !privileges::may_load_bpf();
    let (host, request, quiet) = (host.clone(), request.clone(), config.settings.quiet);
    let internal = |error: std::io::Error| Failure::new(Reason::Internal, error.to_string());
    let notifier = Notifier::new().map_err(internal)?;
    let done = readable(notifier.fd().map_err(internal)?).map_err(internal)?;
    let thread = std::thread::spawn(move || {
        let _raised = privileges::raise();
        let found = if unprivileged {
            // Setup reports missing privileges, as for all targets; the owner is reported here.
            match job::find::foreign_owner(&host, &request) {
                Some((id, uid)) => Err(Failure::new(
                    Reason::Target,
                    format!("job {id} is of another user (uid {uid}): run with sudo"),
                )),
                None => Ok(None),
            }
        } else {
            let report = |line: &str| {
                if !quiet {
                    report!("profiler: {line}");
                }
            };
            job::find::find(&host, &request, report).map(Some)
        };
        notifier.notify();
        found
    });
    let _ = done.readable().await;
    let found = thread.join().unwrap_or_else(|_| {
        Err(Failure::new(
            Reason::Internal,
            "looking for the job panicked",
        ))
    })?;
    if let Some(found) = &found
        && !config.settings.quiet
    {
        for note in &found.notes {
            report!("profiler: {note}");
        }
        if found.method == job::Method::Environment {
            report!(
                "profiler: job {} has no cgroup here, and {} lists no process of it: following \
                 processes of uid {} whose environment names it; new ones are searched for every \
                 second",
                found.id,
                found.scheduler,
                found.owner.map_or_else(String::new, |uid| uid.to_string())
            );
        }
    }
    Ok(found)
}

/// Threads that watch the job and the file of `--ipc-file`.
pub struct JobWatch {
    notifier: Notifier,
    job: Option<Watcher>,
    ipc_file: Option<IpcFile>,
}

impl JobWatch {
    /// Starts the threads that the target and the settings require.
    pub fn start(
        config: &Config,
        host: &Host,
        found: Option<&job::FoundJob>,
    ) -> Result<Option<Self>, Failure> {
        if found.is_none() && config.settings.ipc_file.is_none() {
            return Ok(None);
        }
        let internal = |error: std::io::Error| Failure::new(Reason::Internal, error.to_string());
        let notifier = Notifier::new().map_err(internal)?;
        let job = found.map(|found| Watcher::start(host, found, notifier.clone()));
        let ipc_file = config
            .settings
            .ipc_file
            .as_ref()
            .map(|path| IpcFile::watch(path.clone(), notifier.clone()));
        Ok(Some(Self {
            job: job.transpose().map_err(internal)?,
            ipc_file: ipc_file.transpose().map_err(internal)?,
            notifier,
        }))
    }

    /// Becomes readable when a thread has news.
    pub fn notifier(&self) -> std::io::Result<AsyncFd<OwnedFd>> {
        readable(self.notifier.fd()?)
    }

    /// Follows processes and cgroups that have been found since the last call.
    pub fn follow(&self, tasks: &mut TaskTable) -> Result<()> {
        self.notifier.clear();
        let Some(job) = &self.job else { return Ok(()) };
        let changes = job.drain();
        for message in changes.messages {
            report!("profiler: {message}");
        }
        tasks.follow_more(changes.directories.as_deref(), &changes.pids)
    }

    /// Whether the job has ended; `None` if the processes of the target determine that.
    pub fn has_ended(&self, tasks: &TaskTable) -> Option<bool> {
        if self.ipc_file.as_ref().is_some_and(IpcFile::is_done) {
            return Some(true);
        }
        let job = self.job.as_ref()?;
        // The profiler can be a process of the job itself.
        let idle = tasks.live().unwrap_or(0) <= tasks.live_own();
        job.set_idle(idle);
        Some(job.is_over() && idle)
    }
}

/// Refuses an `--ipc-file` that marks the work as done.
pub fn check_ipc_file(config: &Config) -> Result<(), Failure> {
    let Some(path) = &config.settings.ipc_file else {
        return Ok(());
    };
    match ipc_file::progress(path) {
        Progress::Done(word) => Err(Failure::new(
            Reason::Target,
            format!(
                "{} reads {word}, not INPROGRESS: the work is done",
                path.display()
            ),
        )),
        Progress::InProgress | Progress::Absent => Ok(()),
    }
}
