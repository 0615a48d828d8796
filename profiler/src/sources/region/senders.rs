//! Processes that marks belong to.

use hashbrown::HashMap;

use crate::{
    marks::Received,
    tasks::{Process, TaskTable},
};

/// The processes of a reading by pid.
pub(super) struct Senders<'a> {
    by_pid: HashMap<u32, Vec<&'a Process>>,
    tasks: &'a TaskTable,
}

impl<'a> Senders<'a> {
    /// Resolution of start times in `/proc`, ns.
    const RESOLUTION: u64 = 10_000_000;

    pub(super) fn of(tasks: &'a TaskTable) -> Self {
        let mut by_pid: HashMap<u32, Vec<&Process>> = HashMap::new();
        for process in tasks.iter() {
            by_pid.entry(process.id.pid).or_default().push(process);
        }
        Self { by_pid, tasks }
    }

    /// The process that a mark belongs to. A mark may name another process than its sender if both
    /// have the same user, or if the sender is root.
    pub(super) fn process_of(&self, received: &Received) -> Option<&'a Process> {
        match received.mark.pid {
            Some(claimed) if claimed != received.pid => {
                let process = self.at(claimed, received.at)?;
                (received.uid == 0 || received.uid == process.uid).then_some(process)
            }
            _ => self.sender_of(received),
        }
    }

    /// The process that sent a mark.
    pub(super) fn sender_of(&self, received: &Received) -> Option<&'a Process> {
        self.at(received.pid, received.at)
    }

    /// The process that had this pid at this time: the last one that had started.
    fn at(&self, pid: u32, time: u64) -> Option<&'a Process> {
        let had_started = |process: &&&Process| {
            let start = process.id.start_boottime;
            self.tasks.clock.monotonic_of_boottime(start) <= time + Self::RESOLUTION
        };
        let candidates = self.by_pid.get(&pid)?.iter().filter(had_started);
        candidates
            .max_by_key(|process| process.id.start_boottime)
            .copied()
    }
}
