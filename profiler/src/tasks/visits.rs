//! Which processes a reading visits.

use super::{Process, Reader, TaskTable};
use crate::bpf::Visits;

/// Time after which a reading visits all tasks. The memory of a process that sleeps can shrink.
const ALL_EVERY_NS: u64 = 10_000_000_000;

impl TaskTable {
    /// The processes that the reading at `now` visits.
    pub(super) fn visits(&self, now: u64, last: bool) -> Visits {
        let Reader::Bpf(programs) = &self.reader else {
            return Visits::All;
        };
        let most = programs.tasks.visits_max();
        if last || most == 0 {
            return Visits::All;
        }
        if self.processes.len() <= most {
            return Visits::Known(pids(self.processes.all()));
        }
        if now.saturating_sub(self.all_visited_at) >= ALL_EVERY_NS {
            return Visits::All;
        }
        let awake = self.processes.awake();
        let awake = pids(awake.filter(|process| process.idle_since.is_none()));
        if awake.len() <= most {
            Visits::Awake(awake)
        } else {
            Visits::All
        }
    }
}

/// Pids of those that live.
fn pids<'a>(processes: impl Iterator<Item = &'a Process>) -> Vec<u32> {
    let live = processes.filter(|process| process.end.is_none());
    live.map(|process| process.id.pid).collect()
}
