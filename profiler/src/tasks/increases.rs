//! Increases of a reading over the previous one, and the end of processes without an exit event.

use profiler_ebpf::record::{Totals, state};

use super::{End, Reader, Row, TaskTable, names};

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
        self.processes.retain(|id, process| {
            if process.seen_in == 0 {
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
            epochs_max == 1 || !names::is_alive(&host.procfs, *id)
        });
    }

    /// Computes the increases of all processes and adds their rows.
    pub(super) fn publish(&mut self, now: u64, last: bool) {
        let (mut details, pss) = self.details.receive();
        self.pss = pss;
        for process in self.processes.values_mut() {
            let is_observed = process.seen_in == self.epochs && !process.gauges.state.is_empty();
            if !process.counted || !is_observed && process.end.is_none() {
                continue;
            }
            let started = self.clock.monotonic_of_boottime(process.id.start_boottime);
            if started > now && !last {
                continue;
            }
            let until = process.end.map_or(now, |end| end.at);
            let since = process.read_at.replace(until).unwrap_or(started);
            let interval_ns = until.saturating_sub(since);
            process.interval_ns = process.deferred_ns + interval_ns;
            let is_baseline = process.published.is_none() && !process.started_in_run;
            if let Some(state) = process.current.unchanged
                && process.end.is_none()
            {
                process.current.totals = process.published.unwrap_or_default();
                let totals = &mut process.current.totals;
                match state {
                    state::QUEUED => totals.run_delay += interval_ns,
                    state::BLOCKED => totals.blocked += interval_ns,
                    _ => totals.sleep += interval_ns,
                }
            }
            let published = process.published.get_or_insert_with(|| {
                if process.started_in_run {
                    Totals::default()
                } else {
                    process.current.totals
                }
            });
            let increase = published.advance(&process.current.totals);
            process.totals = *published;
            let cpu_increase = process.cpu_time.advance(&process.totals);
            let runqueue = process.runqueue.advance(&process.current.runqueue);
            if is_baseline {
                continue;
            }
            process.in_run.add(&increase);
            process.cpu_time_in_run.user += cpu_increase.user;
            process.cpu_time_in_run.system += cpu_increase.system;
            let ended = process.end.is_some();
            self.rows.push(Row {
                id: process.id,
                tid: None,
                interval_ns,
                increase,
                io_read: process.io_read,
                cpu_time: cpu_increase,
                runqueue,
                memory: process.gauges.memory.filter(|_| !ended),
                details: details.remove(&process.id).filter(|_| !ended),
                threads: process.gauges.threads.filter(|_| !ended),
                fds: process.gauges.fds.filter(|_| !ended),
                cpu: process.gauges.cpu,
                state: if ended { "X" } else { process.gauges.state },
            });
        }
        self.rows.sort_by_cached_key(|row| (row.id, row.tid));
    }
}
