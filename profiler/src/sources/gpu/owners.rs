//! Whose a pid is that a driver names.

use hashbrown::HashMap;

use super::super::TickContext;
use crate::{
    host::Host,
    procfs::{process_stat, stat::tick_ns},
    tasks::ProcessId,
};

/// The processes of the target, by pid.
pub(super) struct Owners<'a> {
    host: &'a Host,
    at: &'a TickContext<'a>,
    /// Nobody follows processes, and all of them are the target.
    unread: bool,
    by_pid: Option<HashMap<u32, Vec<u64>>>,
}

impl<'a> Owners<'a> {
    pub(super) fn new(host: &'a Host, at: &'a TickContext<'a>, node: bool) -> Self {
        Self {
            host,
            at,
            unread: node && at.tasks.iter().next().is_none(),
            by_pid: None,
        }
    }

    /// All pids of the target; none if those are all of /proc.
    pub(super) fn pids(&self) -> Option<Vec<u32>> {
        (!self.unread).then(|| self.at.tasks.iter().map(|process| process.id.pid).collect())
    }

    /// The process that had this pid at that time, if it is one of the target.
    pub(super) fn of(&mut self, pid: u32, monotonic_ns: u64) -> Option<ProcessId> {
        let clock = &self.at.tasks.clock;
        let start_boottime = if self.unread {
            self.start_in_procfs(pid)?
        } else {
            let by_pid = self.by_pid.get_or_insert_with(|| {
                let mut by_pid: HashMap<u32, Vec<u64>> = HashMap::new();
                for process in self.at.tasks.iter() {
                    let id = process.id;
                    by_pid.entry(id.pid).or_default().push(id.start_boottime);
                }
                by_pid
            });
            let born = |start: &&u64| clock.monotonic_of_boottime(**start) <= monotonic_ns;
            *by_pid.get(&pid)?.iter().filter(born).max()?
        };
        Some(ProcessId {
            pid,
            start_boottime,
        })
    }

    /// In units of 10 ms, as in every table that is read from /proc.
    fn start_in_procfs(&self, pid: u32) -> Option<u64> {
        let stat = process_stat::of_process(&self.host.procfs, pid)?;
        stat.starttime.checked_mul(tick_ns())
    }
}
