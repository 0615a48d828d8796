//! Counters of processes.
//!
//! Those that exist when they are first seen are opened, each of their threads with `inherit`: the kernel then counts every
//! thread and process that is born of them, from its first instruction to its last, and adds it to the counters of the
//! process that was opened. So nothing is missed however short it lives, nothing is counted twice, and the count stays
//! readable when the process has ended. The price is that a process born later has no counts of its own: they are in those of
//! the opened process that it descends from.

use std::{fs, io};

use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;

use crate::{
    host::Host,
    support::clock::{Clock, monotonic_ns},
    tasks::{Process, ProcessId, TaskTable},
};

use super::{
    Count, Plan,
    counters::{Counters, Of},
    targets::{Opened, read},
};

/// How often a process is opened anew because threads were born meanwhile.
const ATTEMPTS: usize = 5;

/// Start times in /proc are in units of 10 ms (`USER_HZ`).
const CLOCK_TICK: u64 = 10_000_000;

/// A process whose counters are open.
#[derive(Debug)]
pub struct Entry {
    /// Who.
    pub id: ProcessId,
    /// When it was read last, ns of `CLOCK_MONOTONIC`.
    pub read_at: u64,
    /// What was added since then.
    pub counts: Vec<Option<Count>>,
    /// From when on its children are counted with it, ns of `CLOCK_BOOTTIME`.
    opened_at: u64,
    opened: Vec<Opened>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Processes {
    /// Those that are open.
    pub entries: Vec<Entry>,
    /// With whom each process of the target is counted; `None` when that is not known.
    counted_with: HashMap<ProcessId, Option<ProcessId>>,
    /// Whether processes join the target that are no descendants of others.
    strangers_join: bool,
    adopted: bool,
}

impl Processes {
    /// None yet; `strangers_join` when the target is a cgroup.
    pub fn new(strangers_join: bool) -> Self {
        Self {
            strangers_join,
            ..Self::default()
        }
    }

    /// Opens those that are new and not counted with another.
    ///
    /// # Errors
    ///
    /// The last of those that occurred, with the process; the others are open.
    pub fn adopt(
        &mut self,
        tasks: &TaskTable,
        host: &Host,
        plan: &Plan,
    ) -> Result<(), (u32, io::Error)> {
        let mut new: Vec<&Process> = tasks
            .iter()
            .filter(|process| !self.counted_with.contains_key(&process.id))
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
            let owner = parent.and_then(|parent| self.owner_of_child(*parent, process.id));
            // Whoever comes later is a descendant whose parent has gone.
            let is_descendant = self.adopted && !self.strangers_join && parent.is_none();
            if owner.is_some() || is_descendant || process.end.is_some() {
                self.counted_with.insert(process.id, owner);
                continue;
            }
            self.counted_with.insert(process.id, Some(process.id));
            match open(host, plan, process.id.pid) {
                Ok(opened) if opened.is_empty() => {}
                Ok(opened) => self
                    .entries
                    .push(Entry::new(process.id, opened, plan, &tasks.clock)),
                Err(error) => result = Err((process.id.pid, error)),
            }
        }
        self.adopted = true;
        result
    }

    /// With whom a child is counted by the kernel, if it is.
    fn owner_of_child(&self, parent: ProcessId, child: ProcessId) -> Option<ProcessId> {
        let owner = (*self.counted_with.get(&parent)?)?;
        if owner != parent {
            return Some(owner);
        }
        let entry = self.entries.iter().find(|entry| entry.id == owner)?;
        (latest_start(child) >= entry.opened_at).then_some(owner)
    }

    /// Closes those that have ended, with all that were counted with them. To be called after they were read, and after
    /// their children were adopted.
    pub fn close_ended(&mut self, tasks: &TaskTable) {
        let lives = |id: &ProcessId| tasks.get(*id).is_some_and(|process| process.end.is_none());
        self.counted_with.retain(|id, _| lives(id));
        let used: HashSet<Option<ProcessId>> = self.counted_with.values().copied().collect();
        // Somebody of whom it is not known may be counted with anybody.
        if !used.contains(&None) {
            self.entries.retain(|entry| used.contains(&Some(entry.id)));
        }
    }
}

impl Entry {
    fn new(id: ProcessId, opened: Vec<Opened>, plan: &Plan, clock: &Clock) -> Self {
        let now = monotonic_ns();
        Self {
            id,
            read_at: now,
            counts: vec![None; plan.slots.len()],
            opened_at: clock.boottime(now),
            opened,
        }
    }

    /// Reads what was added.
    ///
    /// # Errors
    ///
    /// The last of those that occurred; what could be read is there.
    pub fn read(&mut self) -> io::Result<()> {
        self.counts.fill(None);
        read(&mut self.opened, &mut self.counts)
    }
}

/// The last moment at which it can have started.
fn latest_start(id: ProcessId) -> u64 {
    if id.start_boottime.is_multiple_of(CLOCK_TICK) {
        id.start_boottime + CLOCK_TICK - 1
    } else {
        id.start_boottime
    }
}

/// Opens every thread of a process. A thread that is born meanwhile is counted with its maker or not at all, depending on
/// whether that one was open already: so all are opened anew until none is born.
fn open(host: &Host, plan: &Plan, pid: u32) -> io::Result<Vec<Opened>> {
    let mut opened = Vec::new();
    for _ in 0..ATTEMPTS {
        opened.clear();
        let threads = threads(host, pid);
        for tid in &threads {
            open_thread(plan, *tid, &mut opened)?;
        }
        let now = self::threads(host, pid);
        if now.is_subset(&threads) {
            break;
        }
    }
    Ok(opened)
}

fn open_thread(plan: &Plan, tid: u32, opened: &mut Vec<Opened>) -> io::Result<()> {
    for perf_group in &plan.core {
        match Counters::open(&perf_group.events, Of::Thread(tid)) {
            Ok(counters) => opened.push((counters, perf_group.slots.clone())),
            Err(refused) if Errno::from_io_error(&refused.error) == Some(Errno::SRCH) => {
                // It has ended.
                return Ok(());
            }
            Err(refused) => return Err(refused.error),
        }
    }
    Ok(())
}

fn threads(host: &Host, pid: u32) -> HashSet<u32> {
    let directory = host.procfs.join(format!("{pid}/task"));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
