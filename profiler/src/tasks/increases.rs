//! Increases of a reading over the previous one, and the end of processes without an exit event.

use profiler_ebpf::record::state;

use super::{Access, End, Process, Reader, Row, TaskTable, counters::CpuTime};
use crate::{
    schema::read::sum_of_known,
    support::clock::{Clock, monotonic_ns},
};

impl TaskTable {
    /// Closes processes that are missing in the readings without an exit event: the event was lost,
    /// the readings come from `/proc`, or the process has left the cgroup.
    pub(super) fn close_missing(&mut self, now: u64) {
        // An exit event can be on its way, and a fork can be later than the begin of the reading.
        let epochs_max = if matches!(self.reader, Reader::Bpf(_)) {
            2
        } else {
            1
        };
        let (host, epochs) = (&self.host, self.epochs);
        self.any_undescribed = self.processes.any_asleep_undescribed();
        self.processes.retain_awake(|process| {
            self.any_undescribed |= !process.described;
            if process.seen_in == 0 || process.is_left_out() {
                process.seen_in = epochs;
            }
            if process.end.is_some() || process.seen_in + epochs_max > epochs {
                return true;
            }
            process.current.totals = process.published.unwrap_or_default();
            process.end = Some(End {
                at: now,
                status: None,
            });
            process.changed = true;
            epochs_max == 1 || !process.id.is_alive(&host.procfs)
        });
    }

    /// Computes the increases of all processes and adds their rows.
    pub(super) fn publish(&mut self, now: u64, all: bool, last: bool) {
        let (mut details, pss) = self.details.receive();
        // The sum that was received at a boundary is in the row of the next sample.
        let at_boundary = self.read_at != self.sampled_at;
        self.pss = pss.or(self.pss.filter(|_| at_boundary));
        for id in details.keys() {
            self.processes.wake(*id);
        }
        let (mut new, mut asleep) = (Vec::new(), Vec::new());
        self.left_out_rss = self.processes.asleep_rss();
        self.rss = self.left_out_rss.unwrap_or(0);
        let sparse = self.sparse.as_ref().filter(|_| !all);
        self.missed.clear();
        self.users.clear();
        self.users.extend(self.processes.asleep_users());
        let mut last_user = None;
        for process in self.processes.awake_mut() {
            let sparse = sparse.filter(|_| process.is_left_out());
            let row = if sparse.is_some_and(|sparse| !sparse.needs(process, &details)) {
                process.skip(now);
                let rss = process.gauges.memory.map(|memory| memory.rss);
                self.left_out_rss = sum_of_known([self.left_out_rss, rss]);
                asleep.push(process.id);
                None
            } else {
                process.remain_idle(self.reading_clock);
                process.publish(&self.clock, self.epochs, now, last)
            };
            if let Some(mut row) = row {
                row.details = details
                    .remove(&process.id)
                    .filter(|_| process.end.is_none());
                self.rows.push(row);
            }
            if process.changed {
                self.touched.push(process.id);
            }
            if process.end.is_some() {
                self.ended.push(process.id);
            } else {
                if let Some(memory) = process.gauges.memory
                    && process.access == Access::Full
                {
                    self.rss += memory.rss;
                }
                if process.is_missed(&self.clock, now) {
                    self.missed.push(process.id);
                }
            }
            // Most have the user of another one.
            if last_user.replace(process.uid) != Some(process.uid) {
                self.users.insert(process.uid);
            }
            process.begin_interval();
            if !std::mem::replace(&mut process.in_tree, true) {
                new.push(process.id);
            }
        }
        self.process_tree.add(&new, &self.processes, &self.clock);
        for id in asleep {
            self.processes.set_aside(id);
        }
    }
}

impl Process {
    /// Whether it was to be in the reading at `now`.
    fn is_missed(&self, clock: &Clock, now: u64) -> bool {
        self.read_at != Some(now) && clock.monotonic_of_boottime(self.id.start_boottime) <= now
    }

    /// If the present reading has left it out, counts its sleep until then.
    fn remain_idle(&mut self, clock: u64) {
        if self.is_left_out() {
            self.unchanged = self.idle_ns(clock).map(|ns| (state::SLEEPING, ns));
            self.idle_since = Some(clock);
        }
    }

    /// Leaves out its row.
    fn skip(&mut self, now: u64) {
        let since = self.read_at.replace(now).unwrap_or(now);
        self.interval_ns = self.deferred_ns + now.saturating_sub(since);
    }

    /// Forgets what only this reading had.
    fn begin_interval(&mut self) {
        self.changed &= self.read_at.is_none();
        if self.unchanged.take().is_none() {
            self.current.clear();
        }
    }

    /// The row of the reading at `now`; none if the process was not read or has its baseline now.
    fn publish(&mut self, clock: &Clock, epoch: u32, now: u64, last: bool) -> Option<Row> {
        let is_observed = self.seen_in == epoch && !self.gauges.state.is_empty();
        if !self.counted || !is_observed && self.end.is_none() {
            return None;
        }
        let started = clock.monotonic_of_boottime(self.id.start_boottime);
        if started > now && !last {
            return None;
        }
        let until = match self.end {
            Some(end) => end.at,
            None if started > now => monotonic_ns(),
            None => now,
        };
        let since = self.read_at.replace(until).unwrap_or(started);
        self.interval_ns = self.deferred_ns + until.saturating_sub(since);
        let since = self.row_at.replace(until).unwrap_or(started);
        let interval_ns = until.saturating_sub(since);
        let (increase, cpu_time, runqueue) = match self.unchanged {
            Some((state, ns)) if self.end.is_none() => {
                (self.remain(state, ns), CpuTime::default(), None)
            }
            _ => {
                let is_baseline = self.published.is_none() && !self.started_in_run;
                let increases = self.advance();
                if is_baseline {
                    return None;
                }
                increases
            }
        };
        self.in_run.add(&increase);
        self.cpu_time_in_run.user += cpu_time.user;
        self.cpu_time_in_run.system += cpu_time.system;
        let ended = self.end.is_some();
        Some(Row {
            id: self.id,
            tid: None,
            interval_ns,
            increase,
            io_read: self.io_read,
            is_public: false,
            cpu_time,
            runqueue,
            memory: self.gauges.memory.filter(|_| !ended),
            details: None,
            threads: self.gauges.threads.filter(|_| !ended),
            fds: self.gauges.fds.filter(|_| !ended),
            cpu: self.gauges.cpu,
            state: if ended { "X" } else { self.gauges.state },
        })
    }
}
