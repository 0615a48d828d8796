//! The processes of a target.

use hashbrown::HashMap;

use super::{Process, ProcessId};

/// All processes, by identity. Those that a reading leaves out and that have no row are set aside: a
/// reading takes no time for them.
#[derive(Default)]
pub struct Processes {
    awake: HashMap<ProcessId, Box<Process>>,
    asleep: HashMap<ProcessId, Box<Process>>,
    /// Resident memory of those asleep, bytes.
    rss: u64,
    /// Number of those asleep that have memory.
    with_memory: usize,
    /// Numbers of those asleep, by real uid.
    users: HashMap<u32, usize>,
    /// Real uids of those asleep whose names are missing.
    undescribed: HashMap<ProcessId, u32>,
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
        (self.with_memory != 0).then_some(self.rss)
    }

    /// Whether names of one asleep are missing.
    pub(super) fn any_asleep_undescribed(&self) -> bool {
        !self.undescribed.is_empty()
    }

    /// Those asleep whose names are missing, with their real uids.
    pub(super) fn asleep_undescribed(&self) -> impl Iterator<Item = (ProcessId, u32)> {
        self.undescribed.iter().map(|(id, uid)| (*id, *uid))
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
        if let Some(memory) = process.gauges.memory {
            self.rss += memory.rss;
            self.with_memory += 1;
        }
        *self.users.entry(process.uid).or_default() += 1;
        if !process.described {
            self.undescribed.insert(id, process.uid);
        }
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
        if let Some(memory) = process.gauges.memory {
            self.rss -= memory.rss;
            self.with_memory -= 1;
        }
        self.undescribed.remove(&id);
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
        (self.rss, self.with_memory) = (0, 0);
        self.users.clear();
        self.undescribed.clear();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Memory;

    fn id(pid: u32) -> ProcessId {
        ProcessId {
            pid,
            start_boottime: 1,
        }
    }

    fn sums(processes: &Processes) -> (usize, Option<u64>, Vec<u32>, usize) {
        let mut users: Vec<u32> = processes.asleep_users().collect();
        users.sort_unstable();
        let undescribed = processes.asleep_undescribed().count();
        (
            processes.asleep(),
            processes.asleep_rss(),
            users,
            undescribed,
        )
    }

    #[test]
    fn those_asleep_are_counted_and_come_back_with_the_last_reading() {
        let mut processes = Processes::default();
        for pid in 1..=3 {
            let process = processes.entry(id(pid), 0);
            process.uid = pid % 2;
            process.described = pid != 3;
            process.interval_ns = 5;
            process.gauges.memory = (pid != 1).then(|| Memory {
                rss: u64::from(pid),
                ..Memory::default()
            });
        }
        assert_eq!(sums(&processes), (0, None, vec![], 0));
        processes.end_reading(1000);
        processes.leave_out(7);
        processes.end_reading(1400);
        for pid in 1..=4 {
            processes.set_aside(id(pid));
        }
        assert_eq!(sums(&processes), (3, Some(5), vec![0, 1], 1));
        assert_eq!((processes.len(), processes.awake().count()), (3, 0));
        assert_eq!(processes.interval_ns(id(2)), Some(400));
        let woken = processes.get_mut(id(2)).expect("known");
        assert_eq!((woken.seen_in, woken.read_at), (7, Some(1400)));
        assert_eq!(processes.interval_ns(id(2)), Some(5));
        assert_eq!(sums(&processes), (2, Some(3), vec![1], 1));
        processes.wake(id(3));
        assert_eq!(sums(&processes), (1, None, vec![1], 0));
        processes.wake_all();
        assert_eq!(sums(&processes), (0, None, vec![], 0));
        assert_eq!((processes.len(), processes.awake().count()), (3, 3));
        assert!(
            processes
                .get(id(3))
                .is_some_and(|process| process.seen_in == 7)
        );
    }
}
