//! The job router (`--split-by job`): rows of the processes of a batch job go to a run of the job.
//!
//! The rows of a table are partitioned by `(pid, start_ts)`, whatever table it is. Rows without a
//! process, and those of processes without a job, are passed on to the next output. All runs have
//! the same samples, so `ts` and `host` join them.

mod claims;
mod identity;
mod partition;
mod runs;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    time::Duration,
};

use serde_json::Value;

pub use self::{identity::JobIdentity, runs::RunTemplate};
use self::{
    partition::partition,
    runs::{JobRuns, RunNumber},
};
use super::{Output, OutputReport, Reading, SessionEnd};
use crate::{
    schema::Batch,
    support::{heap, reported::ReportedOnce},
    tasks::{Process, ProcessId},
    warning,
};

/// Time for which rows of an ended process can follow, ns: its writes can be under way.
const AFTERMATH: u64 = 60_000_000_000;

/// Owner of a row: `(pid, start_ts)`.
type RowOwner = (u32, i64);

/// Sends rows to the runs of jobs.
pub struct JobRouter {
    runs: JobRuns,
    /// The run of every process that has a job.
    members: HashMap<RowOwner, RunNumber>,
    /// Ended members with the time of their end, oldest first.
    ended: VecDeque<(u64, RowOwner)>,
    /// Processes whose job has no run yet.
    waiting: HashSet<ProcessId>,
    messages: ReportedOnce,
}

impl JobRouter {
    /// Creates a router without runs. It starts a thread while this one has the privileges for
    /// files.
    ///
    /// # Errors
    ///
    /// When the thread cannot be created.
    pub fn open(template: RunTemplate, interval: Duration, quiet: bool) -> io::Result<Self> {
        let runs = JobRuns::new(template, interval, quiet)?;
        heap::share(2);
        Ok(Self {
            runs,
            members: HashMap::new(),
            ended: VecDeque::new(),
            waiting: HashSet::new(),
            messages: ReportedOnce::default(),
        })
    }

    /// Assigns processes that are new, or execute another program, to the runs of their jobs.
    fn follow(&mut self, reading: &Reading<'_>) {
        let tasks = reading.tasks;
        let waiting = std::mem::take(&mut self.waiting);
        let mut without_run: HashSet<JobIdentity> = HashSet::new();
        let changed = tasks.changed.iter().filter(|id| !waiting.contains(*id));
        let changed = changed.map(|id| (*id, true));
        let waiting = waiting.iter().map(|id| (*id, false));
        for (id, is_news) in changed.chain(waiting) {
            if let Some(process) = tasks.get(id) {
                let owner = (id.pid, tasks.clock.wall_of_boottime(id.start_boottime).us());
                self.assign(reading, process, owner, is_news, &mut without_run);
            }
        }
    }

    fn assign(
        &mut self,
        reading: &Reading<'_>,
        process: &Process,
        owner: RowOwner,
        is_news: bool,
        without_run: &mut HashSet<JobIdentity>,
    ) {
        let mut run = self.members.get(&owner).copied();
        let job = JobIdentity::of(reading.tasks, process);
        // A claim is void as soon as the cgroup proves a job.
        if let (Some(claimed), Some(job)) = (run, &job)
            && job.claimant.is_none()
            && self.runs.of(job) != Some(claimed)
        {
            self.runs.leave(claimed, reading);
            self.members.remove(&owner);
            run = None;
        }
        if run.is_none()
            && let Some(job) = job
        {
            if !without_run.contains(&job) {
                run = self.runs.open(&job, reading);
            }
            if let Some(run) = run {
                self.members.insert(owner, run);
                self.runs.enter(run, process.uid);
            } else {
                if let Some(uid) = job.claimant.filter(|_| is_news) {
                    self.runs.refuse(uid);
                }
                without_run.insert(job);
                if process.end.is_none() {
                    self.waiting.insert(process.id);
                }
            }
        }
        if let (Some(run), Some(_)) = (run, process.end) {
            self.ended.push_back((reading.monotonic_ns, owner));
            self.runs.leave(run, reading);
        }
    }

    /// Forgets processes whose rows cannot follow any more.
    fn forget(&mut self, now: u64) {
        while let Some((at, owner)) = self.ended.front()
            && now.saturating_sub(*at) > AFTERMATH
        {
            self.members.remove(owner);
            self.ended.pop_front();
        }
    }
}

impl Output for JobRouter {
    fn reconfigured(&mut self, config: &Value) {
        self.runs.reconfigure(config);
    }

    fn write(&mut self, reading: &Reading<'_>, batches: Vec<Batch>) -> Vec<Batch> {
        self.follow(reading);
        let mut rest = Vec::new();
        let mut of_runs: HashMap<RunNumber, Vec<Batch>> = HashMap::new();
        for batch in batches {
            match partition(&batch, |owner| self.members.get(&owner).copied()) {
                Ok(None) => rest.push(batch),
                Ok(Some(partitions)) => {
                    for (run, batch) in partitions {
                        match run {
                            Some(run) => of_runs.entry(run).or_default().push(batch),
                            None => rest.push(batch),
                        }
                    }
                }
                Err(error) => {
                    let message = format!("partitioning {} by job: {error}", batch.table.name);
                    if self.messages.insert(&message) {
                        warning!("profiler: {message}");
                    }
                    rest.push(batch);
                }
            }
        }
        for (run, batches) in of_runs {
            self.runs.write(run, batches);
        }
        self.forget(reading.monotonic_ns);
        let over = self.runs.end_idle(reading);
        if !over.is_empty() {
            // Later rows of their processes are passed on.
            self.members.retain(|_, run| !over.contains(run));
        }
        if self.runs.collect() {
            heap::trim();
        }
        rest
    }

    fn finish(self: Box<Self>, end: &mut SessionEnd) -> OutputReport {
        let refused = self.runs.refused();
        if !refused.is_empty() {
            warning!(
                "profiler: {} processes named jobs beyond the quotas of their users: their rows \
                 are in the run of the node",
                refused.values().sum::<u64>()
            );
        }
        end.refused_claims = refused;
        let opened = self.runs.opened();
        OutputReport {
            lines: vec![format!("jobs       {opened}")],
            lost: self.runs.finish(end),
            run: None,
        }
    }
}
