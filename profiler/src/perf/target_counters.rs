//! Counters of the target's processes.
//!
//! Each thread of the processes that exist at the start is opened with `inherit`: the kernel then
//! counts all threads and processes descending from it, from their first instruction to their last,
//! and adds the counts to those of the opened process. Short-lived processes are included, nothing
//! is counted twice, and the counts remain readable after the process has ended. The limitation is
//! that a descendant has no counts of its own.

use std::{io, sync::Arc};

use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;

use super::{
    count::{Count, add_increase},
    open_group::{CounterScope, OpenGroup},
    plan::{EventIndex, Plan},
};
use crate::{
    host::Host,
    procfs::{process_list, stat::tick_ns},
    support::clock::{Clock, monotonic_ns},
    tasks::{Access, Process, ProcessId, TaskTable},
};

/// Attempts to open a process while it creates threads.
const ATTEMPTS: usize = 5;

/// An open group, with the indices of its counts.
type IndexedGroup = (OpenGroup, Arc<[EventIndex]>);

/// Counters of a process and of its descendants since it was opened.
#[derive(Debug)]
pub struct ProcessCounters {
    pub id: ProcessId,
    /// Time of the last reading, ns of `CLOCK_MONOTONIC`.
    pub read_at: u64,
    /// Increases of the last reading, by event index.
    pub counts: Vec<Option<Count>>,
    /// Time from which its descendants inherit the counters, ns of `CLOCK_BOOTTIME`.
    opened_at: u64,
    groups: Vec<IndexedGroup>,
}

/// Counters of all processes of the target.
#[derive(Debug, Default)]
pub struct TargetCounters {
    /// Open processes.
    pub processes: Vec<ProcessCounters>,
    /// The open process that has the counts of each process; `None` if unknown.
    counted_in: HashMap<ProcessId, Option<ProcessId>>,
    /// Whether processes can join the target otherwise than by fork.
    joins_without_fork: bool,
    has_opened: bool,
}

impl TargetCounters {
    /// No counters yet. `joins_without_fork` if the target is a cgroup or a job.
    pub fn new(joins_without_fork: bool) -> Self {
        Self {
            joins_without_fork,
            ..Self::default()
        }
    }

    /// Opens new processes that inherit no counters.
    ///
    /// # Errors
    ///
    /// The last error, with the pid; the other processes are open.
    pub fn open_new(
        &mut self,
        tasks: &TaskTable,
        host: &Host,
        plan: &Plan,
    ) -> Result<(), (u32, io::Error)> {
        let mut new: Vec<&Process> = tasks
            .iter()
            .filter(|process| process.access == Access::Full)
            .filter(|process| !self.counted_in.contains_key(&process.id))
            .collect();
        // Parents before their children.
        new.sort_by_key(|process| process.id.start_boottime);
        let by_pid: HashMap<u32, ProcessId> = tasks
            .iter()
            .map(|process| (process.id.pid, process.id))
            .collect();
        let mut result = Ok(());
        for process in new {
            let parent = by_pid.get(&process.ppid);
            let inherited = parent.and_then(|parent| self.inherited(*parent, process.id));
            // A new process without parent is a descendant with an ended parent.
            let is_descendant = self.has_opened && !self.joins_without_fork && parent.is_none();
            if inherited.is_some() || is_descendant || process.end.is_some() {
                self.counted_in.insert(process.id, inherited);
                continue;
            }
            self.counted_in.insert(process.id, Some(process.id));
            match open(host, plan, process.id.pid) {
                Ok(groups) if groups.is_empty() => {}
                Ok(groups) => {
                    let clock = &tasks.clock;
                    let counters = ProcessCounters::new(process.id, groups, plan, clock);
                    self.processes.push(counters);
                }
                Err(error) => result = Err((process.id.pid, error)),
            }
        }
        self.has_opened = true;
        result
    }

    /// The open process from which a child inherits its counters.
    fn inherited(&self, parent: ProcessId, child: ProcessId) -> Option<ProcessId> {
        let open = (*self.counted_in.get(&parent)?)?;
        if open != parent {
            return Some(open);
        }
        let mut processes = self.processes.iter();
        let counters = processes.find(|counters| counters.id == open)?;
        (latest_start(child) >= counters.opened_at).then_some(open)
    }

    /// Closes processes that have ended, if no live process inherits their counters. To be called
    /// after the counters were read and new processes were opened.
    pub fn close_ended(&mut self, tasks: &TaskTable) {
        let is_live = |id: &ProcessId| tasks.get(*id).is_some_and(|process| process.end.is_none());
        self.counted_in.retain(|id, _| is_live(id));
        let used: HashSet<Option<ProcessId>> = self.counted_in.values().copied().collect();
        // The counts of a process with `None` can be in any open process.
        if !used.contains(&None) {
            self.processes
                .retain(|counters| used.contains(&Some(counters.id)));
        }
    }
}

impl ProcessCounters {
    fn new(id: ProcessId, groups: Vec<IndexedGroup>, plan: &Plan, clock: &Clock) -> Self {
        let now = monotonic_ns();
        Self {
            id,
            read_at: now,
            counts: vec![None; plan.events.len()],
            opened_at: clock.boottime(now),
            groups,
        }
    }

    /// Replaces [`Self::counts`] by the increases since the previous reading.
    ///
    /// # Errors
    ///
    /// The last error; the other groups are read.
    pub fn read(&mut self) -> io::Result<()> {
        self.counts.fill(None);
        let mut result = Ok(());
        for (group, indices) in &mut self.groups {
            match group.read() {
                Ok(increase) => add_increase(&mut self.counts, indices, &increase),
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

/// Latest possible start time: start times from `/proc` are rounded down to clock ticks.
fn latest_start(id: ProcessId) -> u64 {
    if id.start_boottime.is_multiple_of(tick_ns()) {
        id.start_boottime + tick_ns() - 1
    } else {
        id.start_boottime
    }
}

/// Opens all threads of a process. A thread that is created meanwhile inherits counters only if its
/// creator was open. Therefore all are opened again until no thread is created meanwhile.
fn open(host: &Host, plan: &Plan, pid: u32) -> io::Result<Vec<IndexedGroup>> {
    let threads = || -> HashSet<u32> { process_list::threads(&host.procfs, pid).collect() };
    let mut groups = Vec::new();
    for _ in 0..ATTEMPTS {
        groups.clear();
        let before = threads();
        for tid in &before {
            open_thread(plan, *tid, &mut groups)?;
        }
        if threads().is_subset(&before) {
            break;
        }
    }
    Ok(groups)
}

fn open_thread(plan: &Plan, tid: u32, groups: &mut Vec<IndexedGroup>) -> io::Result<()> {
    for group in &plan.core_groups {
        match OpenGroup::open(&group.attributes, CounterScope::Thread(tid)) {
            Ok(open) => groups.push((open, group.indices.clone())),
            // The thread has ended.
            Err(error) if Errno::from_io_error(&error.error) == Some(Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.error),
        }
    }
    Ok(())
}
