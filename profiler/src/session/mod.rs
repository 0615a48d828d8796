//! One run: find the target, attach, read every source at each tick, hand over, drain, stop.
//!
//! The only place that knows both sources and the sink.

mod boundaries;
mod job_watch;
pub mod launch;
pub mod retention;
mod setup;
mod summary;
pub mod target;
mod ticker;

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use caps::Capability;
use hashbrown::HashSet;
use rustix::process::Signal;
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
};

use self::{
    boundaries::{Boundaries, due},
    job_watch::JobWatch,
    launch::{Launcher, Running},
    setup::{Opened, Setup},
    summary::Summary,
    ticker::{Ticker, readable},
};
use crate::{
    bpf::Stats,
    config::{Config, Target},
    failure::{Failure, Reason},
    host, job,
    marks::Losses,
    output::{
        dataset::{Sink, manifest::Loss},
        instance_lock::{Acquired, InstanceLock},
        per_job::{Moment, PerJob},
        recovery::Recovery,
    },
    privileges, report,
    schema::Batch,
    sources::{SourceSpec, TickContext},
    support::{
        clock::{Clock, Tick, Timekeeping, monotonic_ns, thread_cpu_ns},
        invoking_user, log,
        self_metrics::{Component, SelfMetrics},
    },
    tasks::TaskTable,
};

/// Profiles until the target ends, the duration is over or a signal comes. The result is our exit code.
///
/// # Errors
///
/// With the reason that decides the exit code.
pub fn run(config: &Config, command_line: Vec<String>) -> Result<u8, Failure> {
    // First, while the profiler is small and has one thread.
    let launcher = match &config.target {
        Target::Command(command) => Some(Launcher::new(command)?),
        _ => None,
    };
    let hostname = match &config.hostname {
        Some(name) => name.clone(),
        None => host::own_name(&config.procfs),
    };
    if let Some(path) = &config.log {
        log::open(path, &hostname, invoking_user::sudo_ids())?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Reason::Internal, format!("tokio: {error}")))?;
    runtime.block_on(async {
        // Before anything is written or started, so that a signal always ends in order.
        let mut signals = Signals::new()
            .map_err(|error| Failure::new(Reason::Internal, format!("signals: {error}")))?;
        job_watch::check_ipc_file(config)?;
        let job = tokio::select! {
            job = job_watch::find(config) => job?,
            signal = signals.next() => return Ok(of_signal(signal)),
        };
        let run_id = match &job {
            // All nodes of a job find the same name.
            Some(job) if config.run_id.is_none() => Some(job::run_id(job.scheduler, &job.id)),
            _ => config.run_id.clone(),
        };
        let config = &Config {
            run_id,
            ..config.clone()
        };
        let Guarded::Ours(_guard) = guard(config, &hostname)? else {
            return Ok(0);
        };
        let setup = Setup::new(config, command_line, job.as_ref())?;
        Session::new(config, setup, launcher)?.run(signals).await
    })
}

/// Asks for the right to write the run, if it is one that others can write.
fn guard(config: &Config, hostname: &str) -> Result<Guarded, Failure> {
    let Some(run_id) = &config.run_id else {
        return Ok(Guarded::Ours(None));
    };
    let pid = match InstanceLock::take(&config.out, run_id, hostname)? {
        Acquired::Locked(guard) => return Ok(Guarded::Ours(Some(guard))),
        Acquired::AlreadyLocked(pid) => pid,
    };
    let message = format!("process {pid} already profiles for run {run_id} here");
    if !config.once {
        return Err(Failure::new(Reason::Output, message));
    }
    if !config.quiet {
        report!("profiler: {message}");
    }
    Ok(Guarded::Needless)
}

/// Whether there is something to do.
enum Guarded {
    /// Nobody else writes the run as long as this is kept; of a name of its own, nobody can.
    Ours(Option<InstanceLock>),
    /// Another process does it.
    Needless,
}

/// The signals that end a run.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Target,
    Duration,
    Signal(Signal),
}

struct Session<'a> {
    config: &'a Config,
    clock: Clock,
    sources: Vec<Opened>,
    tasks: TaskTable,
    tasks_failed: bool,
    sink: Sink,
    recovery: Recovery,
    split: Option<PerJob>,
    self_metrics: SelfMetrics,
    summary: Summary,
    command: Option<Running>,
    boundaries: Option<Boundaries>,
    run_dir: std::path::PathBuf,
    cgroup: Option<std::path::PathBuf>,
    job: Option<JobWatch>,
    seen_live: bool,
    forwarded: bool,
    started: u64,
    number: u64,
    ticks: u64,
    missed: u64,
    tick_ns: u64,
}

impl<'a> Session<'a> {
    fn new(config: &'a Config, setup: Setup, launcher: Option<Launcher>) -> Result<Self, Failure> {
        let split = setup
            .template
            .map(|template| PerJob::new(template, config.interval, config.quiet))
            .transpose()
            .map_err(|error| Failure::new(Reason::Internal, format!("a thread: {error}")))?;
        let mut session = Self {
            config,
            clock: setup.clock,
            sources: setup.sources,
            tasks: setup.tasks,
            tasks_failed: false,
            sink: setup.sink,
            recovery: setup.recovery,
            split,
            self_metrics: SelfMetrics::default(),
            summary: Summary::default(),
            command: None,
            boundaries: setup.marks.map(Boundaries::new),
            run_dir: setup.run_dir,
            cgroup: setup.cgroup,
            job: setup.job,
            // Attaching to pids has proved that they lived.
            seen_live: !matches!(config.target, Target::Cgroup(_)),
            forwarded: false,
            started: monotonic_ns(),
            number: 0,
            ticks: 0,
            missed: 0,
            tick_ns: 0,
        };
        let mut what = setup.what;
        if let Some(launcher) = launcher {
            match session.start(launcher, &setup.keeps_capabilities) {
                Ok(pid) => what = format!("{what} (process {pid})"),
                Err(failure) => {
                    // Nothing was profiled: leave nothing behind.
                    let run_dir = session.run_dir.clone();
                    let _ = session.sink.finish();
                    // A run with a name can hold what others have written.
                    if config.run_id.is_none() {
                        let _ = std::fs::remove_dir_all(run_dir);
                    }
                    return Err(failure);
                }
            }
        } else {
            let raised = privileges::raise();
            session.tick(false);
            drop(raised);
            privileges::keep_for_sampling(&setup.keeps_capabilities);
        }
        if !config.quiet {
            if let Some(line) = &setup.missing {
                report!("profiler: {line}");
            }
            report!("profiling {what} into {}", session.run_dir.display());
            let started = session.command.is_some();
            if let Some(boundaries) = session.boundaries.as_ref().filter(|_| !started) {
                let path = boundaries.receiver.path().display();
                report!("marks are taken with {}={path}", crate::marks::VARIABLE);
            }
        }
        Ok(session)
    }

    /// Makes the command's process, takes the baselines and lets it run: nothing else is left to do by then, so that its
    /// row is of the command alone.
    fn start(&mut self, launcher: Launcher, keep: &[Capability]) -> Result<u32, Failure> {
        let marks = self.boundaries.as_ref().map(|b| b.receiver.path());
        let stopped = launcher.spawn(marks)?;
        let pid = stopped.pid;
        let raised = privileges::raise();
        if let Err(error) = self.tasks.follow_more(None, &[pid]) {
            stopped.cancel();
            return Err(Failure::new(Reason::Internal, format!("{error:#}")));
        }
        self.sink
            .describe(|manifest| manifest.target["pids"] = serde_json::json!([pid]));
        self.tick(false);
        drop(raised);
        privileges::keep_for_sampling(keep);
        self.command = Some(stopped.release()?);
        Ok(pid)
    }

    async fn run(mut self, mut signals: Signals) -> Result<u8, Failure> {
        self.recovery.begin();
        let mut ticker =
            Ticker::new(self.started, self.config.interval).map_err(|error| cannot_wait(&error))?;
        let stop = self.sample_until_stopped(&mut signals, &mut ticker).await?;
        // What ends at this moment is still on its way through the kernel.
        if stop == Stop::Target {
            self.wait_for_last_exit().await;
        }
        self.tasks.read_footprints();
        // What was due and is no longer read.
        let due = ticker.pending().map_err(|error| cannot_wait(&error))?;
        self.missed += due;
        self.number += due + 1;
        self.tick(true);
        let elapsed = monotonic_ns() - self.started;
        let end = self.clock.wall(monotonic_ns());
        self.losses();
        self.sink.describe(|manifest| {
            manifest.set_end(end.0);
            manifest.clock.end = Some(Timekeeping::now());
        });
        let lost_of_jobs = self.end_jobs();
        let (run_dir, ticks, command) = (self.run_dir.clone(), self.ticks, self.command.take());
        let result = self
            .sink
            .finish()
            .map_err(|error| Failure::new(Reason::Output, error.to_string()))?;
        if !result.is_complete() {
            let (dropped, journal) = result.tables.values().fold((0, 0), |sum, table| {
                (sum.0 + table.dropped, sum.1 + table.in_journal)
            });
            let mut message = format!("{dropped} rows lost");
            if journal != 0 {
                message = format!(
                    "{message}, {journal} only in the journal: `profiler recover {}` when there is room",
                    run_dir.display()
                );
            }
            if let Some(error) = result.last_error {
                message = format!("{message} ({error})");
            }
            return Err(Failure::new(Reason::Output, message));
        }
        if !lost_of_jobs.is_empty() {
            return Err(Failure::new(Reason::Output, lost_of_jobs.join("; ")));
        }
        if !self.config.quiet {
            let counters: String = self
                .sources
                .iter()
                .filter_map(|(_, source, _)| source.summary(elapsed))
                .collect();
            report!("{}", self.summary.text(elapsed, ticks, &counters, &run_dir));
        }
        if !matches!(stop, Stop::Signal(_)) {
            tokio::select! {
                () = self.recovery.finish() => {}
                signal = signals.next() => return Ok(of_signal(signal)),
            }
        }
        // A command that outlives its profiling has nobody to tell anything.
        self.sources.clear();
        self.boundaries = None;
        exit_code(command, stop, self.config.quiet)
    }

    /// Ends the runs of jobs, and tells what is lost of them.
    fn end_jobs(&mut self) -> Vec<String> {
        let monotonic_ns = monotonic_ns();
        let moment = Moment {
            monotonic_ns,
            ts: self.clock.wall(monotonic_ns),
            losses: self.lost(),
        };
        let split = self.split.take();
        split.map_or_else(Vec::new, |split| {
            let refused = split.refused();
            if !refused.is_empty() {
                report!(
                    "profiler: {} processes named jobs beyond the quotas of their users: they are in the node's run",
                    refused.values().sum::<u64>()
                );
            }
            self.sink
                .describe(|manifest| manifest.refused_claims = refused);
            let (opened, lost) = (split.opened(), split.finish(&moment));
            if !self.config.quiet {
                report!("profiled {opened} jobs");
            }
            lost
        })
    }

    async fn sample_until_stopped(
        &mut self,
        signals: &mut Signals,
        ticker: &mut Ticker,
    ) -> Result<Stop, Failure> {
        let events = self.events().map_err(|error| cannot_wait(&error))?;
        let ended = self
            .command
            .as_ref()
            .map(|running| running.pidfd.try_clone().and_then(readable))
            .transpose()
            .map_err(|error| cannot_wait(&error))?;
        let notifier = match &self.job {
            Some(job) => Some(job.notifier().map_err(|error| cannot_wait(&error))?),
            None => None,
        };
        let spent = Duration::from_nanos(monotonic_ns() - self.started);
        let deadline = async {
            match self.config.duration {
                Some(duration) => tokio::time::sleep(duration.saturating_sub(spent)).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                () = wait_readable(ended.as_ref()) => return Ok(Stop::Target),
                () = &mut deadline => return Ok(Stop::Duration),
                signal = signals.next() => if let Some(stop) = self.interrupted(signal) {
                    return Ok(stop);
                },
                () = wait_readable(events.as_ref()) => self.pump(),
                () = wait_readable(notifier.as_ref()) => self.follow_job(),
                () = due(self.boundaries.as_ref()) => self.boundary(),
                expired = ticker.next() => {
                    let expired = expired.map_err(|error| cannot_wait(&error))?;
                    self.number += expired.passed;
                    self.missed += expired.passed - 1;
                    self.self_metrics.late_ns = expired.late_ns;
                    self.tick(false);
                }
            }
            if self.target_has_ended() {
                return Ok(Stop::Target);
            }
        }
    }

    /// Becomes readable when the kernel has something to tell before the next tick.
    fn events(&mut self) -> std::io::Result<Option<AsyncFd<OwnedFd>>> {
        self.tasks
            .programs()
            .map(|programs| programs.events_fd().and_then(readable))
            .transpose()
    }

    /// Takes over events before their buffer is full, and follows moves between cgroups.
    fn pump(&mut self) {
        let result = self.tasks.drain_events();
        self.report_tasks(result);
    }

    /// Follows what has become known of the job.
    fn follow_job(&mut self) {
        if let Some(job) = &self.job {
            let result = job.follow(&mut self.tasks);
            self.report_tasks(result);
        }
    }

    /// A signal goes to the command, whose end then ends the run. Without a command, or the second time, it ends
    /// the run itself.
    fn interrupted(&mut self, signal: Signal) -> Option<Stop> {
        match &self.command {
            Some(running) if !std::mem::replace(&mut self.forwarded, true) => {
                running.signal(signal);
                None
            }
            _ => Some(Stop::Signal(signal)),
        }
    }

    fn target_has_ended(&mut self) -> bool {
        if let Some(job) = &self.job
            && let Some(ended) = job.has_ended(&self.tasks)
        {
            return ended;
        }
        if matches!(self.config.target, Target::Node | Target::Command(_)) {
            return false;
        }
        let live = self.tasks.live().unwrap_or(0);
        self.seen_live |= live != 0;
        let cgroup_gone = self
            .cgroup
            .as_ref()
            .is_some_and(|directory| !directory.exists());
        live == 0 && (self.seen_live || cgroup_gone)
    }

    /// The command's pidfd is readable, and its descendants are waited for, a little before their last threads have left the
    /// CPU; on a busy machine, long before. What lives on is not waited for.
    async fn wait_for_last_exit(&mut self) {
        for waited in 0..1000 {
            let live = self.tasks.live().unwrap_or(0);
            if live == 0 || waited >= 20 && !self.tasks.any_exiting() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Reads every source once and hands the rows over.
    fn tick(&mut self, last: bool) {
        let monotonic_ns = monotonic_ns();
        let at = |monotonic_ns| Tick {
            number: self.number,
            monotonic_ns,
            ts: self.clock.wall(monotonic_ns),
        };
        let mut tick = at(monotonic_ns);
        let result = self.tasks.refresh(&tick, last);
        self.tasks.deliver(None);
        if last {
            // After every end that it reports.
            tick = at(crate::support::clock::monotonic_ns());
        }
        self.report_tasks(result);
        self.self_metrics.ran(
            "tasks",
            crate::support::clock::monotonic_ns() - monotonic_ns,
            0,
            false,
        );
        self.self_metrics
            .account(Component::Source, "tasks")
            .dropped = Some(self.tasks.names_lost());
        self.summary.add(&self.tasks);
        self.account();
        let read = self.read_sources(tick, last, None);
        let mut batches = Vec::new();
        if let Some(boundaries) = &mut self.boundaries {
            boundaries.have_ticked(monotonic_ns);
            batches = boundaries.release();
        }
        batches.extend(read);
        self.submit(&tick, batches);
        self.ticks += u64::from(self.number != 0);
        self.tick_ns += crate::support::clock::monotonic_ns() - monotonic_ns;
    }

    /// Reads the sources of processes once more, between two ticks: those of the processes that are marked.
    fn boundary(&mut self) {
        let Some(boundaries) = &self.boundaries else {
            return;
        };
        let receiver = Arc::clone(&boundaries.receiver);
        let monotonic_ns = monotonic_ns();
        let tick = Tick {
            number: self.number,
            monotonic_ns,
            ts: self.clock.wall(monotonic_ns),
        };
        let cpu_ns = thread_cpu_ns();
        let users = boundaries.users(monotonic_ns);
        let result = self.tasks.refresh(&tick, false);
        // All that was sent before the reading is here now.
        let marked = receiver.marked_by(&users);
        self.tasks.deliver(Some(&marked));
        self.report_tasks(result);
        self.summary.add(&self.tasks);
        let read = self.read_sources(tick, false, Some(&marked));
        // Rows of marks are limited by the rates of marks.
        let specs = self.sources.iter().map(|(spec, ..)| *spec);
        let of_marks: Vec<_> = specs
            .filter(|spec| spec.marks)
            .flat_map(|spec| spec.tables)
            .collect();
        let of_processes = |batch: &&Batch| {
            let mut tables = of_marks.iter();
            tables.all(|table| !std::ptr::eq(**table, batch.table))
        };
        let rows: u64 = read
            .iter()
            .filter(of_processes)
            .map(|batch| batch.rows.num_rows() as u64)
            .sum();
        let rows = self.tasks.share_among_users(rows);
        if let Some(boundaries) = &mut self.boundaries {
            boundaries.have_read(monotonic_ns, thread_cpu_ns() - cpu_ns, &rows);
            let batches = boundaries.hold(read);
            self.submit(&tick, batches);
        }
        self.tick_ns += crate::support::clock::monotonic_ns() - monotonic_ns;
    }

    /// Hands rows over: those of jobs to their runs, if each has one.
    fn submit(&mut self, tick: &Tick, batches: Vec<Batch>) {
        let node_batches = match self.split.take() {
            Some(mut split) => {
                let moment = self.moment(tick);
                let node_batches = split.take(&self.tasks, &moment, batches);
                self.split = Some(split);
                node_batches
            }
            None => batches,
        };
        self.sink.submit(node_batches);
    }

    /// Reads all sources, or those of processes, at the moment at which the processes were read.
    fn read_sources(
        &mut self,
        tick: Tick,
        last: bool,
        boundary: Option<&HashSet<u32>>,
    ) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        let mut completed: Vec<&'static SourceSpec> = Vec::new();
        for (spec, source, failed) in &mut self.sources {
            if boundary.is_some() && !spec.is_read_at_boundaries() {
                continue;
            }
            let begin = monotonic_ns();
            let begin_cpu = thread_cpu_ns();
            let before = batches.len();
            let ctx = TickContext {
                tick,
                tasks: &self.tasks,
                self_metrics: &self.self_metrics,
                completed: &completed,
                last,
                boundary,
            };
            let result = source.sample(&ctx, &mut batches);
            let rows = batches[before..]
                .iter()
                .map(|batch| batch.rows.num_rows() as u64)
                .sum();
            let ns = monotonic_ns() - begin;
            self.self_metrics.ran(spec.name, ns, rows, result.is_err());
            if let Some(boundaries) = &mut self.boundaries
                && spec.marks
            {
                boundaries.have_handled(thread_cpu_ns() - begin_cpu);
                boundaries.account(&mut self.self_metrics);
            }
            match result {
                Ok(()) => completed.push(spec),
                Err(error) => {
                    if !std::mem::replace(failed, true) {
                        report!("profiler: source {}: {error:#}", spec.name);
                    }
                }
            }
        }
        batches
    }

    fn report_tasks(&mut self, result: Result<()>) {
        if let Err(error) = result.context("the processes of the target")
            && !std::mem::replace(&mut self.tasks_failed, true)
        {
            report!("profiler: {error:#}");
        }
    }

    /// Brings the ledger up to date.
    fn account(&mut self) {
        let controller = self.self_metrics.account(Component::Controller, "profiler");
        controller.runs = Some(self.ticks);
        controller.run_ns = Some(self.tick_ns);
        controller.dropped = Some(self.missed);
        let stats = self.sink.stats();
        let sink = self.self_metrics.account(Component::Sink, "parquet");
        sink.runs = Some(stats.ticks);
        sink.run_ns = Some(stats.write_ns);
        sink.rows = Some(stats.rows);
        sink.dropped = Some(stats.dropped);
        sink.errors = Some(stats.errors);
        if let Some(error) = stats.last_error {
            report!("profiler: output: {error}");
        }
        let Some(programs) = self.tasks.programs() else {
            return;
        };
        if let Ok(counters) = programs.counters() {
            for (map, lost) in counters.dropped() {
                let account = self.self_metrics.account(Component::Map, map);
                if lost != 0 && account.dropped == Some(0) {
                    report!("profiler: map {map} is full: what finds no room is lost, and counted");
                }
                account.dropped = Some(lost);
            }
        }
        for (name, stats) in programs.program_stats() {
            if stats == Stats::default() {
                continue;
            }
            let account = self.self_metrics.account(Component::Program, name);
            account.runs = (stats.runs != 0).then_some(stats.runs);
            account.run_ns = (stats.runs != 0).then_some(stats.run_ns);
            account.dropped = Some(stats.missed);
        }
    }

    fn moment(&self, tick: &Tick) -> Moment {
        Moment {
            monotonic_ns: tick.monotonic_ns,
            ts: tick.ts,
            losses: self.lost(),
        }
    }

    /// What is not in the data so far.
    fn lost(&self) -> Vec<Loss> {
        let mut losses = Vec::new();
        if self.missed != 0 {
            let why = "the machine or the profiler was too busy".to_owned();
            losses.push(Loss {
                what: "ticks".to_owned(),
                count: self.missed,
                why,
                uid: None,
            });
        }
        for (part, name, account) in self.self_metrics.iter() {
            let lost = account.dropped.unwrap_or(0);
            let (what, why) = match part {
                Component::Map => ("operations", format!("map {name} was full")),
                Component::Program => (
                    "events",
                    format!("program {name} was running on that CPU already"),
                ),
                Component::Source => (
                    "names",
                    "reading the memory of the processes took too long".to_owned(),
                ),
                _ => continue,
            };
            if lost != 0 {
                losses.push(Loss {
                    what: what.to_owned(),
                    count: lost,
                    why,
                    uid: None,
                });
            }
        }
        let marks = self
            .boundaries
            .as_ref()
            .map(|marks| marks.receiver.losses());
        for (uid, loss, count) in marks.iter().flat_map(Losses::of_users) {
            losses.push(Loss {
                what: Loss::MARKS.to_owned(),
                count,
                why: loss.why().to_owned(),
                uid,
            });
        }
        losses
    }

    /// Puts what is not in the data into run.json.
    fn losses(&mut self) {
        let losses = self.lost();
        if !self.config.quiet {
            for loss in losses.iter().filter(|loss| loss.what != "ticks") {
                report!("profiler: {loss}");
            }
            if self.missed != 0 {
                report!("profiler: {} ticks missed", self.missed);
            }
        }
        self.sink
            .describe(|manifest| manifest.losses.extend(losses));
    }
}

fn cannot_wait(error: &std::io::Error) -> Failure {
    Failure::new(Reason::Internal, format!("cannot wait: {error}"))
}

fn of_signal(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(1)
}

/// The command's exit code is ours; when it outlives the profiling by its duration, it is waited for.
fn exit_code(command: Option<Running>, stop: Stop, quiet: bool) -> Result<u8, Failure> {
    let Some(running) = command else {
        return Ok(0);
    };
    match stop {
        Stop::Signal(signal) => {
            if !quiet && !running.has_ended() {
                report!(
                    "profiler: the command (process {}) has not ended: it continues without the profiler",
                    running.pid()
                );
            }
            return Ok(of_signal(signal));
        }
        Stop::Duration if !quiet => report!("waiting for the command to end"),
        Stop::Duration | Stop::Target => {}
    }
    let status = running
        .wait()
        .map_err(|error| Failure::new(Reason::Internal, format!("wait: {error}")))?;
    Ok(launch::exit_code(status))
}

/// Waits until the descriptor is readable; for ever if there is none.
async fn wait_readable(fd: Option<&AsyncFd<OwnedFd>>) {
    match fd {
        Some(fd) => {
            if let Ok(mut guard) = fd.readable().await {
                guard.clear_ready();
            }
        }
        None => std::future::pending().await,
    }
}
