//! CPU time of the whole target without BPF, with that of processes that no reading of `/proc` has.

use std::collections::HashMap;

use hashbrown::HashSet;

use super::ProcessId;

/// CPU time by readings of `/proc`. The time of an ended process is in that of the parent that has
/// waited for it (`cutime`, in clock ticks). Missing is that of processes whose parent ignores
/// SIGCHLD, or has ended before them, since their last reading.
#[derive(Debug, Default)]
pub(super) struct CutimeSum {
    processes: HashMap<ProcessId, Usage>,
    /// Of ended processes that no process of the target has waited for, ns.
    ended: u64,
    /// Of processes from before the run, up to their first reading, ns.
    before: u64,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) ppid: u32,
    /// CPU time, ns.
    pub(super) own_ns: u64,
    /// That of the children for which it has waited, ns.
    pub(super) children_ns: u64,
    /// Whether the process is from before the run.
    pub(super) is_older: bool,
}

impl CutimeSum {
    /// Adds a reading of all processes. Returns the CPU time since the first one, ns.
    pub(super) fn update(&mut self, processes: HashMap<ProcessId, Usage>) -> u64 {
        let before = std::mem::replace(&mut self.processes, processes);
        let parents: HashSet<u32> = before.keys().map(|id| id.pid).collect();
        for (id, usage) in &before {
            if !self.processes.contains_key(id) && !parents.contains(&usage.ppid) {
                self.ended += usage.sum();
            }
        }
        for (id, usage) in &self.processes {
            if usage.is_older && !before.contains_key(id) {
                self.before += usage.sum();
            }
        }
        let live: u64 = self.processes.values().map(Usage::sum).sum();
        let now = (self.ended + live).saturating_sub(self.before);
        // Between the end of a process and its parent's wait, its time is in neither.
        self.total = self.total.max(now);
        self.total
    }
}

impl Usage {
    fn sum(&self) -> u64 {
        self.own_ns.saturating_add(self.children_ns)
    }
}

/// CPU time by an inherited counter, and of processes that the kernel does not count.
#[derive(Debug, Default)]
pub(super) struct CountedSum {
    /// Last CPU time of each live process, ns.
    last: HashMap<ProcessId, u64>,
    uncounted: u64,
}

impl CountedSum {
    /// Adds a process in this reading, and whether the counter includes it.
    pub(super) fn add(&mut self, id: ProcessId, usage: &Usage, is_counted: bool) {
        let last = self.last.insert(id, usage.own_ns);
        let last = last.unwrap_or(if usage.is_older { usage.own_ns } else { 0 });
        if !is_counted {
            self.uncounted += usage.own_ns.saturating_sub(last);
        }
    }

    /// Total with the counter, ns.
    pub(super) fn total(&self, counter: u64) -> u64 {
        counter + self.uncounted
    }

    /// Removes ended processes.
    pub(super) fn retain(&mut self, is_live: impl Fn(ProcessId) -> bool) {
        self.last.retain(|id, _| is_live(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, ppid: u32, cpu_ns: u64, is_older: bool) -> (ProcessId, Usage) {
        let id = ProcessId {
            pid,
            start_boottime: 1,
        };
        let usage = Usage {
            ppid,
            own_ns: cpu_ns,
            children_ns: 0,
            is_older,
        };
        (id, usage)
    }

    fn total(sum: &mut CutimeSum, processes: &[(ProcessId, Usage)]) -> u64 {
        sum.update(processes.iter().copied().collect())
    }

    #[test]
    fn time_of_an_ended_process_is_counted_once() {
        let mut sum = CutimeSum::default();
        let (old, child) = (process(1, 0, 500, true), process(2, 1, 30, false));
        assert_eq!(total(&mut sum, &[old, child]), 30);
        // The child used 10 more and ended; the parent has waited for it and used 5.
        assert_eq!(total(&mut sum, &[process(1, 0, 545, true)]), 45);
        // A process that no reading has.
        assert_eq!(total(&mut sum, &[process(1, 0, 645, true)]), 145);
        // Not yet waited for: the sum does not decrease.
        assert_eq!(total(&mut sum, &[process(1, 0, 600, true)]), 145);
    }

    #[test]
    fn time_of_an_orphan_remains() {
        let mut sum = CutimeSum::default();
        let orphan = process(3, 99, 70, false);
        assert_eq!(total(&mut sum, &[process(1, 0, 10, false), orphan]), 80);
        assert_eq!(total(&mut sum, &[process(1, 0, 10, false)]), 80);
        assert_eq!(total(&mut sum, &[]), 80);
    }

    #[test]
    fn uncounted_processes_are_added() {
        let mut sum = CountedSum::default();
        let mut add = |cpu_ns, is_counted, is_older| {
            let (id, usage) = process(1, 0, cpu_ns, is_older);
            sum.add(id, &usage, is_counted);
            sum.total(1000)
        };
        assert_eq!(add(100, true, false), 1000);
        assert_eq!(add(140, false, false), 1040);
        sum.retain(|_| false);
        let (id, usage) = process(1, 0, 900, true);
        sum.add(id, &usage, false);
        assert_eq!(sum.total(1000), 1040);
    }
}
