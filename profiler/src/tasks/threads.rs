//! Rows of single threads, for `--threads`.

use std::collections::HashMap;

use profiler_ebpf::wire::{Histogram, Thread, ThreadEnd, Totals};

use super::{
    Process, Row,
    counters::{self, CpuTime, Latency, LatencySum},
    process::state_letter,
};
use crate::{bpf::Reading, support::clock::Clock};

/// What was published of each thread, by its id and start.
pub type Histories = HashMap<(u32, u64), History>;

/// What was published of a thread.
#[derive(Debug, Default)]
pub struct History {
    published: Totals,
    cpu_time: CpuTime,
    runqueue: LatencySum,
    read_at: u64,
}

impl Process {
    /// The row of a live thread; `None` when this reading is its baseline.
    pub(super) fn thread_row(
        &mut self,
        record: &Thread,
        now: u64,
        clock: &Clock,
        started: u64,
    ) -> Option<Row> {
        let start = record.thread_start_boottime;
        let mut row =
            self.advance_thread(record.tid, start, &record.totals, now, clock, started)?;
        row.cpu = Some(record.cpu);
        row.state = state_letter(record.state, record.exit_state);
        Some(row)
    }

    /// Run-queue waits of a live thread.
    pub(super) fn thread_latency(
        &mut self,
        record: &Thread,
        histogram: &Histogram,
        epoch: u32,
    ) -> Option<Latency> {
        let history = self
            .threads
            .get_mut(&(record.tid, record.thread_start_boottime))?;
        let mut now = LatencySum::default();
        now.add(histogram, epoch);
        history.runqueue.advance(&now)
    }

    /// The last row of a thread that has ended.
    pub(super) fn thread_end(
        &mut self,
        end: &ThreadEnd,
        reading: Reading,
        clock: &Clock,
        started: u64,
    ) -> Option<Row> {
        let start = end.thread_start_boottime;
        let now = reading.monotonic_ns;
        let row = self.advance_thread(end.tid, start, &end.totals, now, clock, started);
        let mut history = self.threads.remove(&(end.tid, start))?;
        let mut runqueue = LatencySum::default();
        runqueue.add_ended(&end.runqueue, reading.epoch);
        let mut row = row?;
        row.runqueue = history.runqueue.advance(&runqueue);
        row.state = "X";
        Some(row)
    }

    fn advance_thread(
        &mut self,
        tid: u32,
        start_boottime: u64,
        totals: &Totals,
        now: u64,
        clock: &Clock,
        started: u64,
    ) -> Option<Row> {
        let born = clock.monotonic_of_boottime(start_boottime);
        let baseline =
            !self.threads.contains_key(&(tid, start_boottime)) && !self.born_here && born < started;
        let history = self
            .threads
            .entry((tid, start_boottime))
            .or_insert_with(|| History {
                published: if baseline { *totals } else { Totals::default() },
                read_at: if baseline { now } else { born },
                ..History::default()
            });
        let increase = counters::advance(&mut history.published, totals);
        let cpu_time = history.cpu_time.advance(&history.published);
        let interval_ns = now.saturating_sub(history.read_at);
        history.read_at = now;
        (!baseline).then_some(Row {
            id: self.id,
            tid: Some(tid),
            interval_ns,
            increase,
            io_read: self.io_read,
            cpu_time,
            runqueue: None,
            memory: None,
            footprint: None,
            threads: None,
            fds: None,
            cpu: None,
            state: "",
        })
    }
}
