//! Increases of a reading over the previous one, and the end of processes without an exit event.

use super::{End, Reader, Row, TaskTable, counters::CpuTime, identity};
use crate::support::clock::monotonic_ns;

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
            epochs_max == 1 || !identity::is_alive(&host.procfs, *id)
        });
    }

    /// Computes the increases of all processes and adds their rows.
    pub(super) fn publish(&mut self, now: u64, last: bool) {
        let (mut details, pss) = self.details.receive();
        // The sum that was received at a boundary is in the row of the next sample.
        let at_boundary = self.read_at != self.sampled_at;
        self.pss = pss.or(self.pss.filter(|_| at_boundary));
        for process in self.processes.values_mut() {
            let is_observed = process.seen_in == self.epochs && !process.gauges.state.is_empty();
            if !process.counted || !is_observed && process.end.is_none() {
                continue;
            }
            let started = self.clock.monotonic_of_boottime(process.id.start_boottime);
            if started > now && !last {
                continue;
            }
            let until = match process.end {
                Some(end) => end.at,
                None if started > now => monotonic_ns(),
                None => now,
            };
            let since = process.read_at.replace(until).unwrap_or(started);
            let interval_ns = until.saturating_sub(since);
            process.interval_ns = process.deferred_ns + interval_ns;
            let (increase, cpu_time, runqueue) = match process.unchanged {
                Some((state, ns)) if process.end.is_none() => {
                    (process.remain(state, ns), CpuTime::default(), None)
                }
                _ => {
                    let is_baseline = process.published.is_none() && !process.started_in_run;
                    let increases = process.advance();
                    if is_baseline {
                        continue;
                    }
                    increases
                }
            };
            process.in_run.add(&increase);
            process.cpu_time_in_run.user += cpu_time.user;
            process.cpu_time_in_run.system += cpu_time.system;
            let ended = process.end.is_some();
            self.rows.push(Row {
                id: process.id,
                tid: None,
                interval_ns,
                increase,
                io_read: process.io_read,
                is_public: false,
                cpu_time,
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
