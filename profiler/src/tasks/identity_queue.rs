//! Requests for names of processes that the events did not supply, and their budget.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hashbrown::HashSet;

use super::{
    Access, Budget, Reader, TaskTable,
    identity_worker::{self, Batch, Request},
};
use crate::procfs::memory_file;

/// Time that a sample waits for names. Most are available within it.
const TIMEOUT: Duration = Duration::from_millis(2);
/// Time that the first sample waits, unless the processes are many.
const FIRST_TIMEOUT: Duration = Duration::from_millis(100);
/// Time that the last sample waits, with as many requests as it needs: longer than a process can
/// block one.
const LAST_TIMEOUT: Duration = Duration::from_millis(1500);
/// Idle processes of a large node whose names are read in each period after the first one, if they are read
/// from `/proc`: that takes 40 µs each.
const IDLE_MAX: usize = 64;
const IDLE_PERIOD: Duration = Duration::from_millis(900);
/// Missing names from which a pass of the iterator is worth it.
const PASS_MIN: usize = 64;
/// Bytes of long command lines in memory.
const CMDLINE_BYTES: usize = 32 << 20;

impl TaskTable {
    /// Budget for long command lines, less those in memory.
    pub(super) fn cmdline_budget(&self) -> Budget {
        let mut budget = Budget::new(CMDLINE_BYTES);
        let mut seen = HashSet::new();
        for process in self.processes.all() {
            // A child shares the command line of its parent.
            if let Some(cmdline) = &process.description.cmdline
                && cmdline.is_long()
                && seen.insert(cmdline.address())
            {
                budget.charge(process.uid, cmdline.size());
            }
        }
        budget
    }

    /// Reads names of processes from before the run, and of processes with incomplete events.
    pub(super) fn update_names(&mut self, first: bool, last: bool) {
        if !self.any_undescribed && self.identity_worker.is_idle() {
            return;
        }
        let begin = Instant::now();
        self.receive_names(Duration::ZERO);
        loop {
            let requested = self.request_names(last);
            self.receive_names(match (requested, first, last) {
                (_, _, true) => LAST_TIMEOUT.saturating_sub(begin.elapsed()),
                (1..=identity_worker::BATCH_MAX, true, _) => FIRST_TIMEOUT,
                (0, ..) => Duration::ZERO,
                _ => TIMEOUT,
            });
            let is_complete = requested == 0 && self.identity_worker.is_idle();
            if !last || is_complete || begin.elapsed() > LAST_TIMEOUT {
                break;
            }
        }
    }

    /// Requests a batch of missing names. Returns the number of its processes: 0 if there are none, or another
    /// batch is in progress.
    fn request_names(&mut self, last: bool) -> usize {
        if !self.any_undescribed || !self.identity_worker.is_idle() {
            return 0;
        }
        let now = Instant::now();
        let batch = match self.next_pass(now) {
            Some(batch) => batch,
            None => Batch {
                requests: self.next_batch(now, last),
                iterator: None,
            },
        };
        let count = batch.requests.len();
        if count != 0 && self.identity_worker.start(batch) {
            count
        } else {
            0
        }
    }

    /// All processes whose names are missing, with the iterator that reads them; `None` if they are few, or
    /// there is none.
    fn next_pass(&mut self, now: Instant) -> Option<Batch> {
        let is_due = self.idle_names_at.is_none_or(|at| now - at >= IDLE_PERIOD);
        let Reader::Bpf(programs) = &mut self.reader else {
            return None;
        };
        if !is_due || self.has_pass_failed || memory_file::is_any_blocked() {
            return None;
        }
        let awake = self.processes.awake();
        let missing = awake.filter(|process| !process.described && process.access != Access::None);
        let missing = missing.map(|process| (process.id, process.uid));
        let requests: Vec<_> = missing.chain(self.processes.asleep_undescribed()).collect();
        if requests.len() < PASS_MIN {
            return None;
        }
        let iterator = programs.open_names()?;
        self.idle_names_at = Some(now);
        Some(Batch {
            requests,
            iterator: Some(iterator),
        })
    }

    /// The next processes whose names are read: first those that have run.
    fn next_batch(&mut self, now: Instant, last: bool) -> Vec<Request> {
        let (mut batch, mut idle) = (Vec::new(), Vec::new());
        let processes = self.processes.awake_mut();
        for process in processes.filter(|process| !process.described) {
            if process.access == Access::None {
                process.described = true;
                process.changed = true;
            } else if !process.has_run() {
                if idle.len() <= identity_worker::BATCH_MAX {
                    idle.push((process.id, process.uid));
                }
            } else if batch.len() < identity_worker::BATCH_MAX {
                batch.push((process.id, process.uid));
            }
        }
        let is_due = self.idle_names_at.is_none_or(|at| now - at >= IDLE_PERIOD);
        if is_due || last {
            let asleep = self.processes.asleep_undescribed();
            let missing = (identity_worker::BATCH_MAX + 1).saturating_sub(idle.len());
            idle.extend(asleep.take(missing));
        }
        let room = identity_worker::BATCH_MAX - batch.len();
        if idle.len() <= room || last {
            idle.truncate(room);
            batch.append(&mut idle);
        } else if is_due {
            let most = self.idle_names_at.map_or(room, |_| IDLE_MAX);
            idle.truncate(most.min(room));
            batch.append(&mut idle);
            self.idle_names_at = Some(now);
        }
        batch
    }

    /// Processes whose memory could not be read, by user if that is known.
    pub fn memory_lost(&self) -> BTreeMap<Option<u32>, u64> {
        memory_file::losses()
    }

    /// Processes whose descriptors were not read, by user, once for each reading.
    pub fn descriptors_lost(&self) -> BTreeMap<Option<u32>, u64> {
        let lost = self.details.descriptors_lost().iter();
        lost.map(|(uid, count)| (Some(*uid), *count)).collect()
    }

    fn receive_names(&mut self, timeout: Duration) {
        let Some(received) = self.identity_worker.receive(timeout) else {
            return;
        };
        if received.has_failed {
            (self.has_pass_failed, self.idle_names_at) = (true, None);
        }
        let mut names = received.names.iter();
        if names.any(|(_, names)| names.has_long_cmdline()) {
            self.cmdlines = self.cmdline_budget();
        }
        for (id, names) in received.names {
            let Some(process) = self.processes.get_mut(id) else {
                continue;
            };
            let (numbers, cmdlines) = (&mut self.job_numbers, &mut self.cmdlines);
            let uid = process.uid;
            process.description.set_names(names, numbers, cmdlines, uid);
            process.described = true;
            process.changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::ProcessId, *};
    use crate::{host::Host, support::clock::Clock};

    /// 64 of the idle ones in a second.
    #[test]
    fn names_of_processes_that_run_come_first() {
        let nowhere = Path::new("/nowhere");
        let host = Host::probe(nowhere, nowhere, Some("n1".to_owned()));
        let mut tasks = TaskTable::without_reader(&host, Clock::new());
        for pid in 1..=5000 {
            let id = ProcessId {
                pid,
                start_boottime: 1,
            };
            let process = tasks.processes.entry(id, 0);
            process.in_run.oncpu = u64::from(pid <= 3);
        }
        let begin = Instant::now();
        let mut batch = |ms: u64, last: bool| {
            let batch = tasks.next_batch(begin + Duration::from_millis(ms), last);
            let ran = batch.iter().filter(|(id, _)| id.pid <= 3).count();
            for (id, _) in &batch {
                let process = tasks.processes.get_mut(*id);
                process.expect("one of them").described = true;
            }
            (ran, batch.len())
        };
        assert_eq!(batch(0, false), (3, identity_worker::BATCH_MAX));
        assert_eq!(batch(100, false), (0, 0));
        assert_eq!(batch(1000, false), (0, IDLE_MAX));
        assert_eq!(batch(1100, false), (0, 0));
        let mut rest = 5000 - identity_worker::BATCH_MAX - IDLE_MAX;
        while rest > 0 {
            let count = rest.min(identity_worker::BATCH_MAX);
            assert_eq!(batch(1200, true), (0, count));
            rest -= count;
        }
        assert_eq!(batch(1200, true), (0, 0));
    }
}
