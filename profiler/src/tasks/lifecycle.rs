//! Starts, programs and ends of processes without BPF: records of perf, joined with readings of
//! `/proc`.
//!
//! `/proc` has start times in clock ticks. A process whose fork was recorded is identified by the
//! time of that record, also in later readings of `/proc`.

use std::{collections::HashMap, io, os::fd::OwnedFd, path::Path, time::Duration};

use hashbrown::HashSet;
use profiler_ebpf::{
    event::{FORK, Fork},
    record::Permissions,
};
use rustix::io::Errno;

use super::{
    ProcessId,
    perf_records::{PerfRecords, Task, TaskRecord},
    procfs_process::comm,
};
use crate::{
    procfs::{process_list, process_stat::is_start, stat::tick_ns},
    support::clock::{Clock, monotonic_ns},
};

/// Attempts to follow all threads of a process while it creates threads.
const ATTEMPTS: usize = 5;

/// Longest time between a fork and its effect in `/proc`, or its record, ns.
const DELAY_MAX: u64 = 100_000_000;

/// Time after which the record of a thread that `/proc` lists has been written.
const RECORD_DELAY: Duration = Duration::from_millis(1);

/// A change that the next reading applies.
#[derive(Debug)]
pub(super) enum Change {
    /// A process was created.
    Start(Fork),
    /// A process runs another program.
    Exec(ProcessId, [u8; 16]),
    /// A process has ended, at this time in ns of `CLOCK_MONOTONIC`.
    End(ProcessId, u64),
}

/// The processes of a target.
pub(super) struct Lifecycle {
    /// `None` if perf may not be used: starts and ends are then known only from readings.
    records: Option<PerfRecords>,
    clock: Clock,
    tracked: HashMap<u32, Tracked>,
    changes: Vec<Change>,
    /// Threads whose creation was recorded while a process is being followed.
    new_threads: HashSet<u32>,
    /// Processes that could not be followed.
    unrecorded: u64,
}

/// A process of the target.
#[derive(Debug)]
struct Tracked {
    id: ProcessId,
    uid: u32,
    comm: [u8; 16],
    /// Time from which all its threads are recorded, ns of `CLOCK_BOOTTIME`; `None` if they are
    /// not.
    recorded_since: Option<u64>,
    /// End of the last thread that has ended, ns of `CLOCK_MONOTONIC`.
    exit: Option<u64>,
    /// End of the records of the main thread, ns of `CLOCK_MONOTONIC`.
    main_exit: Option<u64>,
}

/// A process in `/proc`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) pid: u32,
    pub(super) ppid: u32,
    /// Start in clock ticks.
    pub(super) start: u64,
    pub(super) uid: u32,
    pub(super) comm: [u8; 16],
}

impl Lifecycle {
    /// No processes yet.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            records: None,
            clock,
            tracked: HashMap::new(),
            changes: Vec::new(),
            new_threads: HashSet::new(),
            unrecorded: 0,
        }
    }

    /// Records forks, execs and ends of the processes that are followed from now on.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub(super) fn record(&mut self, cpus: &[u32]) -> io::Result<()> {
        self.records = Some(PerfRecords::open(cpus)?);
        Ok(())
    }

    /// Whether forks and ends are recorded.
    pub(super) fn is_recorded(&self) -> bool {
        self.records.is_some()
    }

    /// Whether all descendants of the followed processes are known without a list of `/proc`.
    pub(super) fn is_complete(&self) -> bool {
        self.is_recorded() && self.unrecorded == 0 && self.lost() == 0
    }

    /// Pids of the known processes.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.tracked.keys().copied()
    }

    /// A descriptor that is readable when records should be drained.
    pub(super) fn fd(&self) -> Option<io::Result<OwnedFd>> {
        self.records.as_ref().map(PerfRecords::fd)
    }

    /// Records that the kernel could not store.
    pub(super) fn lost(&self) -> u64 {
        self.records.as_ref().map_or(0, PerfRecords::lost)
    }

    /// Processes whose forks are not recorded, because the kernel refused the events.
    pub(super) fn unrecorded(&self) -> u64 {
        self.unrecorded
    }

    /// CPU time of all followed processes and their descendants, ns.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.records.as_ref()?.cpu_ns()
    }

    /// Takes the records out of the buffers.
    pub(super) fn drain(&mut self) {
        let Some(records) = &mut self.records else {
            return;
        };
        for (time, record) in records.drain() {
            self.apply(time, record);
        }
    }

    fn apply(&mut self, time: u64, record: TaskRecord) {
        match record {
            TaskRecord::Fork { task, parent } if task.pid == parent.pid => {
                self.new_threads.insert(task.tid);
            }
            TaskRecord::Fork { task, parent } => self.fork(time, task, parent),
            TaskRecord::Comm {
                task,
                name,
                is_exec,
            } => {
                if let Some(tracked) = self.tracked.get_mut(&task.pid)
                    && (is_exec || task.tid == task.pid)
                {
                    tracked.comm = comm(&name);
                    if is_exec {
                        // It ended the other threads; a thread that is not the main one has become it.
                        (tracked.exit, tracked.main_exit) = (None, None);
                        self.changes.push(Change::Exec(tracked.id, tracked.comm));
                    }
                }
            }
            TaskRecord::Exit { task } => {
                if let Some(tracked) = self.tracked.get_mut(&task.pid) {
                    tracked.exit = Some(time);
                    if task.tid == task.pid {
                        tracked.main_exit = Some(time);
                    }
                }
            }
        }
    }

    fn fork(&mut self, time: u64, task: Task, parent: Task) {
        let start_boottime = self.clock.boottime(time);
        let Some(creator) = self.tracked.get(&parent.pid) else {
            return;
        };
        let mut child = Tracked {
            id: ProcessId {
                pid: task.pid,
                start_boottime,
            },
            uid: creator.uid,
            comm: creator.comm,
            recorded_since: Some(start_boottime),
            exit: None,
            main_exit: None,
        };
        let fork = Fork {
            kind: FORK,
            pid: task.pid,
            ppid: parent.pid,
            uid: child.uid,
            permissions: Permissions::USUAL,
            start_boottime,
            parent_start_boottime: creator.id.start_boottime,
            comm: child.comm,
        };
        match self.tracked.get(&task.pid) {
            // It was listed in /proc before its record was written.
            Some(known)
                if known.exit.is_none()
                    && is_start(known.id.start_boottime / tick_ns(), start_boottime) =>
            {
                child.id = known.id;
            }
            Some(earlier) => {
                let at = earlier.exit.unwrap_or(time);
                self.changes.push(Change::End(earlier.id, at));
            }
            None => {}
        }
        self.changes.push(Change::Start(Fork {
            start_boottime: child.id.start_boottime,
            ..fork
        }));
        self.tracked.insert(task.pid, child);
    }

    /// Whether the process with this start in clock ticks is known.
    pub(super) fn is_tracked(&self, pid: u32, start: u64) -> bool {
        let tracked = self.tracked.get(&pid);
        tracked.is_some_and(|tracked| is_start(start, tracked.id.start_boottime))
    }

    /// Whether the fork of an unknown process can have been recorded.
    pub(super) fn may_have_record(&self, listed: &Listed) -> bool {
        // The time is that of a file, which can have any value.
        let started_before = listed.start.saturating_add(1).saturating_mul(tick_ns());
        let is_recorded = |parent: &Tracked| {
            let since = parent.recorded_since;
            since.is_some_and(|since| started_before >= since)
        };
        self.tracked.get(&listed.ppid).is_some_and(is_recorded)
    }

    /// Identity of a process that `/proc` lists, which becomes known.
    pub(super) fn identify(&mut self, listed: &Listed) -> ProcessId {
        if self.is_tracked(listed.pid, listed.start)
            && let Some(tracked) = self.tracked.get_mut(&listed.pid)
        {
            (tracked.uid, tracked.comm) = (listed.uid, listed.comm);
            return tracked.id;
        }
        let id = ProcessId {
            pid: listed.pid,
            start_boottime: listed.start.saturating_mul(tick_ns()),
        };
        let tracked = Tracked {
            id,
            uid: listed.uid,
            comm: listed.comm,
            recorded_since: None,
            exit: None,
            main_exit: None,
        };
        if let Some(earlier) = self.tracked.insert(listed.pid, tracked)
            && let Some(at) = earlier.exit
        {
            self.changes.push(Change::End(earlier.id, at));
        }
        id
    }

    /// Records the threads of a known process from now on, and all processes that they create.
    pub(super) fn follow(&mut self, procfs: &Path, pid: u32) {
        if self.records.is_none() {
            return;
        }
        let is_followed = self.follow_threads(procfs, pid);
        let now = self.clock.boottime(monotonic_ns());
        if let Some(tracked) = self.tracked.get_mut(&pid) {
            tracked.recorded_since = is_followed.then_some(now);
        }
        self.unrecorded += u64::from(!is_followed);
    }

    /// A thread that is created meanwhile is followed only if its creator was. Therefore the
    /// threads are listed again, until none is new except those with a record.
    fn follow_threads(&mut self, procfs: &Path, pid: u32) -> bool {
        let mut followed = HashSet::new();
        self.new_threads.clear();
        for attempt in 0..ATTEMPTS {
            let threads = || process_list::threads(procfs, pid);
            if attempt != 0 {
                if threads().all(|tid| followed.contains(&tid)) {
                    return !followed.is_empty();
                }
                std::thread::sleep(RECORD_DELAY);
                self.drain();
                followed.extend(self.new_threads.drain());
            }
            for tid in threads() {
                let Some(records) = &mut self.records else {
                    return false;
                };
                if !followed.insert(tid) {
                    continue;
                }
                match records.follow(tid) {
                    Err(error) if Errno::from_io_error(&error) != Some(Errno::SRCH) => {
                        return false;
                    }
                    _ => {}
                }
            }
        }
        true
    }

    /// Inherits the records of the parent, although the fork was not recorded.
    pub(super) fn inherit(&mut self, pid: u32) {
        if let Some(tracked) = self.tracked.get_mut(&pid) {
            tracked.recorded_since = Some(tracked.id.start_boottime);
        }
    }

    /// Whether the CPU time of a process is part of [`Self::cpu_ns`].
    pub(super) fn is_counted(&self, id: ProcessId) -> bool {
        let tracked = self.tracked.get(&id.pid);
        tracked.is_some_and(|tracked| tracked.recorded_since.is_some())
    }

    /// Notes that the main thread of a process was not ending at `now`, ns of `CLOCK_MONOTONIC`. If
    /// its end was recorded before, it has executed a program with the set-uid bit, which the kernel
    /// no longer records.
    pub(super) fn is_running(&mut self, pid: u32, now: u64) {
        if let Some(tracked) = self.tracked.get_mut(&pid)
            && tracked.main_exit.is_some_and(|exit| exit < now)
        {
            (tracked.exit, tracked.main_exit, tracked.recorded_since) = (None, None, None);
            self.unrecorded += 1;
        }
    }

    /// Ends the processes that a reading, begun at `began`, has not found `running`. Returns all
    /// changes since the previous reading.
    pub(super) fn end_missing(&mut self, began: u64, running: &HashSet<ProcessId>) -> Vec<Change> {
        let clock = self.clock;
        let delay = if self.is_recorded() { DELAY_MAX } else { 0 };
        let ended = self.tracked.extract_if(|_, tracked| {
            let started = clock.monotonic_of_boottime(tracked.id.start_boottime) + delay;
            (tracked.exit.is_some() || started < began) && !running.contains(&tracked.id)
        });
        let ends = ended.map(|(_, tracked)| Change::End(tracked.id, tracked.exit.unwrap_or(began)));
        self.changes.extend(ends);
        std::mem::take(&mut self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn task(pid: u32, tid: u32) -> Task {
        Task { pid, tid }
    }

    /// Processes of which one, with pid 10, started long ago and is recorded.
    fn lifecycle() -> Lifecycle {
        let mut lifecycle = Lifecycle::new(Clock::new());
        lifecycle.identify(&Listed {
            pid: 10,
            ppid: 1,
            start: 1,
            uid: 7,
            comm: comm(b"root"),
        });
        lifecycle.inherit(10);
        lifecycle
    }

    fn fork(lifecycle: &mut Lifecycle, time: u64, pid: u32) {
        let record = TaskRecord::Fork {
            task: task(pid, pid),
            parent: task(10, 10),
        };
        lifecycle.apply(time, record);
    }

    fn exit(lifecycle: &mut Lifecycle, time: u64, pid: u32, tid: u32) {
        let task = task(pid, tid);
        lifecycle.apply(time, TaskRecord::Exit { task });
    }

    fn id(lifecycle: &Lifecycle, pid: u32, time: u64) -> ProcessId {
        let start_boottime = lifecycle.clock.boottime(time);
        ProcessId {
            pid,
            start_boottime,
        }
    }

    /// Starts by pid and time, and ends.
    type Changes = (Vec<(u32, u64)>, Vec<(ProcessId, u64)>);

    /// Starts and ends of a reading that finds `running` and the process with pid 10.
    fn changes(lifecycle: &mut Lifecycle, began: u64, running: &[ProcessId]) -> Changes {
        let mut all: HashSet<ProcessId> = running.iter().copied().collect();
        all.insert(lifecycle.tracked[&10].id);
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for change in lifecycle.end_missing(began, &all) {
            match change {
                Change::Start(fork) => starts.push((fork.pid, fork.start_boottime)),
                Change::End(id, at) => ends.push((id, at)),
                Change::Exec(..) => {}
            }
        }
        (starts, ends)
    }

    #[test]
    fn processes_with_the_same_pid_are_different() {
        let mut lifecycle = lifecycle();
        let (first, second) = (100 * SECOND, 200 * SECOND);
        fork(&mut lifecycle, first, 11);
        exit(&mut lifecycle, first + 5, 11, 11);
        fork(&mut lifecycle, second, 11);
        let (old, new) = (id(&lifecycle, 11, first), id(&lifecycle, 11, second));
        let (starts, ends) = changes(&mut lifecycle, 201 * SECOND, &[new]);
        assert_eq!(starts, [(11, old.start_boottime), (11, new.start_boottime)]);
        assert_eq!(ends, [(old, first + 5)]);
        exit(&mut lifecycle, 202 * SECOND, 11, 11);
        let (starts, ends) = changes(&mut lifecycle, 203 * SECOND, &[]);
        assert_eq!((starts, ends), (vec![], vec![(new, 202 * SECOND)]));
    }

    #[test]
    fn process_listed_before_its_record_keeps_its_identity() {
        let mut lifecycle = lifecycle();
        let forked = 100 * SECOND + 3;
        let start = lifecycle.clock.boottime(forked) / tick_ns();
        let listed = Listed {
            pid: 11,
            ppid: 10,
            start,
            uid: 7,
            comm: comm(b"child"),
        };
        assert!(!lifecycle.is_tracked(11, start) && lifecycle.may_have_record(&listed));
        let known = lifecycle.identify(&listed);
        fork(&mut lifecycle, forked, 11);
        let (starts, ends) = changes(&mut lifecycle, 101 * SECOND, &[known]);
        assert_eq!(starts, [(11, known.start_boottime)]);
        assert_eq!(ends, []);
        // A child from before its parent was recorded has no record.
        let older = Listed { start: 0, ..listed };
        lifecycle
            .tracked
            .get_mut(&10)
            .expect("tracked")
            .recorded_since = Some(50 * SECOND);
        assert!(!lifecycle.may_have_record(&older));
    }

    #[test]
    fn process_ends_with_its_last_thread() {
        let mut lifecycle = lifecycle();
        let forked = 100 * SECOND;
        fork(&mut lifecycle, forked, 11);
        let running = id(&lifecycle, 11, forked);
        exit(&mut lifecycle, 101 * SECOND, 11, 11);
        let (_, ends) = changes(&mut lifecycle, 102 * SECOND, &[running]);
        assert_eq!(ends, []);
        exit(&mut lifecycle, 103 * SECOND, 11, 12);
        let (_, ends) = changes(&mut lifecycle, 104 * SECOND, &[]);
        assert_eq!(ends, [(running, 103 * SECOND)]);
    }

    #[test]
    fn set_uid_program_is_no_longer_recorded() {
        let mut lifecycle = lifecycle();
        let known = lifecycle.tracked[&10].id;
        assert!(lifecycle.is_counted(known));
        // Another thread; then an exec by a thread that is not the main one.
        exit(&mut lifecycle, 98 * SECOND, 10, 12);
        lifecycle.is_running(10, 99 * SECOND);
        exit(&mut lifecycle, 99 * SECOND, 10, 10);
        let exec = TaskRecord::Comm {
            task: task(10, 10),
            name: b"next".to_vec(),
            is_exec: true,
        };
        lifecycle.apply(99 * SECOND + 1, exec);
        lifecycle.is_running(10, 100 * SECOND);
        assert!(lifecycle.is_counted(known));
        exit(&mut lifecycle, 100 * SECOND, 10, 10);
        lifecycle.is_running(10, 101 * SECOND);
        assert!(!lifecycle.is_counted(known));
        assert_eq!(lifecycle.unrecorded(), 1);
    }

    #[test]
    fn forks_of_other_processes_are_ignored() {
        let mut lifecycle = lifecycle();
        let record = TaskRecord::Fork {
            task: task(21, 21),
            parent: task(20, 20),
        };
        lifecycle.apply(SECOND, record);
        exit(&mut lifecycle, 2 * SECOND, 21, 21);
        assert_eq!(changes(&mut lifecycle, 3 * SECOND, &[]), (vec![], vec![]));
    }
}
