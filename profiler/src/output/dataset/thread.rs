//! The writer thread: takes batches from the queue, ends files at checkpoints, and keeps `run.json`
//! and `views.sql` up to date.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use super::{
    DatasetOptions, OutputError, TableSummary, WriteSummary, WriterStats,
    files::{self, is_plain_name},
    manifest::{self, Manifest},
    queue::{Phase, Shared, Submission, wait},
    run_table,
    table::{Counts, TableWriter, WriteContext},
    views,
};
use crate::{
    schema::Batch,
    support::{clock::thread_cpu_ns, reported::ReportedOnce},
};

/// Limit of rows that wait to be encoded, over all tables, bytes.
const RAW_BYTES: usize = 8 << 20;
/// Limit of rows of one table that wait to be encoded, bytes.
const TABLE_RAW_BYTES: usize = 4 << 20;
/// Size at which a Parquet file is ended before the checkpoint, bytes.
const FILE_BYTES: usize = 32 << 20;

/// Time between attempts to create the run directory.
const RETRY: Duration = Duration::from_secs(5);

/// State of the thread.
pub struct WriterThread {
    options: DatasetOptions,
    context: WriteContext,
    tables: Vec<TableWriter>,
    /// Tables with Parquet files when the views were last written.
    tables_in_views: usize,
    ticks: u64,
    /// Ticks with rows in tables that are not keyed.
    ticks_with_rows: u64,
    errors: u64,
    last_error: Option<String>,
    reported: ReportedOnce,
    write_time: Duration,
    manifest_file: String,
}

/// Marks the writer as ended when it is dropped, also by a panic.
struct CompletionGuard<'a>(&'a Shared);

impl Drop for CompletionGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.phase = Phase::Ended;
        state.drop_queue();
        drop(state);
        self.0.done.notify_all();
    }
}

impl WriterThread {
    /// Creates the run directory, and writes the first `run.json` and the views of tables that are
    /// still empty.
    pub fn new(mut options: DatasetOptions) -> Result<Self, OutputError> {
        // The working directory can change.
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
        let mut writer = Self {
            context: WriteContext {
                run,
                host_directory: files::host_directory(&options.hostname),
                file_bytes: FILE_BYTES.min(options.memory_budget / 4).max(1),
                errors: Vec::new(),
                files_ended: 0,
            },
            options,
            tables: Vec::new(),
            tables_in_views: 0,
            ticks: 0,
            ticks_with_rows: 0,
            errors: 0,
            last_error: None,
            reported: ReportedOnce::default(),
            write_time: Duration::ZERO,
            manifest_file,
        };
        // Other hosts and an earlier session have written those of their tables.
        if !writer.context.run.has(views::FILE).unwrap_or(true) {
            writer.refresh_views(0);
        }
        Ok(writer)
    }

    fn refresh_views(&mut self, tables: usize) {
        match views::refresh(
            &self.context.run,
            &self.options.hostname,
            self.options.schema,
        ) {
            Ok(()) => self.tables_in_views = tables,
            Err(error) => self.context.errors.push(format!("views.sql: {error}")),
        }
    }

    /// A descriptor of the run directory.
    pub fn directory(&self) -> io::Result<OwnedFd> {
        self.context.run.descriptor()
    }

    /// The manifest at the start.
    pub fn manifest(&self) -> Option<Manifest> {
        self.options.manifest.clone()
    }

    /// Limit of the memory for rows in bytes.
    pub fn memory_budget(&self) -> usize {
        self.options.memory_budget
    }

    /// Writes until the output ends.
    pub fn run(mut self, shared: &Shared) {
        let _guard = CompletionGuard(shared);
        if let Some(manifest) = self.manifest() {
            self.write_run_table(&manifest);
        }
        let mut next_checkpoint = Instant::now() + self.options.checkpoint;
        while let Some(work) = next_work(shared, next_checkpoint) {
            let begin = Instant::now();
            match work {
                Work::Submission(submission) => self.write(submission),
                Work::Manifest => {
                    self.write_manifest(shared, |_| {});
                }
                Work::Checkpoint => {
                    self.checkpoint(shared, false);
                    next_checkpoint = Instant::now() + self.options.checkpoint;
                }
            }
            self.write_time += begin.elapsed();
            self.publish(shared);
        }
        self.finish(shared);
    }

    fn write(&mut self, submission: Submission) {
        self.ticks += 1;
        let per_tick = |batch: &Batch| {
            let schema = batch.rows.schema_ref();
            let interval = schema.field_with_name("interval_ns");
            !batch.table.keyed && interval.is_ok_and(|interval| !interval.is_nullable())
        };
        let counts = |batch: &Batch| batch.rows.num_rows() != 0 && per_tick(batch);
        self.ticks_with_rows += u64::from(submission.batches.iter().any(counts));
        // Wherever the thread is killed, a sample in these tables has its rows in the others.
        let (of_samples, others): (Vec<_>, Vec<_>) = submission
            .batches
            .into_iter()
            .partition(|batch| batch.table.every_tick);
        for batch in others.into_iter().chain(of_samples) {
            let known = self
                .tables
                .iter()
                .position(|table| std::ptr::eq(table.table, batch.table));
            let index = known.unwrap_or_else(|| {
                self.tables
                    .push(TableWriter::new(batch.table, &self.options));
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

    /// Encodes the largest tables, then drops the oldest files that could not be stored.
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
        // The queue takes the rest.
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
        self.restore_run_dir();
        // Tables that are added meanwhile have nothing to store.
        for index in 0..self.tables.len() {
            self.tables[index].checkpoint(&mut self.context, last);
            let mut state = shared.lock();
            state.progress += 1;
            drop(state);
            shared.done.notify_all();
            self.write_queued(shared);
        }
        self.limit_memory();
        let with_files = self.tables.iter().filter(|t| t.counts.parts > 0).count();
        // Other hosts can have added tables.
        if last || with_files != self.tables_in_views {
            self.refresh_views(with_files);
        }
        if !last {
            self.write_queued(shared);
            self.write_manifest(shared, |_| {});
        }
    }

    /// Writes the queued rows to the journals. Syncing a Parquet file can take longer than an
    /// interval, and rows in memory are lost if the profiler is killed.
    fn write_queued(&mut self, shared: &Shared) {
        while let Some(submission) = shared.lock().next() {
            self.write(submission);
        }
    }

    /// Creates the run directory again if it was removed or unmounted.
    fn restore_run_dir(&mut self) {
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

    /// Writes `run.json` if it has changed. Returns its content.
    fn write_manifest(
        &mut self,
        shared: &Shared,
        change: impl FnOnce(&mut Manifest),
    ) -> Option<Manifest> {
        let mut state = shared.lock();
        let mut manifest = state.manifest.clone()?;
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
        manifest.samples = Some(manifest.samples_before + self.ticks_with_rows);
        change(&mut manifest);
        if !described && manifest == before {
            return Some(manifest);
        }
        let written = manifest.write(&self.context.run, &self.manifest_file);
        let mut state = shared.lock();
        match written {
            Ok(()) => {
                if let Some(kept) = &mut state.manifest {
                    kept.samples = manifest.samples;
                    kept.tables.clone_from(&manifest.tables);
                }
            }
            Err(error) => {
                state.manifest_changed = true;
                drop(state);
                let message = format!("{}: {error}", self.manifest_file);
                self.context.errors.push(message);
            }
        }
        Some(manifest)
    }

    fn write_run_table(&mut self, manifest: &Manifest) {
        if let Err(error) = run_table::write(&self.context.run, manifest) {
            self.context.errors.push(format!("table run: {error}"));
        }
    }

    fn finish(mut self, shared: &Shared) {
        let begin = Instant::now();
        self.checkpoint(shared, true);
        for table in &mut self.tables {
            table.close();
        }
        let dropped = shared.lock().dropped.clone();
        let mut summary = WriteSummary {
            tables: self.table_summaries(&dropped),
            ..WriteSummary::default()
        };
        let complete = summary.is_complete();
        if let Some(manifest) = self.write_manifest(shared, |manifest| manifest.finish(complete)) {
            self.write_run_table(&manifest);
        }
        self.write_time += begin.elapsed();
        self.publish(shared);
        summary.errors = self.errors;
        summary.last_error = self.last_error.take();
        let mut state = shared.lock();
        summary.unreported = state.stats.last_error.take();
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

    /// Publishes counts and errors.
    fn publish(&mut self, shared: &Shared) {
        let new_errors = std::mem::take(&mut self.context.errors);
        let mut now = WriterStats {
            ticks: self.ticks,
            write_ns: u64::try_from(self.write_time.as_nanos()).unwrap_or(u64::MAX),
            cpu_ns: thread_cpu_ns(),
            ..WriterStats::default()
        };
        for table in &self.tables {
            let counts = table.counts;
            now.rows += counts.rows;
            now.dropped += counts.dropped;
            now.parts += counts.parts;
            now.journal_bytes += counts.journal_bytes;
            now.part_bytes += counts.part_bytes;
        }
        self.errors += new_errors.len() as u64;
        now.errors = self.errors;
        let held = self.held_bytes();
        let mut state = shared.lock();
        now.last_error = state.stats.last_error.take();
        for error in new_errors {
            self.last_error = Some(error.clone());
            // The same error can occur at every checkpoint.
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
impl WriterThread {
    /// Writes one tick without a thread.
    pub fn test_tick(&mut self, batches: Vec<Batch>) {
        self.write(Submission { batches, bytes: 0 });
    }

    /// Makes a checkpoint of all tables without a thread.
    pub fn test_checkpoint(&mut self) {
        for table in &mut self.tables {
            table.checkpoint(&mut self.context, false);
        }
    }
}

/// Tries to create the run directory until that succeeds, then writes until the output ends.
pub fn run_when_possible(options: &DatasetOptions, shared: &Shared) {
    let guard = CompletionGuard(shared);
    loop {
        let error = match WriterThread::new(options.clone()) {
            Ok(writer) => {
                let mut state = shared.lock();
                // Changes of the description since the start are kept.
                if let (Some(kept), Some(found)) = (&mut state.manifest, writer.manifest()) {
                    kept.continues(found);
                }
                drop(state);
                std::mem::forget(guard);
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
            state.drop_queue();
            let tables = state.dropped.iter().map(|(table, rows)| {
                let lost = TableSummary {
                    dropped: *rows,
                    ..TableSummary::default()
                };
                (*table, lost)
            });
            state.summary = Some(WriteSummary {
                tables: tables.collect(),
                errors: state.stats.errors,
                last_error: Some(error),
                ..WriteSummary::default()
            });
            return;
        }
    }
}

enum Work {
    Submission(Submission),
    Manifest,
    Checkpoint,
}

/// Waits for work; `None` at the end.
fn next_work(shared: &Shared, checkpoint: Instant) -> Option<Work> {
    let mut state = shared.lock();
    loop {
        let left = checkpoint.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(Work::Checkpoint);
        }
        if let Some(submission) = state.next() {
            return Some(Work::Submission(submission));
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
