//! Handle of a writer thread.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use thiserror::Error;

use super::{
    DatasetOptions, Manifest, OutputError,
    queue::{Phase, Shared, Submission, wait},
    thread::{self, WriterThread},
};
use crate::{privileges, schema::Batch};

/// A thread that makes no progress for this time at the end is given up: its disk hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Counts of a writer since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Readings that the thread has written.
    pub ticks: u64,
    /// Rows received.
    pub rows: u64,
    /// Lost rows.
    pub dropped: u64,
    /// Failed attempts to write.
    pub errors: u64,
    /// Parquet files written.
    pub parts: u64,
    /// Bytes written to journals.
    pub journal_bytes: u64,
    /// Bytes written as Parquet files.
    pub part_bytes: u64,
    /// Memory in bytes of rows that are not in a Parquet file, including the queue.
    pub held_bytes: usize,
    /// Time that the thread has spent writing, in ns, including waits for the disk.
    pub write_ns: u64,
    /// CPU time of the thread in ns.
    pub cpu_ns: u64,
    /// An error that has not been reported yet.
    pub last_error: Option<String>,
}

/// Rows of one table at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSummary {
    /// Rows in Parquet files.
    pub rows: u64,
    /// Parquet files of this writer.
    pub parts: u64,
    /// Lost rows.
    pub dropped: u64,
    /// Rows that are only in a journal; [`recover`](super::recover()) turns it into a Parquet file.
    pub in_journal: u64,
}

/// Result of a writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteSummary {
    /// Tables that have had rows.
    pub tables: BTreeMap<&'static str, TableSummary>,
    /// Failed attempts to write.
    pub errors: u64,
    pub last_error: Option<String>,
    /// Errors that have not been reported yet.
    pub unreported: Option<String>,
    /// Time that the thread has spent writing, in ns, including waits for the disk.
    pub write_ns: u64,
    /// CPU time of the thread in ns.
    pub cpu_ns: u64,
}

impl WriteSummary {
    /// Whether all rows are in Parquet files.
    pub fn is_complete(&self) -> bool {
        self.tables
            .values()
            .all(|table| table.dropped == 0 && table.in_journal == 0)
    }

    /// Lost rows, and rows that are only in a journal.
    pub fn losses(&self) -> (u64, u64) {
        self.tables.values().fold((0, 0), |sum, table| {
            (sum.0 + table.dropped, sum.1 + table.in_journal)
        })
    }
}

/// Why the result of a writer is unknown.
#[derive(Debug, Error)]
pub enum FinishError {
    /// The disk does not respond.
    #[error(
        "no progress writing {} for {} s; {rows} rows are only in the journal or lost",
        path.display(),
        TIMEOUT.as_secs()
    )]
    Stuck {
        /// The run directory.
        path: PathBuf,
        /// Rows that may not be in a Parquet file.
        rows: u64,
    },
    /// An error in the program.
    #[error("the writer of {} has panicked; what it had written can be recovered", path.display())]
    Panicked {
        /// The run directory.
        path: PathBuf,
    },
}

/// Writes a dataset, in a separate thread. Dropping it has the effect of [`DatasetWriter::finish`],
/// without the result.
#[derive(Debug)]
pub struct DatasetWriter {
    pub(super) shared: Arc<Shared>,
    is_finished: bool,
    /// The thread, if this writer started it.
    thread: Option<JoinHandle<()>>,
    run_dir: PathBuf,
    /// The run directory, if it existed at the start.
    directory: Option<OwnedFd>,
}

impl DatasetWriter {
    /// Creates the run directory and starts the thread.
    ///
    /// # Errors
    ///
    /// When nothing can be stored there, or the thread cannot be created. Then nothing is left behind.
    pub fn start(options: DatasetOptions) -> Result<Self, OutputError> {
        let run_dir = options.run_dir.clone();
        // First: other nodes may write into the same run, which cannot be removed if this fails.
        let (start, started) = mpsc::channel::<(WriterThread, Arc<Shared>)>();
        let thread = std::thread::Builder::new()
            .name("sink".to_owned())
            .spawn(move || {
                privileges::keep_for_files();
                if let Ok((writer, shared)) = started.recv() {
                    writer.run(&shared);
                }
            })
            .map_err(|source| OutputError::new(&run_dir, source))?;
        let writer = WriterThread::new(options)?;
        let directory = writer.directory().ok();
        let shared = Arc::new(Shared::new(writer.memory_budget(), writer.manifest()));
        // It waits for the message.
        let _ = start.send((writer, Arc::clone(&shared)));
        Ok(Self {
            shared,
            is_finished: false,
            thread: Some(thread),
            run_dir,
            directory,
        })
    }

    /// Like [`DatasetWriter::start`], without waiting for the disk: `spawn` must call its argument
    /// in a thread. Rows wait in memory until the run directory can be created.
    pub fn start_later(
        options: DatasetOptions,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Self {
        let manifest = options.manifest.clone();
        let shared = Arc::new(Shared::new(options.memory_budget, manifest));
        let run_dir = options.run_dir.clone();
        spawn(Box::new({
            let shared = shared.clone();
            move || thread::run_when_possible(&options, &shared)
        }));
        Self {
            shared,
            is_finished: false,
            thread: None,
            run_dir,
            directory: None,
        }
    }

    /// The run directory.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// The run directory, which stays the same when its path leads elsewhere; `None` if it is still
    /// to be created.
    pub fn directory(&self) -> Option<OwnedFd> {
        self.directory.as_ref()?.try_clone().ok()
    }

    /// Queues the rows of one reading. Never waits for the disk; beyond the memory budget the
    /// oldest rows in the queue are dropped and counted.
    pub fn write(&self, batches: Vec<Batch>) {
        if batches.is_empty() {
            return;
        }
        let bytes = batches
            .iter()
            .map(|batch| batch.rows.get_array_memory_size())
            .sum();
        self.shared.lock().push(Submission { batches, bytes });
        self.shared.work.notify_one();
    }

    /// Counts so far. The error in them is not returned again.
    pub fn stats(&self) -> WriterStats {
        let mut state = self.shared.lock();
        let stats = state.stats();
        state.stats.last_error = None;
        stats
    }

    /// Changes the description of the run (`run.json`).
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

    /// Stores everything. Rows that cannot be stored are not an error but a part of the summary.
    ///
    /// # Errors
    ///
    /// When the disk hangs or the thread has failed.
    pub fn finish(mut self) -> Result<WriteSummary, FinishError> {
        self.end()
    }

    /// Lets the thread store everything and end, without waiting for it.
    pub fn request_end(&self) {
        let mut state = self.shared.lock();
        if state.phase == Phase::Running {
            state.phase = Phase::Ending;
        }
        self.shared.work.notify_one();
    }

    /// Whether the thread has ended: then [`DatasetWriter::finish`] does not wait.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().phase == Phase::Ended
    }

    /// An error that has not been returned yet.
    pub fn take_error(&self) -> Option<String> {
        self.shared.lock().stats.last_error.take()
    }

    fn end(&mut self) -> Result<WriteSummary, FinishError> {
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(WriteSummary::default());
        }
        self.request_end();
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

impl Drop for DatasetWriter {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
