//! The thread that writes: takes ticks from the queue, ends parts, keeps `run.json` and `views.sql`.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    Options, OutputError, Phase, Shared, State, Stats, Summary, TableSummary, Tick,
    files::{self, is_plain_name},
    manifest::{self, Manifest},
    table::{Context, Counts, TableWriter},
    views, wait,
};
use crate::{
    schema::{Batch, Table},
    support::{clock::thread_cpu_ns, reported::ReportedOnce},
};

/// Rows wait for encoding in at most this much memory (bytes) over all tables.
const RAW_BYTES: usize = 8 << 20;
/// A table is encoded when this many bytes of its rows wait.
const TABLE_RAW_BYTES: usize = 4 << 20;
/// A part is ended early at this size in bytes.
const PART_BYTES: usize = 32 << 20;

/// A run directory that could not be made is tried again after this time.
const RETRY: Duration = Duration::from_secs(5);

/// Everything that the thread owns.
pub struct Writer {
    options: Options,
    context: Context,
    tables: Vec<TableWriter>,
    /// Parts when the views were last written.
    tables_with_parts: usize,
    ticks: u64,
    /// Ticks of which there are rows, besides lifetimes.
    ticks_with_rows: u64,
    errors: u64,
    last_error: Option<String>,
    reported: ReportedOnce,
    write_time: Duration,
    manifest_file: String,
}

/// Says when the writer has ended, even by a panic.
struct CompletionGuard<'a>(&'a Shared);

impl Drop for CompletionGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.phase = Phase::Ended;
        for tick in std::mem::take(&mut state.queue) {
            state.drop_tick(&tick);
        }
        drop(state);
        self.0.done.notify_all();
    }
}

impl Writer {
    /// Makes the run directory and writes the first `run.json`.
    pub fn new(mut options: Options) -> Result<Self, OutputError> {
        // The profiler may go elsewhere.
        if let Ok(path) = std::path::absolute(&options.run_dir) {
            options.run_dir = path;
        }
        for name in [&options.hostname, &options.run_id] {
            if !is_plain_name(name) {
                return Err(OutputError::Name { name: name.clone() });
            }
        }
        let made = !options.run_dir.exists();
        let run = files::create_run_dir(&options.run_dir, options.owner)?;
        let mut manifest_file = manifest::FILE.to_owned();
        if let Some(manifest) = &mut options.manifest {
            match manifest.create(&run) {
                Ok(name) => manifest_file = name,
                Err(error) => {
                    if made {
                        let _ = std::fs::remove_dir(&options.run_dir);
                    }
                    return Err(error);
                }
            }
        }
        Ok(Self {
            context: Context {
                run,
                host_directory: files::host_directory(&options.hostname),
                part_bytes: PART_BYTES.min(options.memory_budget / 4).max(1),
                errors: Vec::new(),
                parts_ended: 0,
            },
            options,
            tables: Vec::new(),
            tables_with_parts: 0,
            ticks: 0,
            ticks_with_rows: 0,
            errors: 0,
            last_error: None,
            reported: ReportedOnce::default(),
            write_time: Duration::ZERO,
            manifest_file,
        })
    }

    /// What `run.json` says at the start.
    pub fn manifest(&self) -> Option<Manifest> {
        self.options.manifest.clone()
    }

    /// Memory in bytes that rows may take before some are dropped.
    pub fn memory_budget(&self) -> usize {
        self.options.memory_budget
    }

    /// Writes until the sink ends.
    pub fn run(mut self, shared: &Shared) {
        let _alive = CompletionGuard(shared);
        let mut next_checkpoint = Instant::now() + self.options.checkpoint;
        while let Some(work) = next_work(shared, next_checkpoint) {
            let begin = Instant::now();
            match work {
                Work::Tick(tick) => self.tick(tick),
                Work::Manifest => self.write_manifest(shared, |_| {}),
                Work::Checkpoint => {
                    self.checkpoint(shared, false);
                    next_checkpoint = Instant::now() + self.options.checkpoint;
                }
            }
            self.write_time += begin.elapsed();
            self.report(shared);
        }
        self.finish(shared);
    }

    fn tick(&mut self, tick: Tick) {
        self.ticks += 1;
        let per_tick = |table: &Table| {
            !table.keyed
                && table
                    .columns()
                    .any(|column| column.name == "interval_ns" && !column.nullable)
        };
        let counts = |batch: &Batch| batch.rows.num_rows() != 0 && per_tick(batch.table);
        self.ticks_with_rows += u64::from(tick.batches.iter().any(counts));
        for batch in tick.batches {
            let known = self
                .tables
                .iter()
                .position(|table| std::ptr::eq(table.table, batch.table));
            let index = known.unwrap_or_else(|| {
                self.tables.push(TableWriter::new(
                    batch.table,
                    &self.options.run_id,
                    &self.options.hostname,
                ));
                self.tables.len() - 1
            });
            let table = &mut self.tables[index];
            table.add(&mut self.context, batch.rows);
            if table.raw_bytes() >= TABLE_RAW_BYTES {
                table.encode(&mut self.context);
            }
        }
        if self.options.sync {
            for table in &mut self.tables {
                table.sync(&mut self.context);
            }
        }
        self.limit_memory();
    }

    /// Encodes the largest tables, and then drops the oldest parts that could not be stored.
    fn limit_memory(&mut self) {
        let limit = RAW_BYTES.min(self.options.memory_budget / 8);
        while self
            .tables
            .iter()
            .map(TableWriter::raw_bytes)
            .sum::<usize>()
            > limit
        {
            if let Some(table) = self.tables.iter_mut().max_by_key(|table| table.raw_bytes()) {
                table.encode(&mut self.context);
            }
        }
        // The rest is for the queue.
        let limit = self.options.memory_budget / 4 * 3;
        while self.held_bytes() > limit {
            let Some(table) = self
                .tables
                .iter_mut()
                .filter(|table| table.oldest().is_some())
                .min_by_key(|table| table.oldest())
            else {
                break;
            };
            table.drop_oldest();
        }
    }

    fn held_bytes(&self) -> usize {
        self.tables.iter().map(TableWriter::bytes).sum()
    }

    fn checkpoint(&mut self, shared: &Shared, last: bool) {
        self.find_run_dir_again();
        // Tables that come meanwhile have nothing to store yet.
        for index in 0..self.tables.len() {
            self.tables[index].checkpoint(&mut self.context, last);
            let mut state = shared.lock();
            state.progress += 1;
            drop(state);
            shared.done.notify_all();
            self.take_ticks(shared);
        }
        self.limit_memory();
        let with_parts = self.tables.iter().filter(|t| t.counts.parts > 0).count();
        // Another host may have brought tables since.
        if last || with_parts != self.tables_with_parts {
            match views::refresh(&self.context.run, &self.options.hostname) {
                Ok(()) => self.tables_with_parts = with_parts,
                Err(error) => self.context.errors.push(format!("views.sql: {error}")),
            }
        }
        if !last {
            self.take_ticks(shared);
            self.write_manifest(shared, |_| {});
        }
    }

    /// Puts the ticks that came meanwhile into the journals: making a part durable can take longer than an interval,
    /// and what is only in memory is lost when the profiler is killed.
    fn take_ticks(&mut self, shared: &Shared) {
        while let Some(tick) = next_tick(&mut shared.lock()) {
            self.tick(tick);
        }
    }

    /// A run directory that was removed or unmounted is made again.
    fn find_run_dir_again(&mut self) {
        if self.context.run.is_gone() {
            match files::create_run_dir(&self.options.run_dir, self.options.owner) {
                Ok(directory) => {
                    self.context.run = directory;
                    for table in &mut self.tables {
                        table.forget_directory();
                    }
                }
                Err(error) => self.context.errors.push(error.to_string()),
            }
        }
    }

    /// Writes `run.json` if something in it has changed.
    fn write_manifest(&mut self, shared: &Shared, change: impl FnOnce(&mut Manifest)) {
        let mut state = shared.lock();
        let Some(manifest) = &state.manifest else {
            return;
        };
        let mut manifest = manifest.clone();
        let described = std::mem::take(&mut state.manifest_changed);
        let queue_dropped = state.dropped.clone();
        drop(state);
        let before = manifest.clone();
        manifest.tables.clone_from(&manifest.tables_before);
        for (name, table) in self.table_summaries(&queue_dropped) {
            let sum = manifest.tables.entry(name.to_owned()).or_default();
            sum.rows += table.rows;
            sum.parts += table.parts;
            sum.dropped += table.dropped;
            sum.in_journal += table.in_journal;
        }
        manifest.ticks = Some(manifest.ticks_before + self.ticks_with_rows);
        change(&mut manifest);
        if !described && manifest == before {
            return;
        }
        let written = manifest.write(&self.context.run, &self.manifest_file);
        let mut state = shared.lock();
        match written {
            Ok(()) => {
                if let Some(kept) = &mut state.manifest {
                    kept.ticks = manifest.ticks;
                    kept.tables = manifest.tables;
                }
            }
            Err(error) => {
                state.manifest_changed = true;
                drop(state);
                let message = format!("{}: {error}", self.manifest_file);
                self.context.errors.push(message);
            }
        }
    }

    fn finish(mut self, shared: &Shared) {
        let begin = Instant::now();
        self.checkpoint(shared, true);
        for table in &mut self.tables {
            table.close();
        }
        let dropped = shared.lock().dropped.clone();
        let mut summary = Summary {
            tables: self.table_summaries(&dropped),
            ..Summary::default()
        };
        let complete = summary.is_complete();
        self.write_manifest(shared, |manifest| manifest.finish(complete));
        self.write_time += begin.elapsed();
        self.report(shared);
        summary.errors = self.errors;
        summary.last_error = self.last_error.take();
        let mut state = shared.lock();
        summary.write_ns = state.stats.write_ns;
        summary.cpu_ns = state.stats.cpu_ns;
        state.summary = Some(summary);
    }

    fn table_summaries(
        &self,
        queue_dropped: &BTreeMap<&'static str, u64>,
    ) -> BTreeMap<&'static str, TableSummary> {
        let mut tables: BTreeMap<_, _> = self
            .tables
            .iter()
            .map(|table| {
                let Counts {
                    stored,
                    parts,
                    dropped,
                    in_journal,
                    ..
                } = table.counts;
                let summary = TableSummary {
                    rows: stored,
                    parts,
                    dropped,
                    in_journal,
                };
                (table.table.name, summary)
            })
            .collect();
        for (table, rows) in queue_dropped {
            tables.entry(*table).or_default().dropped += rows;
        }
        tables
    }

    /// Tells the other side what has happened.
    fn report(&mut self, shared: &Shared) {
        let new_errors = std::mem::take(&mut self.context.errors);
        let mut now = Stats {
            ticks: self.ticks,
            write_ns: u64::try_from(self.write_time.as_nanos()).unwrap_or(u64::MAX),
            cpu_ns: thread_cpu_ns(),
            ..Stats::default()
        };
        for table in &self.tables {
            let counts = table.counts;
            now.rows += counts.rows;
            now.dropped += counts.dropped;
            now.parts += counts.parts;
            now.journal_bytes += counts.journal_bytes;
            now.part_bytes += counts.part_bytes;
            if counts.dropped > 0 {
                now.dropped_by_table
                    .insert(table.table.name, counts.dropped);
            }
        }
        self.errors += new_errors.len() as u64;
        now.errors = self.errors;
        let held = self.held_bytes();
        let mut state = shared.lock();
        now.last_error = state.stats.last_error.take();
        for error in new_errors {
            self.last_error = Some(error.clone());
            // The same error at every checkpoint is reported once.
            if self.reported.insert(&error) {
                now.last_error = Some(match now.last_error.take() {
                    Some(before) => format!("{before}; {error}"),
                    None => error,
                });
            }
        }
        state.stats = now;
        state.held_bytes = held;
        state.progress += 1;
        drop(state);
        shared.done.notify_all();
    }
}

#[cfg(test)]
impl Writer {
    /// One tick without a thread.
    pub fn test_tick(&mut self, batches: Vec<Batch>) {
        self.tick(Tick { batches, bytes: 0 });
    }

    /// A checkpoint of all tables without a thread.
    pub fn test_checkpoint(&mut self) {
        for table in &mut self.tables {
            table.checkpoint(&mut self.context, false);
        }
    }
}

/// Makes the run directory, as often as it takes, and writes until the sink ends.
pub fn begin(options: &Options, shared: &Shared) {
    let alive = CompletionGuard(shared);
    loop {
        let error = match Writer::new(options.clone()) {
            Ok(writer) => {
                let mut state = shared.lock();
                // What was said of it meanwhile stays.
                if let (Some(kept), Some(found)) = (&mut state.manifest, writer.manifest()) {
                    kept.continues(found);
                }
                drop(state);
                std::mem::forget(alive);
                return writer.run(shared);
            }
            Err(error) => error.to_string(),
        };
        let mut state = shared.lock();
        state.stats.errors += 1;
        state.stats.last_error = Some(error.clone());
        let until = Instant::now() + RETRY;
        while state.phase == Phase::Running {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = wait(&shared.work, state, left);
        }
        if state.phase != Phase::Running {
            for tick in std::mem::take(&mut state.queue) {
                state.drop_tick(&tick);
            }
            let tables = state.dropped.iter().map(|(table, rows)| {
                let lost = TableSummary {
                    dropped: *rows,
                    ..TableSummary::default()
                };
                (*table, lost)
            });
            state.summary = Some(Summary {
                tables: tables.collect(),
                errors: state.stats.errors,
                last_error: Some(error),
                ..Summary::default()
            });
            return;
        }
    }
}

enum Work {
    Tick(Tick),
    Manifest,
    Checkpoint,
}

/// Waits for something to do; `None` at the end.
fn next_work(shared: &Shared, checkpoint: Instant) -> Option<Work> {
    let mut state = shared.lock();
    loop {
        let left = checkpoint.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(Work::Checkpoint);
        }
        if let Some(tick) = next_tick(&mut state) {
            return Some(Work::Tick(tick));
        }
        if std::mem::take(&mut state.manifest_urgent) {
            return Some(Work::Manifest);
        }
        if state.phase == Phase::Ending {
            return None;
        }
        state = wait(&shared.work, state, left);
    }
}

fn next_tick(state: &mut State) -> Option<Tick> {
    let tick = state.queue.pop_front()?;
    state.queued_bytes -= tick.bytes;
    // Until the writer has counted it.
    state.held_bytes += tick.bytes;
    Some(tick)
}
