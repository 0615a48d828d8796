//! State that the sampling loop and the writer thread share.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{WriteSummary, WriterStats, manifest::Manifest};
use crate::schema::Batch;

/// The shared state and its conditions.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    /// Signalled when the thread has work.
    pub work: Condvar,
    /// Signalled when the thread has made progress.
    pub done: Condvar,
}

/// The queue, and what both sides know of each other.
#[derive(Debug)]
pub struct State {
    /// Rows that the thread has not taken, oldest first.
    pub queue: VecDeque<Submission>,
    /// Memory of the queue in bytes.
    pub queued_bytes: usize,
    /// Memory of the rows that the thread holds, bytes.
    pub held_bytes: usize,
    /// Limit of both together, bytes.
    pub budget: usize,
    /// Where the writer is in its life.
    pub phase: Phase,
    /// Increases with everything that the thread does.
    pub progress: u64,
    /// Rows per table that were dropped from the queue.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Counts of the thread.
    pub stats: WriterStats,
    /// The description of the run.
    pub manifest: Option<Manifest>,
    /// Whether it has changed since the last successful write.
    pub manifest_changed: bool,
    /// Whether it has changed since the thread last looked.
    pub manifest_urgent: bool,
    /// The result of a thread that has ended.
    pub summary: Option<WriteSummary>,
}

/// Phases of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It accepts rows.
    Running,
    /// It stores the queue and then ends.
    Ending,
    Ended,
}

/// The rows of one reading.
#[derive(Debug)]
pub struct Submission {
    /// The rows.
    pub batches: Vec<Batch>,
    /// Their memory in bytes.
    pub bytes: usize,
}

impl Shared {
    /// State of a new writer.
    pub fn new(budget: usize, manifest: Option<Manifest>) -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                queued_bytes: 0,
                held_bytes: 0,
                budget,
                phase: Phase::Running,
                progress: 0,
                dropped: BTreeMap::new(),
                stats: WriterStats::default(),
                manifest,
                manifest_changed: false,
                manifest_urgent: false,
                summary: None,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    /// Locks the state. It is consistent after a panic: every change is a single step.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a condition, at most for `timeout`.
pub fn wait<'a>(
    condition: &Condvar,
    state: MutexGuard<'a, State>,
    timeout: Duration,
) -> MutexGuard<'a, State> {
    condition
        .wait_timeout(state, timeout)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

impl State {
    /// Counts of the thread and of the queue.
    pub fn stats(&self) -> WriterStats {
        let mut stats = self.stats.clone();
        stats.held_bytes = self.held_bytes + self.queued_bytes;
        for rows in self.dropped.values() {
            stats.dropped += rows;
            stats.rows += rows;
        }
        stats
    }

    /// Adds rows. Beyond the memory budget the oldest rows in the queue are dropped and counted.
    pub fn push(&mut self, submission: Submission) {
        if self.phase == Phase::Ended {
            self.count_dropped(&submission);
            return;
        }
        while self.queued_bytes + self.held_bytes + submission.bytes > self.budget
            && let Some(oldest) = self.queue.pop_front()
        {
            self.queued_bytes -= oldest.bytes;
            self.count_dropped(&oldest);
        }
        self.queued_bytes += submission.bytes;
        self.queue.push_back(submission);
    }

    /// Takes the oldest rows.
    pub fn next(&mut self) -> Option<Submission> {
        let submission = self.queue.pop_front()?;
        self.queued_bytes -= submission.bytes;
        // Until the thread counts its memory again.
        self.held_bytes += submission.bytes;
        Some(submission)
    }

    /// Drops the queue and counts its rows.
    pub fn drop_queue(&mut self) {
        for submission in std::mem::take(&mut self.queue) {
            self.count_dropped(&submission);
        }
    }

    fn count_dropped(&mut self, submission: &Submission) {
        for batch in &submission.batches {
            *self.dropped.entry(batch.table.name).or_default() += batch.rows.num_rows() as u64;
        }
    }
}
