//! One run per batch job, beside the node's own: rows of a job's processes go to the job's run.
//!
//! Rows are divided in one place, by `(pid, start_ts)`, whatever table they are of; what has no process, or a process of
//! no job, stays in the node's run. All runs have the same ticks, so that `ts` and `host` join them.

mod partition;
mod quota;
mod run;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::mpsc::{Sender, channel},
    time::Duration,
};

pub use self::run::{JobName, job_of};
use self::{partition::divide, quota::Quota};
use super::{
    dataset::{self, FinishError, Manifest, Sink, Summary, manifest::Loss},
    instance_lock::{Acquired, InstanceLock},
    recovery::Orphans,
};
use crate::{
    privileges, report,
    schema::{Batch, Timestamp},
    support::{reported::ReportedOnce, timekeeping::Timekeeping},
    tasks::{ProcessId, TaskTable},
};

/// Memory in bytes that the rows of a job may take before some are dropped and counted.
const BUDGET: usize = 8 << 20;
/// Jobs with cgroups, at a time. Those that only environments name have a quota of their own.
const MAX_OPEN: usize = 512;
/// A job without processes is over after so many intervals, between these bounds: steps follow each other.
const PAUSE: u32 = 30;
const SHORTEST: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(300);
/// How long rows can come of a process that has ended, ns: writes that are still under way.
const AFTERMATH: u64 = 60_000_000_000;

/// What identifies the process of a row: `(pid, start_ts)`.
type Key = (u32, i64);

/// A thread that is started by another one, which has the privileges for it.
type Start = Box<dyn FnOnce() + Send>;

/// What all runs of jobs have in common.
pub struct Template {
    /// How they are stored; directory and name are those of the node's run.
    pub options: dataset::Options,
    /// The runs of killed profilers, in the directory of the runs.
    pub orphans: Orphans,
    /// What their `run.json` says; name and target are those of the node's run.
    pub manifest: Manifest,
}

/// The runs of all jobs that have processes on this node, or had until a moment ago.
pub struct PerJob {
    template: Template,
    quiet: bool,
    pause_ns: u64,
    starter: Sender<Start>,
    /// The job of every process that has one.
    members: HashMap<Key, u64>,
    /// Those that have ended, oldest first.
    ended: VecDeque<(u64, Key)>,
    /// Processes whose job could not be opened yet.
    waiting: HashSet<ProcessId>,
    open: HashMap<u64, Run>,
    by_name: HashMap<JobName, u64>,
    ending: Vec<Run>,
    opened: u64,
    quota: Quota,
    reported: ReportedOnce,
    /// What is not in the runs of jobs.
    lost: Vec<String>,
}

/// The run of a job.
struct Run {
    name: JobName,
    sink: Sink,
    guard: InstanceLock,
    live: u64,
    /// When its last process ended, ns of `CLOCK_MONOTONIC`, and wall clock of that tick.
    idle_since: Option<(u64, Timestamp)>,
    /// What had been lost on the node before.
    losses: Vec<Loss>,
}

/// The moment of a tick and what had been lost until then.
pub struct Moment {
    /// `CLOCK_MONOTONIC` in ns.
    pub monotonic_ns: u64,
    /// Wall clock.
    pub ts: Timestamp,
    /// What is not in the data since the node's run began.
    pub losses: Vec<Loss>,
}

impl PerJob {
    /// No job yet.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a thread.
    pub fn new(template: Template, interval: Duration, quiet: bool) -> std::io::Result<Self> {
        // Threads inherit privileges, and those that sample give up the ones that writing needs.
        let (starter, starts) = channel::<Start>();
        std::thread::Builder::new()
            .name("jobs".to_owned())
            .spawn(move || {
                privileges::keep_for_files();
                for start in starts {
                    // A sink that is not written says so when it ends.
                    let _ = std::thread::Builder::new()
                        .name("sink".to_owned())
                        .spawn(start);
                }
            })?;
        crate::support::file_limit::raise();
        share_memory();
        let pause = (interval * PAUSE).clamp(SHORTEST, LONGEST);
        Ok(Self {
            template,
            quiet,
            pause_ns: u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX),
            starter,
            members: HashMap::new(),
            ended: VecDeque::new(),
            waiting: HashSet::new(),
            open: HashMap::new(),
            by_name: HashMap::new(),
            ending: Vec::new(),
            opened: 0,
            quota: Quota::default(),
            reported: ReportedOnce::default(),
            lost: Vec::new(),
        })
    }

    /// Runs that have been opened so far.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Processes that claimed a job and got no run, by user.
    pub fn refused(&self) -> BTreeMap<u32, u64> {
        self.quota.refused()
    }

    /// Hands the rows of jobs over to their runs and leaves the others.
    pub fn take(&mut self, tasks: &TaskTable, moment: &Moment, batches: Vec<Batch>) -> Vec<Batch> {
        self.follow(tasks, moment);
        let mut node_batches = Vec::new();
        let mut of_jobs: HashMap<u64, Vec<Batch>> = HashMap::new();
        for batch in batches {
            match divide(&batch, |key| self.members.get(&key).copied()) {
                Ok(None) => node_batches.push(batch),
                Ok(Some(divided)) => {
                    for (job, batch) in divided {
                        match job {
                            Some(job) => of_jobs.entry(job).or_default().push(batch),
                            None => node_batches.push(batch),
                        }
                    }
                }
                Err(error) => {
                    self.report_once(&format!("dividing {} by job: {error}", batch.table.name));
                    node_batches.push(batch);
                }
            }
        }
        for (job, batches) in of_jobs {
            if let Some(run) = self.open.get(&job) {
                run.sink.submit(batches);
            }
        }
        self.forget(moment.monotonic_ns);
        self.end_idle(moment);
        self.collect();
        node_batches
    }

    /// Finds the jobs of processes that are new or run another program, and counts those that live.
    fn follow(&mut self, tasks: &TaskTable, moment: &Moment) {
        let waiting = std::mem::take(&mut self.waiting);
        let mut without_run: HashSet<JobName> = HashSet::new();
        let changed = tasks.changed.iter().filter(|id| !waiting.contains(id));
        let changed = changed.map(|id| (*id, true));
        let waiting = waiting.iter().map(|id| (*id, false));
        for (id, is_news) in changed.chain(waiting) {
            let Some(process) = tasks.get(id) else {
                continue;
            };
            let key = (id.pid, tasks.clock.wall_of_boottime(id.start_boottime).0);
            let mut known = self.members.get(&key).copied();
            let name = job_of(tasks, process);
            // What a process claimed is void as soon as its cgroup tells.
            if let (Some(job), Some(name)) = (known, &name)
                && name.claimant.is_none()
                && self.by_name.get(name) != Some(&job)
            {
                self.leave(job, moment);
                self.members.remove(&key);
                known = None;
            }
            if known.is_none()
                && let Some(name) = name
            {
                if !without_run.contains(&name) {
                    known = self.join(&name, moment);
                }
                if let Some(job) = known {
                    self.members.insert(key, job);
                    if let Some(run) = self.open.get_mut(&job) {
                        run.live += 1;
                        run.idle_since = None;
                    }
                } else {
                    if let Some(uid) = name.claimant.filter(|_| is_news) {
                        self.quota.refuse(uid);
                    }
                    without_run.insert(name);
                    if process.end.is_none() {
                        self.waiting.insert(id);
                    }
                }
            }
            if let (Some(job), Some(_)) = (known, process.end) {
                self.ended.push_back((moment.monotonic_ns, key));
                self.leave(job, moment);
            }
        }
    }

    /// One process of a job less.
    fn leave(&mut self, job: u64, moment: &Moment) {
        if let Some(run) = self.open.get_mut(&job) {
            run.live = run.live.saturating_sub(1);
            if run.live == 0 {
                run.idle_since = Some((moment.monotonic_ns, moment.ts));
            }
        }
    }

    /// The run of a job, opened if need be; `None` while it cannot be.
    fn join(&mut self, name: &JobName, moment: &Moment) -> Option<u64> {
        if let Some(job) = self.by_name.get(name) {
            return Some(*job);
        }
        let run_id = name.run_id();
        let host = self.template.options.hostname.clone();
        let with_cgroup = |run: &&Run| run.name.claimant.is_none();
        if name.claimant.is_none() && self.open.values().filter(with_cgroup).count() >= MAX_OPEN {
            self.report_once(&format!(
                "{MAX_OPEN} jobs at a time: processes of more stay in the node's run"
            ));
            return None;
        }
        // Its run is being ended at this moment: a little later it is continued.
        if self.ending.iter().any(|run| run.name == *name) {
            return None;
        }
        if let Some(uid) = name.claimant
            && let Err(limit) = self.quota.take(uid, moment.monotonic_ns)
        {
            self.report_once(&format!(
                "{limit} by environment: processes of more stay in the node's run"
            ));
            return None;
        }
        let guard = match InstanceLock::take(&self.template.orphans.out, &run_id, &host) {
            Ok(Acquired::Locked(guard)) => guard,
            Ok(Acquired::AlreadyLocked(pid)) => {
                self.report_once(&format!(
                    "run {run_id} is written by process {pid}: its processes stay in the node's run"
                ));
                self.give_back(name);
                return None;
            }
            Err(failure) => {
                self.report_once(&failure.message);
                self.give_back(name);
                return None;
            }
        };
        let mut options = self.template.options.clone();
        let mut manifest = self.template.manifest.clone();
        let run_dir = self.template.orphans.out.join(&run_id);
        options.run_dir.clone_from(&run_dir);
        options.run_id.clone_from(&run_id);
        options.memory_budget = BUDGET;
        manifest.target = serde_json::json!({
            "what": format!("job {} ({})", name.id, name.scheduler),
            "job": {
                "scheduler": name.scheduler.name().to_lowercase(),
                "id": &*name.id,
                "source": name.method().name(),
                "claimed_by_uid": name.claimant,
            },
            "node_run": manifest.run_id,
        });
        manifest.run_id.clone_from(&run_id);
        manifest.begins(moment.ts.0);
        options.manifest = Some(manifest);
        let starter = &self.starter;
        let orphans = self.template.orphans.clone();
        let sink = Sink::begin(options, |writer| {
            let _ = starter.send(Box::new(move || {
                orphans.recover(&run_id);
                writer();
            }));
        });
        if !self.quiet {
            report!("profiling job {} into {}", name.id, run_dir.display());
        }
        self.opened += 1;
        let job = self.opened;
        self.by_name.insert(name.clone(), job);
        let run = Run {
            name: name.clone(),
            sink,
            guard,
            live: 0,
            idle_since: Some((moment.monotonic_ns, moment.ts)),
            losses: moment.losses.clone(),
        };
        self.open.insert(job, run);
        Some(job)
    }

    fn give_back(&mut self, name: &JobName) {
        if let Some(uid) = name.claimant {
            self.quota.give_back(uid);
        }
    }

    fn report_once(&mut self, message: &str) {
        if self.reported.insert(message) {
            report!("profiler: {message}");
        }
    }

    /// Forgets processes of which nothing can come any more.
    fn forget(&mut self, now: u64) {
        while let Some((at, key)) = self.ended.front()
            && now.saturating_sub(*at) > AFTERMATH
        {
            self.members.remove(key);
            self.ended.pop_front();
        }
    }

    /// Ends the runs of jobs that have had no process for a while.
    fn end_idle(&mut self, moment: &Moment) {
        let idle = |run: &Run| {
            run.live == 0
                && run.idle_since.is_some_and(|(since, _)| {
                    moment.monotonic_ns.saturating_sub(since) > self.pause_ns
                })
        };
        let over: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, run)| idle(run))
            .map(|(job, _)| *job)
            .collect();
        for job in over {
            self.end(job, moment);
        }
    }

    fn end(&mut self, job: u64, moment: &Moment) {
        let Some(run) = self.open.remove(&job) else {
            return;
        };
        self.by_name.remove(&run.name);
        // What is still to come of its processes goes to the node's run.
        self.members.retain(|_, of| *of != job);
        let end = run.idle_since.map_or(moment.ts, |(_, ts)| ts);
        let losses = increase(&run.losses, &moment.losses);
        run.sink.describe(|manifest| {
            manifest.set_end(end.0);
            manifest.clock.end = Some(Timekeeping::now());
            manifest.losses.extend(losses);
        });
        run.sink.ask_to_end();
        self.ending.push(run);
    }

    /// Says what became of the runs that have ended.
    fn collect(&mut self) {
        let (over, ending): (Vec<_>, Vec<_>) = std::mem::take(&mut self.ending)
            .into_iter()
            .partition(|run| run.sink.has_ended());
        self.ending = ending;
        if !over.is_empty() {
            for run in over {
                self.ended(run);
            }
            return_memory();
        }
        for run in self.open.values() {
            if let Some(error) = run.sink.take_error() {
                report!("profiler: job {}: output: {error}", run.name.id);
            }
        }
    }

    fn ended(&mut self, run: Run) {
        let path = self.template.orphans.out.join(run.name.run_id());
        let outcome = run.sink.finish();
        drop(run.guard);
        self.give_back(&run.name);
        match &outcome {
            Ok(summary) if summary.is_complete() => {
                if !self.quiet {
                    report!(
                        "job {} has no process any more: {}",
                        run.name.id,
                        path.display()
                    );
                }
            }
            outcome => {
                let lost = format!("job {}: {}", run.name.id, what_is_lost(outcome, &path));
                self.report_once(&lost);
                self.lost.push(lost);
            }
        }
    }

    /// Ends all runs, and tells what is lost.
    pub fn finish(mut self, moment: &Moment) -> Vec<String> {
        let jobs: Vec<u64> = self.open.keys().copied().collect();
        for job in jobs {
            self.end(job, moment);
        }
        for run in std::mem::take(&mut self.ending) {
            self.ended(run);
        }
        self.lost
    }
}

/// glibc has a heap for each of many threads, none of which gets smaller: with threads that come and go with the jobs, two
/// for all take half the memory.
fn share_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers, and there is no other thread in malloc that would mind.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Gives back what the threads of a job have left.
fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number; glibc locks its heaps.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn what_is_lost(outcome: &Result<Summary, FinishError>, path: &std::path::Path) -> String {
    match outcome {
        Ok(summary) => {
            let dropped: u64 = summary.tables.values().map(|table| table.dropped).sum();
            let journal: u64 = summary.tables.values().map(|table| table.in_journal).sum();
            let why = summary.last_error.as_deref().unwrap_or("no reason known");
            format!(
                "{}: {dropped} rows lost, {journal} only in the journal ({why})",
                path.display()
            )
        }
        Err(error) => error.to_string(),
    }
}

/// What was lost since `before`.
fn increase(before: &[Loss], now: &[Loss]) -> Vec<Loss> {
    let mut losses = now.to_vec();
    for loss in &mut losses {
        let known = before.iter().find(|known| {
            (&known.what, &known.why, known.uid) == (&loss.what, &loss.why, loss.uid)
        });
        loss.count = loss
            .count
            .saturating_sub(known.map_or(0, |known| known.count));
    }
    losses.retain(|loss| loss.count != 0);
    losses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_losses_of_its_own_time() {
        let loss = |why: &str, count| Loss {
            what: "operations".to_owned(),
            count,
            why: why.to_owned(),
            uid: None,
        };
        let lost = increase(
            &[loss("a", 5), loss("b", 2)],
            &[loss("a", 7), loss("b", 2), loss("c", 1)],
        );
        assert_eq!(lost, [loss("a", 2), loss("c", 1)]);
    }
}
