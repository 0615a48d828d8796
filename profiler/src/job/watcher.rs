//! Search for new processes and for the end of a job while it runs, in a separate thread: commands
//! of the scheduler can hang, and reading all environments takes long.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    FoundJob, JobDirectory, Method, Scheduler,
    cgroup_watch::CgroupWatch,
    environment_search::{self, alive},
    scheduler_command::{self, JobState, JobStatus, QueryError, unrecognized},
    work_watch::WorkWatch,
};
use crate::{host::Host, privileges, procfs::process_cgroup, support::notifier::Notifier};

/// Shortest period of searches.
const PERIOD: Duration = Duration::from_secs(1);
/// Periodic searches take at most 1/50 of the time.
const PAUSE_FACTOR: u32 = 50;
/// Searches after changes of cgroups take at most 1/10 of the time. The job's user can cause any
/// number of changes.
const PAUSE_FACTOR_OF_CHANGES: u32 = 10;
/// Longest pause between two queries for the status of a job without processes.
const STATUS_PERIOD_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed query.
const RETRY: Duration = Duration::from_secs(30);

/// Changes since the last [`Watcher::drain`].
#[derive(Debug, Default)]
pub struct Changes {
    /// All cgroup directories of the job, if they have changed.
    pub directories: Option<Vec<JobDirectory>>,
    /// New processes that were not found by cgroup.
    pub pids: Vec<u32>,
    /// Messages to report.
    pub messages: Vec<String>,
}

/// State shared with the thread.
#[derive(Debug, Default)]
struct Shared {
    changes: Changes,
    /// Whether the job has no known live process.
    idle: bool,
    /// Whether the job is over.
    over: bool,
    members: Members,
    /// Whether another node announced the end of the work.
    announced: bool,
    job_idle: Option<JobIdle>,
    stop: bool,
}

/// The job has no work left on this node.
#[derive(Clone, Debug)]
pub struct JobIdle {
    /// Message about it.
    pub reason: String,
    /// Whether the script of the job runs on this node.
    pub has_script: bool,
}

/// The live processes of the job, which only the loop of the session knows.
#[derive(Debug, Default)]
enum Members {
    #[default]
    NotNeeded,
    Requested,
    Known(Vec<u32>),
}

/// Handle of the thread, which ends after the handle is dropped.
pub struct Watcher {
    shared: Arc<Mutex<Shared>>,
    wake: Notifier,
}

impl Watcher {
    /// Starts the thread. Changes are signalled through `notifier`.
    ///
    /// # Errors
    ///
    /// If the thread or a descriptor cannot be created.
    pub fn start(
        host: &Host,
        job: &FoundJob,
        idle_timeout: Option<Duration>,
        notifier: Notifier,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let wake = Notifier::new()?;
        let mut thread = WatchThread {
            host: host.clone(),
            job: job.clone(),
            reported: job.pids.iter().copied().collect(),
            shared: Arc::clone(&shared),
            notifier,
            wake: wake.clone(),
            cgroups: CgroupWatch::new()?,
            retry_at: None,
            pending: None,
            next_process_query: Instant::now(),
            work: WorkWatch::new(host.procfs.clone(), job, idle_timeout),
            next_work_search: Instant::now(),
        };
        thread::Builder::new()
            .name("job".to_owned())
            .spawn(move || thread.run())?;
        Ok(Self { shared, wake })
    }

    /// Returns and removes the changes so far.
    pub fn drain(&self) -> Changes {
        std::mem::take(&mut lock(&self.shared).changes)
    }

    /// Sets whether the job has no known live process.
    pub fn set_idle(&self, idle: bool) {
        let mut shared = lock(&self.shared);
        if shared.idle != idle {
            shared.idle = idle;
            self.wake.notify();
        }
    }

    /// Whether the job was over while it was idle.
    pub fn is_over(&self) -> bool {
        lock(&self.shared).over
    }

    /// Whether the thread needs the live processes of the job.
    pub fn needs_members(&self) -> bool {
        matches!(lock(&self.shared).members, Members::Requested)
    }

    /// Sets the live processes of the job.
    pub fn set_members(&self, pids: Vec<u32>) {
        lock(&self.shared).members = Members::Known(pids);
        self.wake.notify();
    }

    /// Sets that another node announced the end of the work, and requests the live processes.
    pub fn set_announced(&self) {
        let mut shared = lock(&self.shared);
        if !shared.announced {
            shared.announced = true;
            shared.members = Members::Requested;
        }
    }

    /// Whether the job has no work left on this node.
    pub fn job_idle(&self) -> Option<JobIdle> {
        lock(&self.shared).job_idle.clone()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        lock(&self.shared).stop = true;
        self.wake.notify();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the thread.
struct WatchThread {
    host: Host,
    job: FoundJob,
    /// Processes that were reported as new.
    reported: HashSet<u32>,
    shared: Arc<Mutex<Shared>>,
    notifier: Notifier,
    wake: Notifier,
    cgroups: CgroupWatch,
    /// Time of the next query after a failed one.
    retry_at: Option<Instant>,
    /// Result of the query in progress.
    pending: Option<Receiver<Answer>>,
    /// Earliest time of the next query for processes, because commands of the scheduler are costly.
    next_process_query: Instant,
    work: WorkWatch,
    next_work_search: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Query {
    Status,
    Processes,
}

enum Answer {
    Status(Result<JobStatus, QueryError>),
    Processes(Result<Vec<u32>, QueryError>, Duration),
}

impl WatchThread {
    fn run(&mut self) {
        privileges::keep_for_sampling(&[]);
        self.cgroups.watch(&self.job);
        let (mut next_search, mut next_status) = (Instant::now() + PERIOD, Instant::now());
        let (mut status_pause, mut earliest_status) = (PERIOD, Instant::now());
        let mut quiet_until = Instant::now();
        loop {
            let idle = {
                let shared = lock(&self.shared);
                if shared.stop {
                    return;
                }
                shared.idle && !shared.over
            };
            let awaits_status = idle && self.pending.is_none();
            let until = if awaits_status {
                next_search.min(next_status)
            } else {
                next_search
            };
            let changed = self.cgroups.wait(&self.wake, until, quiet_until);
            self.receive_answer();
            self.receive_members();
            let now = Instant::now();
            if changed || now >= next_search {
                self.search();
                self.request_members();
                let took = now.elapsed();
                next_search = now + PERIOD.max(took * PAUSE_FACTOR);
                quiet_until = now + took * PAUSE_FACTOR_OF_CHANGES;
            }
            if !idle {
                // The profiler's own commands can be processes of the job for a moment.
                next_status = next_status.min(earliest_status);
                status_pause = PERIOD;
            } else if self.pending.is_none() && Instant::now() >= next_status {
                self.check_end();
                earliest_status = Instant::now() + PERIOD;
                next_status = Instant::now() + status_pause;
                status_pause = (status_pause * 2).min(STATUS_PERIOD_MAX);
            }
        }
    }

    /// Searches for new cgroups or processes.
    fn search(&mut self) {
        match self.job.method {
            Method::Cgroup => self.search_directories(),
            Method::Environment => self.search_environments(),
            Method::Scheduler => {
                // The fallback during a query and after a failed one.
                if self.is_in_retry_pause() || self.pending.is_some() {
                    self.search_environments();
                }
                if Instant::now() >= self.next_process_query && !self.is_in_retry_pause() {
                    self.start_query(Query::Processes);
                }
            }
        }
    }

    fn search_directories(&mut self) {
        let Some(hierarchy) = &self.job.hierarchy else {
            return;
        };
        // Before the search, so that a later change causes another one.
        self.cgroups.watch(&self.job);
        let directories = self.job.job_ref().directories(&self.host, hierarchy);
        if directories == self.job.directories {
            return;
        }
        self.job.directories.clone_from(&directories);
        self.cgroups.watch(&self.job);
        lock(&self.shared).changes.directories = Some(directories);
        self.notifier.notify();
    }

    fn search_environments(&mut self) {
        let job = &self.job;
        let procfs = &self.host.procfs;
        let pids = environment_search::processes(procfs, job.job_ref(), job.owner);
        self.report_new(pids);
    }

    /// Reports processes that were not reported before.
    fn report_new(&mut self, pids: Vec<u32>) {
        let procfs = &self.host.procfs;
        self.reported
            .retain(|pid| procfs.join(pid.to_string()).exists());
        let is_new = |pid: &u32| self.reported.insert(*pid);
        let new: Vec<u32> = pids.into_iter().filter(is_new).collect();
        if !new.is_empty() {
            lock(&self.shared).changes.pids.extend(new);
            self.notifier.notify();
        }
    }

    /// Requests the live processes of the job from the loop, to search them for work.
    fn request_members(&mut self) {
        if Instant::now() >= self.next_work_search && !self.work.still_works() {
            lock(&self.shared).members = Members::Requested;
            self.notifier.notify();
        }
    }

    fn receive_members(&mut self) {
        let members = match &mut lock(&self.shared).members {
            members @ Members::Known(_) => std::mem::take(members),
            Members::NotNeeded | Members::Requested => return,
        };
        let Members::Known(pids) = members else {
            return;
        };
        if lock(&self.shared).announced {
            self.work.set_announced();
        }
        let mut members: HashSet<u32> = pids.into_iter().collect();
        // Without BPF, those of the loop are as old as its last reading.
        for directory in &self.job.directories {
            members.extend(process_cgroup::all_members(&directory.path));
        }
        let begin = Instant::now();
        let end = self.work.search(&members);
        self.next_work_search = begin + begin.elapsed() * PAUSE_FACTOR;
        let Some(end) = end else {
            return;
        };
        lock(&self.shared).job_idle = Some(JobIdle {
            reason: end.reason(&self.job.name()),
            has_script: self.work.has_script(),
        });
        self.notifier.notify();
    }

    /// Finds out whether the job, which has no known process, is over.
    fn check_end(&mut self) {
        // A step has no pauses.
        if self.is_in_retry_pause() || self.job.step.is_some() {
            self.end_without_processes();
        } else {
            self.start_query(Query::Status);
        }
    }

    /// Starts a query in a separate thread, because the command can hang. If the thread cannot be
    /// started, the query is repeated later.
    fn start_query(&mut self, query: Query) {
        if self.pending.is_some() {
            return;
        }
        let (scheduler, id) = (self.job.scheduler, self.job.id.clone());
        let name = self.job.name();
        let (sender, receiver) = channel();
        let wake = self.wake.clone();
        let thread = thread::Builder::new()
            .name("job-asks".to_owned())
            .spawn(move || {
                let begin = Instant::now();
                let _ = sender.send(match query {
                    Query::Status => Answer::Status(scheduler_command::status(scheduler, &id)),
                    Query::Processes => {
                        let pids = scheduler_command::processes(scheduler, &name);
                        Answer::Processes(pids, begin.elapsed())
                    }
                });
                wake.notify();
            });
        self.pending = thread.ok().map(|_| receiver);
    }

    fn receive_answer(&mut self) {
        let pending = self.pending.as_ref();
        let Some(answer) = pending.and_then(|pending| pending.try_recv().ok()) else {
            return;
        };
        self.pending = None;
        match answer {
            Answer::Status(status) => self.apply_status(status),
            Answer::Processes(pids, took) => self.apply_processes(pids, took),
        }
    }

    fn is_in_retry_pause(&self) -> bool {
        self.retry_at
            .is_some_and(|retry_at| Instant::now() < retry_at)
    }

    /// Starts the pause after a failed query, during which environments are searched.
    fn query_failed(&mut self, error: &QueryError) {
        let failed_before = self.retry_at.replace(Instant::now() + RETRY).is_some();
        if failed_before || matches!(error, QueryError::Unsupported(_)) {
            return;
        }
        let job = &self.job;
        self.report(format!(
            "cannot query {scheduler} about job {}: {error}; its processes are searched by their \
             environments, and it is considered over when it has no process; {scheduler} is \
             queried again every {} s",
            job.id,
            RETRY.as_secs(),
            scheduler = job.scheduler,
        ));
    }

    fn query_succeeded(&mut self) {
        if self.retry_at.take().is_some() {
            let job = &self.job;
            self.report(format!(
                "{} answers queries about job {} again",
                job.scheduler, job.id
            ));
        }
    }

    fn report(&self, message: String) {
        lock(&self.shared).changes.messages.push(message);
        self.notifier.notify();
    }

    fn apply_processes(&mut self, pids: Result<Vec<u32>, QueryError>, took: Duration) {
        // The duration of a timeout does not predict that of the next query, which `RETRY` delays.
        if !matches!(pids, Err(QueryError::TimedOut(_))) {
            self.next_process_query = Instant::now() + took * PAUSE_FACTOR;
        }
        match pids {
            Ok(pids) => {
                self.query_succeeded();
                let pids = alive(&self.host, pids);
                self.report_new(pids);
            }
            // The command also fails if the job has no process here.
            Err(QueryError::Failed(..)) => {
                self.query_succeeded();
                self.report_new(Vec::new());
            }
            Err(error) => {
                self.query_failed(&error);
                self.search_environments();
            }
        }
    }

    fn apply_status(&mut self, status: Result<JobStatus, QueryError>) {
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                self.query_failed(&error);
                self.end_without_processes();
                return;
            }
        };
        self.query_succeeded();
        self.job.owner = status.owner.or(self.job.owner);
        match status.state {
            JobState::Over(_) | JobState::Unknown => self.set_over(),
            JobState::Unrecognized(word) => {
                if !self.job.unrecognized.contains(&word) {
                    self.report(unrecognized(self.job.scheduler, &self.job.id, &word));
                    self.job.unrecognized.insert(word);
                }
                self.search_environments();
            }
            // Processes outside of its cgroup, such as ranks of mpirun in an allocation of salloc.
            JobState::Running | JobState::Waiting => self.search_environments(),
        }
    }

    /// Considers the job over if it has no process: the fallback without an answer of the
    /// scheduler.
    fn end_without_processes(&mut self) {
        if !self.has_processes() {
            self.set_over();
        }
    }

    fn set_over(&self) {
        lock(&self.shared).over = true;
        self.notifier.notify();
    }

    /// Whether any method finds a process of the job.
    fn has_processes(&self) -> bool {
        let has_members = |directory: &JobDirectory| {
            let members = process_cgroup::all_members(&directory.path);
            !alive(&self.host, members).is_empty()
        };
        let job = &self.job;
        job.directories.iter().any(has_members)
            || job.scheduler != Scheduler::None
                && !environment_search::processes(&self.host.procfs, job.job_ref(), job.owner)
                    .is_empty()
    }
}
