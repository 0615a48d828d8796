//! Ancestry of processes, also through processes that have ended.

use hashbrown::HashMap;

use super::{ProcessId, processes::Processes};
use crate::support::clock::Clock;

/// Key of a process in tables: `pid` and `start_ts`, the latter in µs of wall clock.
pub type ProcessKey = (u32, i64);

/// The key of a process in tables.
pub fn process_key(clock: &Clock, id: ProcessId) -> ProcessKey {
    (id.pid, clock.wall_of_boottime(id.start_boottime).us())
}

/// Limit of an ancestry.
const GENERATIONS_MAX: usize = 1024;

/// The live processes of the target, and ended processes with live descendants.
#[derive(Debug, Default)]
pub struct ProcessTree {
    members: HashMap<ProcessKey, Member>,
}

#[derive(Debug)]
struct Member {
    parent: Option<ProcessKey>,
    children: u32,
    ended: bool,
}

impl ProcessTree {
    /// Adds processes. Those that left the target and have come back are members already.
    pub(super) fn add(&mut self, new: &[ProcessId], processes: &Processes, clock: &Clock) {
        let key = |id| process_key(clock, id);
        let new = new.iter().filter_map(|id| processes.get(*id));
        let mut new: Vec<_> = new
            .filter(|process| !self.members.contains_key(&key(process.id)))
            .collect();
        // Parents before their children.
        new.sort_by_key(|process| process.id.start_boottime);
        let mut by_pid: Option<HashMap<u32, ProcessId>> = None;
        for process in new {
            let parent = process.parent.or_else(|| {
                // A process from before the run: its present parent.
                let index = || {
                    processes
                        .all()
                        .map(|other| (other.id.pid, other.id))
                        .collect()
                };
                let parent = *by_pid.get_or_insert_with(index).get(&process.ppid)?;
                (parent.start_boottime <= process.id.start_boottime && parent != process.id)
                    .then_some(parent)
            });
            let parent = parent.map(key);
            let parent = parent.filter(|parent| match self.members.get_mut(parent) {
                Some(member) => {
                    member.children += 1;
                    true
                }
                None => false,
            });
            let member = Member {
                parent,
                children: 0,
                ended: false,
            };
            self.members.insert(key(process.id), member);
        }
    }

    /// The process, its parent, and so on.
    pub fn ancestry(&self, process: ProcessKey) -> impl Iterator<Item = ProcessKey> {
        let parent = |key: &ProcessKey| self.members.get(key)?.parent;
        std::iter::successors(Some(process), parent).take(GENERATIONS_MAX)
    }

    /// Marks a process as ended. Those without live descendants are removed.
    pub(super) fn end(&mut self, process: ProcessKey) {
        let mut next = Some(process);
        if let Some(member) = self.members.get_mut(&process) {
            member.ended = true;
        }
        while let Some(key) = next.take()
            && let Some(member) = self.members.get(&key)
            && member.ended
            && member.children == 0
        {
            next = member.parent;
            self.members.remove(&key);
            if let Some(parent) = next.and_then(|key| self.members.get_mut(&key)) {
                parent.children -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: u32) -> ProcessId {
        ProcessId {
            pid,
            start_boottime: u64::from(pid) * 1000,
        }
    }

    #[test]
    fn processes_that_come_back_are_counted_once() {
        let clock = Clock::new();
        let key = |pid| process_key(&clock, id(pid));
        let mut processes = Processes::default();
        processes.entry(id(1), 0);
        processes.entry(id(2), 0).parent = Some(id(1));
        let mut tree = ProcessTree::default();
        for new in [&[id(1), id(2)][..], &[id(2)], &[id(1)]] {
            tree.add(new, &processes, &clock);
        }
        assert_eq!(tree.members[&key(1)].children, 1);
        // An ended parent stays until its last child has ended.
        tree.end(key(1));
        assert!(tree.ancestry(key(2)).eq([key(2), key(1)]));
        tree.end(key(2));
        assert!(tree.members.is_empty());
    }
}
