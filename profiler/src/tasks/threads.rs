//! Rows of single threads (`--threads`).

use std::collections::HashMap;

use profiler_ebpf::{
    event::ThreadEnd,
    record::{ThreadRecord, Totals},
};

use super::{
    counters::{CpuTime, Latency, LatencySum},
    gauges::state_letter,
    process_id::ProcessId,
    row::Row,
};
use crate::support::clock::{Clock, monotonic_ns};

/// Published values of the threads of a process, by thread id and start.
#[derive(Debug, Default)]
pub(super) struct Threads {
    published: HashMap<(u32, u64), Published>,
}

/// Published values of a thread.
#[derive(Debug, Default)]
struct Published {
    totals: Totals,
    cpu_time: CpuTime,
    runqueue: LatencySum,
    read_at: u64,
}

/// Properties of the process that its threads share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadGroup {
    pub(super) id: ProcessId,
    pub(super) started_in_run: bool,
    /// Whether this reading is the baseline of the process.
    pub(super) is_baseline: bool,
    pub(super) io_read: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReadingTime {
    /// Begin of the reading, ns of `CLOCK_MONOTONIC`.
    pub(super) now: u64,
    /// Begin of the run, ns of `CLOCK_MONOTONIC`.
    pub(super) run_start: u64,
    /// Whether there is no next reading.
    pub(super) last: bool,
    pub(super) clock: Clock,
}

impl ReadingTime {
    /// Whether the next reading has the row of what started at this time, ns of `CLOCK_BOOTTIME`:
    /// its interval begins after this reading.
    pub(super) fn is_next(&self, start_boottime: u64) -> bool {
        !self.last && self.clock.monotonic_of_boottime(start_boottime) >= self.now
    }

    /// End of the interval of what started at this time, ns of `CLOCK_MONOTONIC`.
    pub(super) fn until(&self, started: u64) -> u64 {
        if started >= self.now {
            monotonic_ns()
        } else {
            self.now
        }
    }
}

impl Threads {
    /// The row of a live thread; `None` if this reading is its baseline, or if the thread started after
    /// its begin and the next one has its row.
    pub(super) fn row(
        &mut self,
        group: ThreadGroup,
        record: &ThreadRecord,
        time: ReadingTime,
    ) -> Option<Row> {
        let key = (record.tid, record.thread_start_boottime);
        if time.is_next(record.thread_start_boottime) {
            return None;
        }
        let mut row = self.advance(group, key, &record.totals, time)?;
        row.cpu = Some(record.cpu);
        row.state = state_letter(record.state, record.exit_state);
        Some(row)
    }

    /// Run-queue waits of a live thread.
    pub(super) fn latency(&mut self, record: &ThreadRecord, waits: &LatencySum) -> Option<Latency> {
        let key = (record.tid, record.thread_start_boottime);
        self.published.get_mut(&key)?.runqueue.advance(waits)
    }

    /// The last row of a thread that has ended.
    pub(super) fn last_row(
        &mut self,
        group: ThreadGroup,
        end: &ThreadEnd,
        epoch: u32,
        time: ReadingTime,
    ) -> Option<Row> {
        let key = (end.tid, end.thread_start_boottime);
        let row = self.advance(group, key, &end.usage.totals, time);
        let mut published = self.published.remove(&key)?;
        let mut runqueue = LatencySum::default();
        runqueue.add_ended(&end.usage.runqueue, epoch);
        let mut row = row?;
        row.runqueue = published.runqueue.advance(&runqueue);
        row.state = "X";
        Some(row)
    }

    fn advance(
        &mut self,
        group: ThreadGroup,
        key: (u32, u64),
        totals: &Totals,
        time: ReadingTime,
    ) -> Option<Row> {
        let (tid, start_boottime) = key;
        let started = time.clock.monotonic_of_boottime(start_boottime);
        let is_older = group.is_baseline || !group.started_in_run && started < time.run_start;
        let is_baseline = is_older && !self.published.contains_key(&key);
        let published = self.published.entry(key).or_insert_with(|| Published {
            totals: if is_baseline {
                *totals
            } else {
                Totals::default()
            },
            read_at: if is_baseline { time.now } else { started },
            ..Published::default()
        });
        let increase = published.totals.advance(totals);
        let cpu_time = published.cpu_time.advance(&published.totals);
        let until = time.until(started);
        let interval_ns = until.saturating_sub(published.read_at);
        published.read_at = until;
        (!is_baseline).then_some(Row {
            id: group.id,
            tid: Some(tid),
            interval_ns,
            increase,
            io_read: group.io_read,
            is_public: false,
            cpu_time,
            runqueue: None,
            memory: None,
            details: None,
            threads: None,
            fds: None,
            cpu: None,
            state: "",
        })
    }
}
