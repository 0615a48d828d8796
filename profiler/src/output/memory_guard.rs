//! Fewer rows while the memory of the profiler's own cgroup is short. The output passes all other rows
//! on.

use arrow::{
    array::RecordBatch,
    compute::{filter_record_batch, is_null},
    error::ArrowError,
};

use super::{Output, OutputReport, Reading, SessionEnd};
use crate::{
    host::Host,
    procfs::{
        cgroup_memory::{MemoryCgroups, MemoryUse},
        process_cgroup,
    },
    schema::{Batch, Table},
    support::{
        self_metrics::{Component, SelfMetrics},
        units::format_bytes,
    },
    warning,
};

/// Least time between two looks at the cgroup, ns.
const PERIOD: u64 = 1_000_000_000;
/// Used parts of the limit from which rows are left out, percent.
const WITHOUT_THREADS: u64 = 80;
const WITHOUT_HISTOGRAMS: u64 = 90;
/// Rows come back when this much less is used, percent.
const MARGIN: u64 = 10;

/// Rows that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum LeftOut {
    #[default]
    Nothing,
    Threads,
    ThreadsAndHistograms,
}

impl LeftOut {
    fn next(self, percent: u64) -> Self {
        let is_above = |least: u64, applies: bool| {
            percent >= least.saturating_sub(if applies { MARGIN } else { 0 })
        };
        if is_above(WITHOUT_HISTOGRAMS, self == Self::ThreadsAndHistograms) {
            Self::ThreadsAndHistograms
        } else if is_above(WITHOUT_THREADS, self >= Self::Threads) {
            Self::Threads
        } else {
            Self::Nothing
        }
    }
}

/// Leaves out rows of single threads, and then histograms, before the kernel kills the profiler.
pub struct MemoryGuard {
    cgroups: MemoryCgroups,
    histograms: &'static Table,
    left_out: LeftOut,
    /// Time of the last look, `CLOCK_MONOTONIC` in ns.
    looked: u64,
    threads: u64,
    durations: u64,
}

impl MemoryGuard {
    /// Guards the cgroup of this process; `None` if memory is not accounted by cgroup.
    pub fn new(host: &Host, histograms: &'static Table) -> Option<Self> {
        let lines = process_cgroup::own(&host.procfs).ok()?;
        Some(Self {
            cgroups: MemoryCgroups::new(&host.cgroups, &lines)?,
            histograms,
            left_out: LeftOut::Nothing,
            looked: 0,
            threads: 0,
            durations: 0,
        })
    }

    fn look(&mut self) {
        let closest = self.cgroups.closest();
        let percent = closest.as_ref().map_or(0, MemoryUse::percent);
        let next = self.left_out.next(percent);
        if std::mem::replace(&mut self.left_out, next) == next {
            return;
        }
        let rows = match next {
            LeftOut::Nothing => "all rows are stored again",
            LeftOut::Threads => "rows of threads are left out",
            LeftOut::ThreadsAndHistograms => "rows of threads and of `latency` are left out",
        };
        match closest {
            Some(MemoryUse { used, limit }) => warning!(
                "profiler: {} of the {} of memory of its cgroup are used: {rows}",
                format_bytes(used),
                format_bytes(limit),
            ),
            None => warning!("profiler: the memory of its cgroup has no limit any more: {rows}"),
        }
    }

    /// What is stored of a batch, if anything.
    fn keep(&mut self, batch: Batch) -> Option<Batch> {
        if self.left_out == LeftOut::ThreadsAndHistograms
            && std::ptr::eq(batch.table, self.histograms)
        {
            self.durations += batch.rows.num_rows() as u64;
            return None;
        }
        // Rows that cannot be selected are all stored.
        let Ok(rows) = without_threads(&batch) else {
            return Some(batch);
        };
        self.threads += (batch.rows.num_rows() - rows.num_rows()) as u64;
        Some(Batch { rows, ..batch })
    }
}

impl Output for MemoryGuard {
    fn write(&mut self, reading: &Reading<'_>, batches: Vec<Batch>) -> Vec<Batch> {
        if reading.monotonic_ns.saturating_sub(self.looked) >= PERIOD {
            self.looked = reading.monotonic_ns;
            self.look();
        }
        if self.left_out == LeftOut::Nothing {
            return batches;
        }
        let batches = batches.into_iter();
        batches.filter_map(|batch| self.keep(batch)).collect()
    }

    fn update_self_metrics(&mut self, self_metrics: &mut SelfMetrics) {
        for (name, count) in [("threads", self.threads), ("latency", self.durations)] {
            if count != 0 {
                self_metrics.account(Component::Memory, name).dropped = Some(count);
            }
        }
    }

    fn finish(self: Box<Self>, _end: &mut SessionEnd) -> OutputReport {
        OutputReport::default()
    }
}

fn without_threads(batch: &Batch) -> Result<RecordBatch, ArrowError> {
    let threads = batch.table.thread_column();
    let threads = threads.map(|index| batch.rows.column(index));
    match threads.filter(|threads| threads.null_count() != threads.len()) {
        Some(threads) => filter_record_batch(&batch.rows, &is_null(threads)?),
        None => Ok(batch.rows.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_when_much_less_memory_is_used() {
        let mut left_out = LeftOut::Nothing;
        let used = [79, 80, 75, 70, 69, 79, 95, 85, 80, 79, 69];
        let found = used.map(|percent| {
            left_out = left_out.next(percent);
            left_out
        });
        let (none, threads, all) = (
            LeftOut::Nothing,
            LeftOut::Threads,
            LeftOut::ThreadsAndHistograms,
        );
        assert_eq!(
            found,
            [
                none, threads, threads, threads, none, none, all, all, all, threads, none
            ]
        );
    }
}
