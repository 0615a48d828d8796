//! Readings: of all sources at a tick, of those of processes at a region boundary.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use hashbrown::HashSet;
use tokio::io::unix::AsyncFd;

use super::{
    boundaries::Boundaries,
    closing,
    interval_backoff::Budget,
    readiness::readable,
    self_metrics::{self, Ticks},
    ticker::{Expiration, Ticker},
};
use crate::{
    debug,
    failure::{Failure, Reason},
    marks::MarkReceiver,
    output::{Outputs, Reading, SessionEnd},
    report,
    schema::Batch,
    sources::{Source, SourceSpec, TickContext},
    support::{
        clock::{Clock, Tick, monotonic_ns, thread_cpu_ns},
        heap, own_cost,
        self_metrics::{Component, SelfMetrics},
        timekeeping::Timekeeping,
    },
    tasks::{Moment, TaskTable},
    warning,
};

/// Samples after which what the start has needed is free: rows, names and details of all processes.
const SETTLED: u64 = 2;

/// An open source, and whether an error of it was reported.
pub type Opened = (&'static SourceSpec, Box<dyn Source>, bool);

/// The end of a session.
#[derive(Clone, Copy)]
pub struct End {
    /// Deadlines that have passed without a sample.
    pub overdue: u64,
    /// Start of sampling, `CLOCK_MONOTONIC` in ns.
    pub started: u64,
    /// Exit code of the command, if there is one and it has ended.
    pub exit_code: Option<u8>,
}

/// Reads the sources and hands their rows to the outputs.
pub struct Sampler {
    clock: Clock,
    sources: Vec<Opened>,
    /// Processes of the target.
    pub tasks: TaskTable,
    outputs: Outputs,
    /// When to read between ticks; `None` without marks.
    pub boundaries: Option<Boundaries>,
    self_metrics: SelfMetrics,
    ticks: Ticks,
    /// CPU time of the last reading of the processes at a tick, ns.
    reading_cpu_ns: u64,
    /// CPU time of the last tick, ns.
    tick_cpu_ns: u64,
    /// Whether the baselines have been read.
    started: bool,
    /// Whether an error of reading the processes was reported.
    tasks_failed: bool,
}

impl Sampler {
    /// Nothing is read before the first tick.
    pub fn new(
        clock: Clock,
        sources: Vec<Opened>,
        tasks: TaskTable,
        outputs: Outputs,
        marks: Option<Arc<MarkReceiver>>,
    ) -> Self {
        Self {
            clock,
            sources,
            tasks,
            outputs,
            boundaries: marks.map(Boundaries::new),
            self_metrics: SelfMetrics::default(),
            ticks: Ticks::default(),
            reading_cpu_ns: 0,
            tick_cpu_ns: 0,
            started: false,
            tasks_failed: false,
        }
    }

    /// The socket that receives marks.
    pub fn marks_socket(&self) -> Option<&Path> {
        let boundaries = self.boundaries.as_ref()?;
        Some(boundaries.receiver.path())
    }

    /// Becomes readable when BPF programs have events before the next tick.
    pub fn events(&mut self) -> io::Result<Option<AsyncFd<OwnedFd>>> {
        let fd = self.tasks.events_fd();
        fd.map(|fd| fd.and_then(readable)).transpose()
    }

    /// Follows the process of the command, which has not started yet.
    pub fn follow_command(&mut self, pid: u32) -> Result<()> {
        self.tasks.follow_command(pid)?;
        self.outputs.command_created(pid);
        Ok(())
    }

    /// Drains events before their buffer is full, and follows moves between cgroups.
    pub fn drain_events(&mut self) {
        self.follow(TaskTable::drain_events);
    }

    /// Changes the set of followed processes; reports the first error.
    pub fn follow(&mut self, change: impl FnOnce(&mut TaskTable) -> Result<()>) {
        let result = change(&mut self.tasks);
        self.report_tasks(result);
    }

    /// Counts deadlines that have passed.
    pub fn advance(&mut self, expired: Expiration) {
        self.ticks.number += expired.passed;
        self.ticks.missed += expired.passed - 1;
        self.ticks.spared += (expired.passed - 1).min(self.ticks.backoff.saturating_sub(1));
        self.self_metrics.late_ns = expired.late_ns;
    }

    /// The settings of the session have changed.
    pub fn reconfigured(&mut self, config: &serde_json::Value) {
        self.outputs.reconfigured(config);
    }

    /// Samples so far, for the status of the service.
    pub fn progress(&self) -> String {
        let Ticks { taken, missed, .. } = self.ticks;
        format!("{taken} samples, {missed} missed")
    }

    /// Reads every source once and hands the rows over.
    pub fn tick(&mut self, last: bool) {
        if !std::mem::replace(&mut self.started, true) {
            self.self_metrics.start_cpu_ns = own_cost::cpu_ns();
        }
        let began = monotonic_ns();
        let mut tick = self.tick_at(began);
        let cpu_ns = thread_cpu_ns();
        let began_cpu = cpu_ns;
        let result = self
            .tasks
            .refresh(&tick, if last { Moment::End } else { Moment::Sample });
        self.reading_cpu_ns = thread_cpu_ns() - cpu_ns;
        self.tasks.deliver(None);
        if last {
            // After the end of every process that this tick reports.
            tick = self.tick_at(monotonic_ns());
        }
        self.report_tasks(result);
        let ns = monotonic_ns() - began;
        self.self_metrics.ran("tasks", ns, 0, false);
        let metrics = self.self_metrics.account(Component::Source, "tasks");
        metrics.dropped = Some(self.tasks.memory_lost().values().sum());
        self.ticks.update_self_metrics(&mut self.self_metrics);
        self.outputs.update_self_metrics(&mut self.self_metrics);
        self_metrics::update_programs(&mut self.self_metrics, &mut self.tasks);
        self_metrics::update_procfs(&mut self.self_metrics, &self.tasks);
        let read = self.read_sources(tick, last, None);
        let mut batches = Vec::new();
        if let Some(boundaries) = &mut self.boundaries {
            boundaries.tick_began(began);
            batches = boundaries.release();
        }
        batches.extend(read);
        let rows: usize = batches.iter().map(|batch| batch.rows.num_rows()).sum();
        let us = (monotonic_ns() - began) / 1000;
        debug!("sample {}: {rows} rows in {us} µs", tick.number);
        self.write(&tick, batches);
        self.ticks.taken += u64::from(self.ticks.number != 0);
        if self.ticks.taken == SETTLED {
            heap::trim();
        }
        self.ticks.busy_ns += monotonic_ns() - began;
        self.tick_cpu_ns = thread_cpu_ns() - began_cpu;
    }

    /// Adapts the interval to the cost of samples.
    pub fn adapt(&mut self, budget: &mut Budget, ticker: &mut Ticker, quiet: bool) {
        match budget {
            Budget::Reading(backoff) => {
                if self.tasks.procfs_losses().is_none() {
                    return;
                }
                ticker.backoff(backoff.update(self.reading_cpu_ns));
                let message = backoff.report(self.tasks.count(), self.reading_cpu_ns);
                if let (Some(message), false) = (message, quiet) {
                    report!("profiler: {message}");
                }
            }
            // The client is told by the losses.
            Budget::Client(backoff) => {
                self.ticks.backoff = backoff.update(self.tick_cpu_ns);
                ticker.backoff(self.ticks.backoff);
                let interval = backoff.interval_ns();
                self.ticks.longest_ns = self.ticks.longest_ns.max(interval);
            }
        }
    }

    fn tick_at(&self, monotonic_ns: u64) -> Tick {
        Tick {
            number: self.ticks.number,
            monotonic_ns,
            ts: self.clock.wall(monotonic_ns),
        }
    }

    /// Reads the sources of processes between two ticks, for the processes that have sent marks.
    pub fn boundary(&mut self) {
        let Some(boundaries) = &self.boundaries else {
            return;
        };
        let receiver = Arc::clone(&boundaries.receiver);
        let began = monotonic_ns();
        let cpu_ns = thread_cpu_ns();
        let users = boundaries.users(began);
        let tick = self.tick_at(began);
        let result = self.tasks.refresh(&tick, Moment::Boundary);
        // All marks that were sent before the reading have arrived.
        let marked = receiver.marked_by(&users);
        self.tasks.deliver(Some(&marked));
        self.report_tasks(result);
        let read = self.read_sources(tick, false, Some(&marked));
        let rows = self.tasks.share_among_users(self.rows_of_processes(&read));
        if let Some(boundaries) = &mut self.boundaries {
            boundaries.reading_done(began, thread_cpu_ns() - cpu_ns, &rows);
            let batches = boundaries.hold(read);
            self.write(&tick, batches);
        }
        self.ticks.busy_ns += monotonic_ns() - began;
    }

    /// Rows that are charged to users; those of the marks themselves are limited by the rates of
    /// marks.
    fn rows_of_processes(&self, batches: &[Batch]) -> u64 {
        let specs = self.sources.iter().map(|(spec, ..)| spec);
        let of_marks: Vec<_> = specs
            .filter(|spec| spec.marks)
            .flat_map(|spec| spec.tables)
            .collect();
        let is_of_marks = |batch: &Batch| {
            let mut tables = of_marks.iter();
            tables.any(|table| std::ptr::eq(**table, batch.table))
        };
        let of_processes = batches.iter().filter(|batch| !is_of_marks(batch));
        of_processes.map(|batch| batch.rows.num_rows() as u64).sum()
    }

    /// Hands the rows of a reading to the outputs.
    fn write(&mut self, tick: &Tick, batches: Vec<Batch>) {
        let boundaries = self.boundaries.as_ref();
        let losses =
            || self_metrics::losses(&self.ticks, &self.self_metrics, boundaries, &self.tasks);
        let reading = Reading {
            monotonic_ns: tick.monotonic_ns,
            ts: tick.ts,
            tasks: &self.tasks,
            losses: &losses,
        };
        self.outputs.write(&reading, batches);
    }

    /// Reads all sources, or at a boundary those of processes, at the moment at which the processes
    /// were read.
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
                boundaries.marks_handled(thread_cpu_ns() - begin_cpu);
                boundaries.update_self_metrics(&mut self.self_metrics);
            }
            match result {
                Ok(()) => completed.push(spec),
                Err(error) => {
                    if !std::mem::replace(failed, true) {
                        warning!("profiler: source {}: {error:#}", spec.name);
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
            warning!("profiler: {error:#}");
        }
    }

    /// Takes the last sample and ends the outputs. Returns the run and the text for the end of the
    /// session.
    ///
    /// # Errors
    ///
    /// When rows are lost or not stored.
    pub fn finish(&mut self, end: End, quiet: bool) -> Result<(Option<PathBuf>, String), Failure> {
        self.ticks.missed += end.overdue;
        self.ticks.spared += end.overdue.min(self.ticks.backoff.saturating_sub(1));
        self.ticks.number += end.overdue + 1;
        self.tick(true);
        self.outputs.update_self_metrics(&mut self.self_metrics);
        let now = monotonic_ns();
        let elapsed = now - end.started;
        let losses = self_metrics::losses(
            &self.ticks,
            &self.self_metrics,
            self.boundaries.as_ref(),
            &self.tasks,
        );
        if !quiet {
            for loss in losses.iter().filter(|loss| loss.what != "samples") {
                warning!("profiler: {loss}");
            }
            if self.ticks.missed != 0 {
                warning!("profiler: samples missed: {}", self.ticks.missed);
            }
        }
        let sources = self.sources.iter();
        let text = sources.filter_map(|(_, source, _)| source.summary(elapsed));
        let text: String = text.collect();
        let ended = self.outputs.finish(&mut SessionEnd {
            ts: self.clock.wall(now),
            exit_code: end.exit_code,
            summary: text.clone(),
            clock: Timekeeping::now(),
            losses,
            refused_claims: BTreeMap::new(),
        });
        if !ended.lost.is_empty() {
            return Err(Failure::new(Reason::Output, ended.lost.join("; ")));
        }
        let summary = if quiet {
            String::new()
        } else {
            closing::text(&ended, &text)
        };
        Ok((ended.run, summary))
    }

    /// Ends the outputs without a result, because the command could not be started.
    pub fn discard(self) {
        self.outputs.discard();
    }
}
