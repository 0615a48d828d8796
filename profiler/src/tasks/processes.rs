//! The processes of a target.

use hashbrown::HashMap;

use super::{Process, ProcessId};
use crate::schema::read::sum_of_known;

/// All processes, by identity. Those that a reading leaves out and that have no row are set aside: a
/// reading takes no time for them.
#[derive(Default)]
pub struct Processes {
    awake: HashMap<ProcessId, Box<Process>>,
    asleep: HashMap<ProcessId, Box<Process>>,
    /// Resident memory of those asleep, bytes; `None` if none has memory.
    rss: Option<u64>,
    /// Numbers of those asleep, by real uid.
    users: HashMap<u32, usize>,
    /// Epoch of the last reading that left out those asleep.
    left_out_in: u32,
    /// Begin of the last reading, ns of `CLOCK_MONOTONIC`.
    read_at: u64,
    /// Time from the reading before it, ns.
    interval_ns: u64,
}

impl Processes {
    /// A process.
    pub fn get(&self, id: ProcessId) -> Option<&Process> {
        let process = self.awake.get(&id).or_else(|| self.asleep.get(&id));
        process.map(Box::as_ref)
    }

    /// Number of all processes.
    pub fn len(&self) -> usize {
        self.awake.len() + self.asleep.len()
    }

    /// All processes.
    pub fn all(&self) -> impl Iterator<Item = &Process> {
        let all = self.awake.values().chain(self.asleep.values());
        all.map(Box::as_ref)
    }

    /// Interval of a process up to the last reading, including that of deferred rows, ns.
    pub(super) fn interval_ns(&self, id: ProcessId) -> Option<u64> {
        match self.awake.get(&id) {
            Some(process) => Some(process.interval_ns),
            None => self.asleep.contains_key(&id).then_some(self.interval_ns),
        }
    }

    /// Those that are not asleep.
    pub(super) fn awake(&self) -> impl Iterator<Item = &Process> {
        self.awake.values().map(Box::as_ref)
    }

    /// Those that are not asleep.
    pub(super) fn awake_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.awake.values_mut().map(Box::as_mut)
    }

    /// Number of those asleep.
    pub(super) fn asleep(&self) -> usize {
        self.asleep.len()
    }

    /// Resident memory of those asleep, bytes; `None` if none has memory.
    pub(super) fn asleep_rss(&self) -> Option<u64> {
        self.rss
    }

    /// Real uids of those asleep.
    pub(super) fn asleep_users(&self) -> impl Iterator<Item = u32> {
        self.users.keys().copied()
    }

    /// A process, which is no longer asleep.
    pub(super) fn get_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.wake(id);
        self.awake.get_mut(&id).map(Box::as_mut)
    }

    /// A process, created if missing, which is no longer asleep.
    pub(super) fn entry(&mut self, id: ProcessId, now: u64) -> &mut Process {
        self.wake(id);
        let new = || Box::new(Process::new(id, now));
        self.awake.entry(id).or_insert_with(new)
    }

    /// Removes a process that is not asleep.
    pub(super) fn remove(&mut self, id: ProcessId) {
        self.awake.remove(&id);
    }

    /// Keeps some of those that are not asleep.
    pub(super) fn retain_awake(&mut self, mut is_kept: impl FnMut(&mut Process) -> bool) {
        self.awake.retain(|_, process| is_kept(process));
    }

    /// Sets a process aside that has been left out of a reading.
    pub(super) fn set_aside(&mut self, id: ProcessId) {
        let Some(process) = self.awake.remove(&id) else {
            return;
        };
        let rss = process.gauges.memory.map(|memory| memory.rss);
        self.rss = sum_of_known([self.rss, rss]);
        *self.users.entry(process.uid).or_default() += 1;
        self.asleep.insert(id, process);
    }

    pub(super) fn wake(&mut self, id: ProcessId) {
        // Most nodes have none.
        if self.asleep.is_empty() {
            return;
        }
        let Some(process) = self.asleep.remove(&id) else {
            return;
        };
        let rss = process.gauges.memory.map_or(0, |memory| memory.rss);
        self.rss = self.rss.map(|sum| sum.saturating_sub(rss));
        if let Some(count) = self.users.get_mut(&process.uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&process.uid);
            }
        }
        self.add_awake(process);
    }

    pub(super) fn wake_all(&mut self) {
        for (_, process) in std::mem::take(&mut self.asleep) {
            self.add_awake(process);
        }
        self.rss = None;
        self.users.clear();
    }

    fn add_awake(&mut self, mut process: Box<Process>) {
        process.seen_in = self.left_out_in;
        process.read_at = Some(self.read_at);
        self.awake.insert(process.id, process);
    }

    /// Notes that a reading has left out those asleep.
    pub(super) fn leave_out(&mut self, epoch: u32) {
        self.left_out_in = epoch;
    }

    /// Ends a reading that began at `now`.
    pub(super) fn end_reading(&mut self, now: u64) {
        self.interval_ns = now.saturating_sub(self.read_at);
        self.read_at = now;
    }
}
