//! Processes of the pids that a driver reports.

use hashbrown::HashMap;

use super::super::TickContext;
use crate::{
    host::Host,
    procfs::{process_stat, stat::tick_ns},
    tasks::ProcessId,
};

/// Processes of the target, by pid.
pub(super) struct Owners<'a> {
    host: &'a Host,
    ctx: &'a TickContext<'a>,
    /// Whether the target is the node and its processes are not followed.
    unread: bool,
    by_pid: Option<HashMap<u32, Vec<u64>>>,
}

impl<'a> Owners<'a> {
    pub(super) fn new(host: &'a Host, ctx: &'a TickContext<'a>, node: bool) -> Self {
        Self {
            host,
            ctx,
            unread: node && ctx.tasks.iter().next().is_none(),
            by_pid: None,
        }
    }

    /// All pids of the target; `None` for all of /proc.
    pub(super) fn pids(&self) -> Option<Vec<u32>> {
        (!self.unread).then(|| {
            self.ctx
                .tasks
                .iter()
                .map(|process| process.id.pid)
                .collect()
        })
    }

    /// The process of the target that had this pid at this time.
    pub(super) fn of(&mut self, pid: u32, monotonic_ns: u64) -> Option<ProcessId> {
        let clock = &self.ctx.tasks.clock;
        let start_boottime = if self.unread {
            self.start_in_procfs(pid)?
        } else {
            let by_pid = self.by_pid.get_or_insert_with(|| {
                let mut by_pid: HashMap<u32, Vec<u64>> = HashMap::new();
                for process in self.ctx.tasks.iter() {
                    let id = process.id;
                    by_pid.entry(id.pid).or_default().push(id.start_boottime);
                }
                by_pid
            });
            let started = |start: &&u64| clock.monotonic_of_boottime(**start) <= monotonic_ns;
            *by_pid.get(&pid)?.iter().filter(started).max()?
        };
        Some(ProcessId {
            pid,
            start_boottime,
        })
    }

    /// Start time of a process, in units of 10 ms, like all start times from /proc.
    fn start_in_procfs(&self, pid: u32) -> Option<u64> {
        let stat = process_stat::of_process(&self.host.procfs, pid)?;
        stat.starttime.checked_mul(tick_ns())
    }
}
