//! Who descends from whom, also through processes that have ended.

use hashbrown::HashMap;

use super::{Process, ProcessId};
use crate::support::clock::Clock;

/// A process as tables name it: pid and start, ns of wall clock.
pub type Who = (u32, i64);

/// The name of a process in tables.
pub fn who(clock: &Clock, id: ProcessId) -> Who {
    (id.pid, clock.wall_of_boottime(id.start_boottime).0)
}

/// Lines of parents are not longer.
const GENERATIONS: usize = 1024;

/// All processes of the target that live, and those that ended and have descendants that live.
#[derive(Debug, Default)]
pub struct ProcessTree {
    members: HashMap<Who, Member>,
}

#[derive(Debug)]
struct Member {
    parent: Option<Who>,
    children: u32,
    ended: bool,
}

impl ProcessTree {
    /// Takes in who is new.
    pub(super) fn learn(&mut self, processes: &HashMap<ProcessId, Process>, clock: &Clock) {
        let name = |id| who(clock, id);
        let mut new: Vec<_> = processes
            .values()
            .filter(|process| !self.members.contains_key(&name(process.id)))
            .collect();
        if new.is_empty() {
            return;
        }
        // Parents before their children.
        new.sort_by_key(|process| process.id.start_boottime);
        let mut by_pid: Option<HashMap<u32, ProcessId>> = None;
        for process in new {
            let parent = process.parent.or_else(|| {
                // It was there before us: its parent of today.
                let of_pid = || processes.keys().map(|other| (other.pid, *other)).collect();
                let parent = *by_pid.get_or_insert_with(of_pid).get(&process.ppid)?;
                (parent.start_boottime <= process.id.start_boottime && parent != process.id)
                    .then_some(parent)
            });
            let parent = parent.map(name);
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
            self.members.insert(name(process.id), member);
        }
    }

    /// The process, its parent, and so on.
    pub fn line(&self, of: Who) -> impl Iterator<Item = Who> {
        let parent = |who: &Who| self.members.get(who)?.parent;
        std::iter::successors(Some(of), parent).take(GENERATIONS)
    }

    /// Forgets who has ended, as far as nobody descends from them.
    pub(super) fn forget_ended(&mut self, processes: &HashMap<ProcessId, Process>, clock: &Clock) {
        let ended = processes.values().filter(|process| process.end.is_some());
        for process in ended {
            let mut next = Some(who(clock, process.id));
            if let Some(member) = next.and_then(|who| self.members.get_mut(&who)) {
                member.ended = true;
            }
            while let Some(who) = next.take()
                && let Some(member) = self.members.get(&who)
                && member.ended
                && member.children == 0
            {
                next = member.parent;
                self.members.remove(&who);
                if let Some(parent) = next.and_then(|who| self.members.get_mut(&who)) {
                    parent.children -= 1;
                }
            }
        }
    }
}
