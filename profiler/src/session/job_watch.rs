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
        self, Changes, Watcher,
        announcement::Announcement,
        stop_file::{self, Progress, StopFile, StopPath},
    },
    privileges, report,
    support::{notifier::Notifier, regular_file::Links, resource_limits::no_task},
    tasks::TaskTable,
    warning,
};

/// Finds the job, if one is the target. A separate thread searches, because it can wait for a
/// minute and a signal must end it.
pub async fn find(config: &Config, host: &Host) -> Result<Option<job::FoundJob>, Failure> {
    let Target::Job(request) = &config.target else {
        return Ok(None);
    };
    let unprivileged = config.sources.need_tasks() && !privileges::may_load_bpf();
    let of_client = config.client.as_ref().is_some_and(|client| client.uid != 0);
    let (host, request, quiet) = (host.clone(), request.clone(), config.settings.quiet);
    let internal = |error: std::io::Error| Failure::new(Reason::Internal, error.to_string());
    let notifier = Notifier::new().map_err(internal)?;
    let done = readable(notifier.fd().map_err(internal)?).map_err(internal)?;
    let thread = std::thread::Builder::new().spawn(move || {
        let _raised = privileges::raise();
        let report = |line: &str| {
            if !quiet {
                report!("profiler: {line}");
            }
        };
        let found = job::find::find(&host, &request, unprivileged || of_client, report);
        notifier.notify();
        found
    });
    let thread = thread.map_err(|error| no_task("cannot start a thread", &error))?;
    let _ = done.readable().await;
    let found = thread.join().unwrap_or_else(|_| {
        Err(Failure::new(
            Reason::Internal,
            "looking for the job panicked",
        ))
    })?;
    if unprivileged && let Some(owner) = found.owner.filter(|owner| *owner != own_uid()) {
        let id = &found.id;
        let message = format!("job {id} is of another user (uid {owner}): run with sudo");
        return Err(Failure::new(Reason::Target, message));
    }
    if !config.settings.quiet {
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
    Ok(Some(found))
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Threads that watch the job, the file of `--stop-file` and the announcement of another node.
pub struct JobWatch {
    notifier: Notifier,
    job: Option<Watcher>,
    stop_file: Option<StopFile>,
    announcement: Option<Announcement>,
}

impl JobWatch {
    /// Starts the threads that the target and the settings require. The service only follows the
    /// processes of a job: its clients end their runs. `run` is the directory of the run.
    pub fn start(
        config: &Config,
        host: &Host,
        found: Option<&job::FoundJob>,
        stop_file: Option<StopPath>,
        run: Option<OwnedFd>,
    ) -> Result<Option<Self>, Failure> {
        if found.is_none() && stop_file.is_none() {
            return Ok(None);
        }
        let internal = |error: std::io::Error| Failure::new(Reason::Internal, error.to_string());
        let notifier = Notifier::new().map_err(internal)?;
        let job = found.map(|found| {
            Watcher::start(host, found, config.settings.idle_timeout, notifier.clone())
        });
        let stop_file = stop_file.map(|path| StopFile::watch(path, notifier.clone()));
        let announcement = run
            .filter(|_| found.is_some())
            .map(|run| Announcement::watch(run, notifier.clone()));
        Ok(Some(Self {
            job: job.transpose().map_err(internal)?,
            stop_file: stop_file.transpose().map_err(internal)?,
            announcement: announcement.transpose().map_err(internal)?.flatten(),
            notifier,
        }))
    }

    /// Becomes readable when a thread has news.
    pub fn notifier(&self) -> std::io::Result<AsyncFd<OwnedFd>> {
        readable(self.notifier.fd()?)
    }

    /// Follows processes and cgroups that have been found since the last call.
    pub fn follow(&self, tasks: &mut TaskTable) -> Result<()> {
        let changes = self.changes(|| tasks.live_pids())?;
        tasks.follow_more(changes.directories.as_deref(), &changes.pids)
    }

    /// Reports messages about the job, and returns what has changed since the last call. `live`
    /// returns the live processes of the job.
    pub fn changes(&self, live: impl FnOnce() -> Result<Vec<u32>>) -> Result<Changes> {
        self.notifier.clear();
        let Some(job) = &self.job else {
            return Ok(Changes::default());
        };
        let announcement = self.announcement.as_ref();
        if announcement.is_some_and(Announcement::is_heard) {
            job.set_announced();
        }
        if job.needs_members() {
            job.set_members(live()?);
        }
        let mut changes = job.drain();
        for message in changes.messages.drain(..) {
            report!("profiler: {message}");
        }
        Ok(changes)
    }

    /// Whether the file of `--stop-file` or the lack of work ends the run.
    pub fn ends_run(&self) -> bool {
        let job = self.job.as_ref();
        self.stop_file.as_ref().is_some_and(StopFile::is_done)
            || job.is_some_and(|job| job.job_idle().is_some())
    }

    /// Whether the job has ended; `None` if the processes of the target determine that.
    pub fn has_ended(&self, tasks: &TaskTable) -> Option<bool> {
        if self.ends_run() {
            return Some(true);
        }
        let job = self.job.as_ref()?;
        // The profiler can be a process of the job itself.
        let idle = tasks.live().unwrap_or(0) <= tasks.live_own();
        job.set_idle(idle);
        Some(job.is_over() && idle)
    }

    /// Reports why the target has ended, and announces it to the other nodes of the job.
    pub fn finish(&self, quiet: bool) {
        let idle = self.job.as_ref().and_then(Watcher::job_idle);
        if !quiet {
            if let Some(file) = self.stop_file.as_ref().filter(|file| file.is_done()) {
                let path = file.path().display();
                report!("profiler: {path} no longer reads INPROGRESS: the run ends");
            } else if let Some(end) = &idle {
                report!("profiler: {}: the run ends", end.reason);
            }
        }
        if let Some(announcement) = &self.announcement
            && idle.is_some_and(|end| end.has_script)
            && let Err(error) = announcement.announce()
        {
            warning!("profiler: cannot announce the end of the job to other nodes: {error}");
        }
    }
}

/// The file that can end the session. The service has none, because paths are those of its clients.
pub fn stop_file(config: &Config, found: Option<&job::FoundJob>) -> Option<StopPath> {
    if config.client.is_some() {
        return None;
    }
    let given = config.settings.stop_file.clone().map(StopPath::given);
    given.or_else(|| Some(StopPath::of_job(&found?.id)))
}

/// Refuses a `--stop-file` that marks the work as done, cannot be read, or is no regular file.
pub fn check_stop_file(config: &Config) -> Result<(), Failure> {
    let Some(path) = &config.settings.stop_file else {
        return Ok(());
    };
    match stop_file::progress(path, Links::Followed) {
        Progress::Done(word) => Err(Failure::new(
            Reason::Target,
            format!(
                "{} reads {word}, not INPROGRESS: the work is done",
                path.display()
            ),
        )),
        Progress::Ignored(why) | Progress::Unreadable(why) => Err(Failure::new(
            Reason::Target,
            format!("cannot read --stop-file {}: {why}", path.display()),
        )),
        Progress::InProgress | Progress::Absent => Ok(()),
    }
}
