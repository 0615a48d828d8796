//! The runs of batch jobs.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::mpsc::{Sender, channel},
    time::Duration,
};

use serde_json::Value;

use super::{JobIdentity, claims::ClaimQuota};
use crate::{
    output::{
        Reading, SessionEnd,
        dataset::{
            DatasetOptions, DatasetWriter, FinishError, Manifest, WriteSummary, manifest::Loss,
        },
        instance_lock::{Acquired, InstanceLock},
        recovery::AbandonedRuns,
    },
    privileges, report,
    schema::{Batch, Timestamp},
    support::{log::harmless, reported::ReportedOnce, timekeeping::Timekeeping},
    warning,
};

/// Memory budget of a run in bytes.
const MEMORY_BUDGET: usize = 8 << 20;
/// Limit of open runs of jobs with cgroups. Claims have limits of their own.
const MAX_OPEN: usize = 512;
/// Intervals after which a job without processes has ended, between two limits: the steps of a job
/// follow each other.
const PAUSE: u32 = 30;
const MIN_PAUSE: Duration = Duration::from_secs(3);
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// Number of a run, in the order in which they were opened.
pub type RunNumber = u64;

/// Work for a new thread.
type Work = Box<dyn FnOnce() + Send>;

/// What the runs of all jobs have in common.
pub struct RunTemplate {
    /// Options; directory and name are those of the run of the node.
    pub options: DatasetOptions,
    /// The directory of the runs.
    pub abandoned: AbandonedRuns,
    /// Description; name and target are those of the run of the node.
    pub manifest: Manifest,
}

struct JobRun {
    job: JobIdentity,
    writer: DatasetWriter,
    lock: InstanceLock,
    /// User of the processes so far; root only if all are root's, as daemons of schedulers are.
    uid: Option<u32>,
    live: u64,
    /// Time of the end of the last process: ns of `CLOCK_MONOTONIC`, and wall clock.
    idle_since: Option<(u64, Timestamp)>,
    /// Losses of the session when the run was opened.
    losses_before: Vec<Loss>,
}

/// The runs of all jobs with processes on this node, and of those that have just ended.
pub struct JobRuns {
    template: RunTemplate,
    quiet: bool,
    pause_ns: u64,
    spawner: Sender<Work>,
    open: HashMap<RunNumber, JobRun>,
    by_job: HashMap<JobIdentity, RunNumber>,
    /// Runs whose writer has been told to end.
    ending: Vec<JobRun>,
    opened: u64,
    claims: ClaimQuota,
    messages: ReportedOnce,
    /// Losses of runs that have ended.
    lost: Vec<String>,
}

impl JobRuns {
    pub fn new(template: RunTemplate, interval: Duration, quiet: bool) -> io::Result<Self> {
        // A thread inherits the privileges of its parent, and the sampling thread drops those that
        // writing needs.
        let (spawner, work) = channel::<Work>();
        std::thread::Builder::new()
            .name("jobs".to_owned())
            .spawn(move || {
                privileges::keep_for_files();
                for work in work {
                    // Without its thread, a writer reports an error when it is finished.
                    let _ = std::thread::Builder::new()
                        .name("sink".to_owned())
                        .spawn(work);
                }
            })?;
        let pause = (interval * PAUSE).clamp(MIN_PAUSE, MAX_PAUSE);
        Ok(Self {
            template,
            quiet,
            pause_ns: u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX),
            spawner,
            open: HashMap::new(),
            by_job: HashMap::new(),
            ending: Vec::new(),
            opened: 0,
            claims: ClaimQuota::default(),
            messages: ReportedOnce::default(),
            lost: Vec::new(),
        })
    }

    /// Replaces the settings in the descriptions of the runs.
    pub fn reconfigure(&mut self, config: &Value) {
        self.template.manifest.config.clone_from(config);
        for run in self.open.values() {
            run.writer.describe(|manifest| manifest.reconfigure(config));
        }
    }

    /// Runs opened so far.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Processes per user that claimed a job and got no run for it.
    pub fn refused(&self) -> BTreeMap<u32, u64> {
        self.claims.refused()
    }

    /// Counts a process that claimed a job and got no run for it.
    pub fn refuse(&mut self, uid: u32) {
        self.claims.refuse(uid);
    }

    /// The open run of a job.
    pub fn of(&self, job: &JobIdentity) -> Option<RunNumber> {
        self.by_job.get(job).copied()
    }

    /// Counts a new process of a job, of a user.
    pub fn enter(&mut self, run: RunNumber, uid: u32) {
        if let Some(run) = self.open.get_mut(&run) {
            run.live += 1;
            run.idle_since = None;
            if run.uid.is_none_or(|known| known == 0 && uid != 0) {
                run.uid = Some(uid);
                run.writer.describe(|manifest| {
                    manifest.uid = Some(uid);
                    // A look-up of the name could wait for a network.
                    manifest.user = uid.to_string();
                });
            }
        }
    }

    /// Counts the end of a process of a job.
    pub fn leave(&mut self, run: RunNumber, reading: &Reading<'_>) {
        if let Some(run) = self.open.get_mut(&run) {
            run.live = run.live.saturating_sub(1);
            if run.live == 0 {
                run.idle_since = Some((reading.monotonic_ns, reading.ts));
            }
        }
    }

    /// Queues rows for a run.
    pub fn write(&mut self, run: RunNumber, batches: Vec<Batch>) {
        if let Some(run) = self.open.get(&run) {
            run.writer.write(batches);
        }
    }

    /// The run of a job, opened if necessary; `None` while that is not possible.
    pub fn open(&mut self, job: &JobIdentity, reading: &Reading<'_>) -> Option<RunNumber> {
        if let Some(run) = self.by_job.get(job) {
            return Some(*run);
        }
        let with_cgroup = |run: &&JobRun| run.job.claimant.is_none();
        if job.claimant.is_none() && self.open.values().filter(with_cgroup).count() >= MAX_OPEN {
            self.report_once(&format!(
                "{MAX_OPEN} jobs at a time: rows of further jobs are in the run of the node"
            ));
            return None;
        }
        // The run is continued when it has ended.
        if self.ending.iter().any(|run| run.job == *job) {
            return None;
        }
        if let Some(uid) = job.claimant
            && let Err(limit) = self.claims.take(uid, reading.monotonic_ns)
        {
            self.report_once(&format!(
                "{limit} by environment: rows of further jobs are in the run of the node"
            ));
            return None;
        }
        let Some(lock) = self.lock(job) else {
            self.release_claim(job);
            return None;
        };
        let writer = self.start_writer(job, reading);
        if !self.quiet {
            let run_dir = writer.run_dir().display();
            report!("profiling job {} into {run_dir}", harmless(&job.id));
        }
        self.opened += 1;
        let number = self.opened;
        self.by_job.insert(job.clone(), number);
        let run = JobRun {
            job: job.clone(),
            writer,
            lock,
            uid: None,
            live: 0,
            idle_since: Some((reading.monotonic_ns, reading.ts)),
            losses_before: (reading.losses)(),
        };
        self.open.insert(number, run);
        Some(number)
    }

    fn lock(&mut self, job: &JobIdentity) -> Option<InstanceLock> {
        let run_id = job.run_id();
        let (out, host) = (
            &self.template.abandoned.out,
            &self.template.options.hostname,
        );
        let message = match InstanceLock::take(out, &run_id, host) {
            Ok(Acquired::Locked(lock)) => return Some(lock),
            Ok(Acquired::AlreadyLocked(pid)) => format!(
                "run {run_id} is written by process {pid}: its rows are in the run of the node"
            ),
            Err(error) => error.to_string(),
        };
        self.report_once(&message);
        None
    }

    fn start_writer(&self, job: &JobIdentity, reading: &Reading<'_>) -> DatasetWriter {
        let run_id = job.run_id();
        let mut options = self.template.options.clone();
        let mut manifest = self.template.manifest.clone();
        options.run_dir = self.path(job);
        options.run_id.clone_from(&run_id);
        options.memory_budget = MEMORY_BUDGET;
        manifest.target = serde_json::json!({
            "what": format!("job {} ({})", job.id, job.scheduler),
            "job": {
                "scheduler": job.scheduler.name().to_lowercase(),
                "id": &*job.id,
                "source": job.method().name(),
                "claimed_by_uid": job.claimant,
            },
            "node_run": manifest.run_id,
        });
        (manifest.uid, manifest.user) = (None, String::new());
        manifest.run_id.clone_from(&run_id);
        manifest.set_start(reading.ts.ns());
        options.manifest = Some(manifest);
        let abandoned = self.template.abandoned.clone();
        DatasetWriter::start_later(options, |writer| {
            let _ = self.spawner.send(Box::new(move || {
                abandoned.recover(&run_id);
                writer();
            }));
        })
    }

    /// Directory of the run of a job.
    fn path(&self, job: &JobIdentity) -> PathBuf {
        self.template.abandoned.out.join(job.run_id())
    }

    fn release_claim(&mut self, job: &JobIdentity) {
        if let Some(uid) = job.claimant {
            self.claims.release(uid);
        }
    }

    fn report_once(&mut self, message: &str) {
        if self.messages.insert(message) {
            warning!("profiler: {message}");
        }
    }

    /// Ends the runs of jobs that have had no process for a while; returns their numbers.
    pub fn end_idle(&mut self, reading: &Reading<'_>) -> Vec<RunNumber> {
        let is_over = |run: &JobRun| {
            run.live == 0
                && run.idle_since.is_some_and(|(since, _)| {
                    reading.monotonic_ns.saturating_sub(since) > self.pause_ns
                })
        };
        let over: Vec<RunNumber> = self
            .open
            .iter()
            .filter(|(_, run)| is_over(run))
            .map(|(number, _)| *number)
            .collect();
        for number in &over {
            self.end(*number, reading.ts, &(reading.losses)());
        }
        over
    }

    fn end(&mut self, number: RunNumber, now: Timestamp, losses: &[Loss]) {
        let Some(run) = self.open.remove(&number) else {
            return;
        };
        self.by_job.remove(&run.job);
        let end = run.idle_since.map_or(now, |(_, ts)| ts);
        let losses = increase(&run.losses_before, losses);
        run.writer.describe(|manifest| {
            manifest.set_end(end.ns());
            manifest.clock.end = Some(Timekeeping::now());
            manifest.losses.extend(losses);
        });
        run.writer.request_end();
        self.ending.push(run);
    }

    /// Reports the results of runs that have ended, and errors of the others. Returns whether a run
    /// has ended.
    pub fn collect(&mut self) -> bool {
        let (ended, ending): (Vec<_>, Vec<_>) = std::mem::take(&mut self.ending)
            .into_iter()
            .partition(|run| run.writer.has_ended());
        self.ending = ending;
        let any_ended = !ended.is_empty();
        for run in ended {
            self.close(run);
        }
        for run in self.open.values() {
            if let Some(error) = run.writer.take_error() {
                warning!("profiler: job {}: output: {error}", harmless(&run.job.id));
            }
        }
        any_ended
    }

    /// Waits for the end of a run and reports the result.
    fn close(&mut self, run: JobRun) {
        let path = self.path(&run.job);
        let result = run.writer.finish();
        drop(run.lock);
        self.release_claim(&run.job);
        match &result {
            Ok(summary) if summary.is_complete() => {
                if let Some(error) = &summary.unreported {
                    warning!("profiler: job {}: output: {error}", harmless(&run.job.id));
                }
                if !self.quiet {
                    report!(
                        "job {} has no processes left: {}",
                        harmless(&run.job.id),
                        path.display()
                    );
                }
            }
            result => {
                let lost = format!("job {}: {}", harmless(&run.job.id), losses(result, &path));
                self.report_once(&lost);
                self.lost.push(lost);
            }
        }
    }

    /// Ends all runs; returns their losses.
    pub fn finish(mut self, end: &SessionEnd) -> Vec<String> {
        let numbers: Vec<RunNumber> = self.open.keys().copied().collect();
        for number in numbers {
            self.end(number, end.ts, &end.losses);
        }
        for run in std::mem::take(&mut self.ending) {
            self.close(run);
        }
        self.lost
    }
}

fn losses(result: &Result<WriteSummary, FinishError>, path: &Path) -> String {
    match result {
        Ok(summary) => {
            let (dropped, journal) = summary.losses();
            let why = summary.last_error.as_deref().unwrap_or("unknown reason");
            format!(
                "{}: {dropped} rows lost, {journal} only in the journal ({why})",
                path.display()
            )
        }
        Err(error) => error.to_string(),
    }
}

/// Losses since `before`.
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
    fn run_has_the_losses_since_it_was_opened() {
        let loss = |why: &str, count| Loss {
            what: "operations".to_owned(),
            count,
            why: why.to_owned(),
            uid: None,
        };
        let losses = increase(
            &[loss("a", 5), loss("b", 2)],
            &[loss("a", 7), loss("b", 2), loss("c", 1)],
        );
        assert_eq!(losses, [loss("a", 2), loss("c", 1)]);
    }
}
