//! The sink: batches of rows become a journal, and the journal becomes Parquet parts.
//!
//! A thread of its own does all writing, so that a slow or full disk never delays a tick. See `docs/architecture.md`.

pub mod files;
pub(crate) mod journal;
mod keyed;
pub mod manifest;
pub(crate) mod part;
pub mod recover;
mod rows;
pub(crate) mod stream;
mod table;
#[cfg(test)]
mod tests;
pub mod views;
mod writer;

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use thiserror::Error;

pub use self::{
    files::{OutputError, Owner},
    manifest::Manifest,
    recover::{recover, recover_orphan, recover_orphans},
    table::metadata,
};
use crate::schema::Batch;

/// A writer that makes no progress for this long at the end is given up: its disk hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How a sink stores what it is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the run; made if missing. Several hosts can share one.
    pub run_dir: PathBuf,
    /// Name of this node.
    pub hostname: String,
    /// Name of the run, as stored in every file.
    pub run_id: String,
    /// Time between parts.
    pub checkpoint: Duration,
    /// Whether every tick survives a power cut, not only every checkpoint.
    pub sync: bool,
    /// Memory in bytes for rows that cannot be stored yet; beyond it the oldest are dropped and counted.
    pub memory_budget: usize,
    /// Who owns the files: `(uid, gid)`.
    pub owner: Owner,
    /// What `run.json` says; without it none is written.
    pub manifest: Option<Manifest>,
}

impl Options {
    /// The defaults of the command line.
    pub fn new(run_dir: PathBuf, hostname: &str, run_id: &str) -> Self {
        Self {
            run_dir,
            hostname: hostname.to_owned(),
            run_id: run_id.to_owned(),
            checkpoint: Duration::from_secs(60),
            sync: false,
            memory_budget: 64 << 20,
            owner: None,
            manifest: None,
        }
    }
}

/// What happened so far; counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Ticks that the writer has dealt with.
    pub ticks: u64,
    /// Rows that were handed over.
    pub rows: u64,
    /// Rows that are lost.
    pub dropped: u64,
    /// Rows lost, per table that lost any.
    pub dropped_by_table: BTreeMap<&'static str, u64>,
    /// Failed attempts to write.
    pub errors: u64,
    /// Parts written.
    pub parts: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Bytes written as parts.
    pub part_bytes: u64,
    /// Memory in bytes of rows that are not in a part yet, queued ones included.
    pub held_bytes: usize,
    /// Time that the writer has spent on all this, waiting for the disk included, in ns.
    pub write_ns: u64,
    /// CPU time of the writer in ns.
    pub cpu_ns: u64,
    /// An error that no earlier call has returned.
    pub last_error: Option<String>,
}

/// What a run has stored of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSummary {
    /// Rows in parts.
    pub rows: u64,
    /// Parts of this run of the sink.
    pub parts: u64,
    /// Rows that are lost.
    pub dropped: u64,
    /// Rows that only a journal has; [`recover()`] makes a part of it.
    pub in_journal: u64,
}

/// What a run has stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Per table that had rows.
    pub tables: BTreeMap<&'static str, TableSummary>,
    /// Failed attempts to write.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<String>,
    /// Time that the writer has spent, waiting for the disk included, in ns.
    pub write_ns: u64,
    /// CPU time of the writer in ns.
    pub cpu_ns: u64,
}

impl Summary {
    /// Whether every row is in a part.
    pub fn is_complete(&self) -> bool {
        self.tables
            .values()
            .all(|table| table.dropped == 0 && table.in_journal == 0)
    }
}

/// Why a sink could not end as it should.
#[derive(Debug, Error)]
pub enum FinishError {
    /// The disk does not answer.
    #[error("no progress writing {} for {} s; {rows} rows are only in the journal or lost", path.display(), TIMEOUT.as_secs())]
    Stuck {
        /// The run directory.
        path: PathBuf,
        /// Rows not known to be in a part.
        rows: u64,
    },
    /// A mistake in the program.
    #[error("the writer of {} has panicked; what it had written can be recovered", path.display())]
    Panicked {
        /// The run directory.
        path: PathBuf,
    },
}

/// Where batches go. [`Sink::finish`] ends it; dropping it does the same without saying how it went.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared>,
    /// Nobody has asked for its end.
    open: bool,
    /// Its writer, if that was started here.
    thread: Option<JoinHandle<()>>,
    run_dir: PathBuf,
}

/// What the sampling loop and the writer share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to do.
    work: Condvar,
    /// Something has been done.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Tick>,
    queued_bytes: usize,
    /// Memory that the writer holds in bytes.
    held_bytes: usize,
    budget: usize,
    phase: Phase,
    /// Grows with everything that the writer does.
    progress: u64,
    /// Rows lost before the writer saw them.
    dropped: BTreeMap<&'static str, u64>,
    /// As of the last tick of the writer.
    stats: Stats,
    manifest: Option<Manifest>,
    manifest_changed: bool,
    /// Changed since the writer last looked.
    manifest_urgent: bool,
    summary: Option<Summary>,
}

/// How far a sink is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It takes rows.
    Running,
    /// The writer stores what is queued, and ends.
    Ending,
    /// The writer has ended.
    Ended,
}

/// The rows of one call of [`Sink::submit`].
#[derive(Debug)]
struct Tick {
    batches: Vec<Batch>,
    bytes: usize,
}

impl Sink {
    /// Makes the run directory and starts the writer.
    ///
    /// # Errors
    ///
    /// When nothing can be stored there; then nothing is left behind.
    ///
    /// # Panics
    ///
    /// When the kernel refuses a thread.
    pub fn start(options: Options) -> Result<Self, OutputError> {
        let run_dir = options.run_dir.clone();
        let writer = writer::Writer::new(options)?;
        let shared = Arc::new(Shared::new(writer.memory_budget(), writer.manifest()));
        let thread = std::thread::Builder::new()
            .name("sink".to_owned())
            .spawn({
                let shared = shared.clone();
                move || {
                    crate::privileges::keep_for_files();
                    writer.run(&shared);
                }
            })
            .expect("a thread for the sink");
        Ok(Self {
            shared,
            open: true,
            thread: Some(thread),
            run_dir,
        })
    }

    /// The same without waiting for the disk: `start` gets the writer, to run it in a thread. Until the run
    /// directory can be made, rows wait in memory, and it is tried again.
    pub fn begin(options: Options, start: impl FnOnce(Box<dyn FnOnce() + Send>)) -> Self {
        let manifest = options.manifest.clone();
        let shared = Arc::new(Shared::new(options.memory_budget, manifest));
        let run_dir = options.run_dir.clone();
        start(Box::new({
            let shared = shared.clone();
            move || writer::begin(&options, &shared)
        }));
        Self {
            shared,
            open: true,
            thread: None,
            run_dir,
        }
    }

    /// Hands over the rows of one tick. Never waits for the disk; beyond the memory budget the oldest rows that
    /// are still queued are dropped and counted.
    pub fn submit(&self, batches: Vec<Batch>) {
        if batches.is_empty() {
            return;
        }
        let bytes = batches
            .iter()
            .map(|batch| batch.rows.get_array_memory_size())
            .sum();
        let mut state = self.shared.lock();
        let tick = Tick { batches, bytes };
        if state.phase == Phase::Ended {
            state.drop_tick(&tick);
            return;
        }
        while state.queued_bytes + state.held_bytes + bytes > state.budget
            && let Some(oldest) = state.queue.pop_front()
        {
            state.queued_bytes -= oldest.bytes;
            state.drop_tick(&oldest);
        }
        state.queued_bytes += bytes;
        state.queue.push_back(tick);
        drop(state);
        self.shared.work.notify_one();
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        let mut state = self.shared.lock();
        let now = state.now();
        state.stats.last_error = None;
        now
    }

    /// Changes what `run.json` says.
    pub fn describe(&self, change: impl FnOnce(&mut Manifest)) {
        let mut state = self.shared.lock();
        if let Some(manifest) = &mut state.manifest {
            change(manifest);
            state.manifest_changed = true;
            state.manifest_urgent = true;
            drop(state);
            self.shared.work.notify_one();
        }
    }

    /// Stores everything and says what became of it. A full disk is no error: the summary says what is lost.
    ///
    /// # Errors
    ///
    /// When the disk hangs or the writer has failed.
    pub fn finish(mut self) -> Result<Summary, FinishError> {
        self.end()
    }

    /// Tells the writer to store everything and end, without waiting for that.
    pub fn ask_to_end(&self) {
        let mut state = self.shared.lock();
        if state.phase == Phase::Running {
            state.phase = Phase::Ending;
        }
        self.shared.work.notify_one();
    }

    /// Whether the writer has ended: then [`Sink::finish`] waits for nothing.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().phase == Phase::Ended
    }

    /// An error that no earlier call has returned.
    pub fn take_error(&self) -> Option<String> {
        self.shared.lock().stats.last_error.take()
    }

    fn end(&mut self) -> Result<Summary, FinishError> {
        if !std::mem::replace(&mut self.open, false) {
            return Ok(Summary::default());
        }
        self.ask_to_end();
        let mut state = self.shared.lock();
        let mut progress = (state.progress, Instant::now());
        while state.phase != Phase::Ended {
            if progress.0 != state.progress {
                progress = (state.progress, Instant::now());
            }
            let Some(left) = TIMEOUT.checked_sub(progress.1.elapsed()) else {
                let rows = state.stats.rows.saturating_sub(state.stats.dropped);
                return Err(FinishError::Stuck {
                    path: self.run_dir.clone(),
                    rows,
                });
            };
            state = wait(&self.shared.done, state, left);
        }
        let summary = state.summary.take();
        drop(state);
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        match (summary, ended) {
            (Some(summary), Ok(())) => Ok(summary),
            _ => Err(FinishError::Panicked {
                path: self.run_dir.clone(),
            }),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Shared {
    fn new(budget: usize, manifest: Option<Manifest>) -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                queued_bytes: 0,
                held_bytes: 0,
                budget,
                phase: Phase::Running,
                progress: 0,
                dropped: BTreeMap::new(),
                stats: Stats::default(),
                manifest,
                manifest_changed: false,
                manifest_urgent: false,
                summary: None,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    /// The state stays consistent under a panic: every change of it is a single step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for `condvar`, but not longer than `timeout`.
fn wait<'a>(
    condvar: &Condvar,
    state: MutexGuard<'a, State>,
    timeout: Duration,
) -> MutexGuard<'a, State> {
    condvar
        .wait_timeout(state, timeout)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

impl State {
    /// The writer's counts and those of the queue.
    fn now(&self) -> Stats {
        let mut now = self.stats.clone();
        now.held_bytes = self.held_bytes + self.queued_bytes;
        for (table, rows) in &self.dropped {
            now.dropped += rows;
            now.rows += rows;
            *now.dropped_by_table.entry(table).or_default() += rows;
        }
        now
    }

    fn drop_tick(&mut self, tick: &Tick) {
        for batch in &tick.batches {
            *self.dropped.entry(batch.table.name).or_default() += batch.rows.num_rows() as u64;
        }
    }
}
