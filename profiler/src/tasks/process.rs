//! A process of the target, and how the records of a reading change it.

use std::sync::Arc;

use profiler_ebpf::{
    event::{Fork, ProcessEntry},
    record::{self, ProcessRecord, ThreadRecord, Totals, Unchanged, state},
};

use super::{
    access::Access,
    counters::{CpuTime, Latency, LatencySum},
    gauges::{Gauges, Memory, state_letter},
    identity::{self, Description},
    process_id::ProcessId,
    processes::Processes,
    threads::{ThreadGroup, Threads},
};
use crate::support::clock::Clock;

/// End of a process.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Status as reported by wait(2); `None` if the exit event is missing.
    pub status: Option<u32>,
}

/// A process of the target.
#[derive(Debug)]
pub struct Process {
    /// Identity.
    pub id: ProcessId,
    /// Pid of the parent at the fork; for processes from before the run, of the present parent.
    pub ppid: u32,
    /// The parent at the fork; `None` for processes from before the run.
    pub parent: Option<ProcessId>,
    /// Command name of the forking thread; `None` for processes from before the run.
    pub started_by: Option<Arc<str>>,
    /// Real uid.
    pub uid: u32,
    /// Whether the kernel hides it from its user, as of the last event or reading.
    pub is_private: bool,
    /// How much of it is shown.
    pub access: Access,
    /// Names and batch job.
    pub description: Description,
    /// Counters since the start of the process.
    pub totals: Totals,
    /// User and system time since the start of the process.
    pub cpu_time: CpuTime,
    /// Increases of the counters in this run.
    pub in_run: Totals,
    /// Increases of user and system time in this run.
    pub cpu_time_in_run: CpuTime,
    /// Largest resident set in this run, bytes; without the memory of the parent that it had before
    /// its first exec.
    pub peak_rss: Option<u64>,
    /// Time from which it was followed, ns of `CLOCK_MONOTONIC`.
    pub followed_since: u64,
    /// End; `None` while it lives.
    pub end: Option<End>,
    /// Whether its I/O accounting could be read in all readings. In `/proc`, that of other users'
    /// processes needs privileges.
    pub io_read: bool,
    /// Whether its counters have been read. Those of a process that starts and ends between two
    /// readings of `/proc` are unknown.
    pub counted: bool,
    /// Largest resident set before it was first read, bytes.
    pub(super) peak_before_run: u64,
    /// The kernel's largest resident set up to the first exec, which has the memory of the parent,
    /// pages.
    pub(super) peak_before_exec: Option<u64>,
    pub(super) started_in_run: bool,
    /// Whether all names are known, or will remain unknown.
    pub(super) described: bool,
    pub(super) changed: bool,
    /// Whether the tree of processes has it.
    pub(super) in_tree: bool,
    /// Epoch of the last reading that had it; 0 if none.
    pub(super) seen_in: u32,
    /// Until when its counters are known, ns of `CLOCK_MONOTONIC`.
    pub(super) read_at: Option<u64>,
    /// Until when its rows reach.
    pub(super) row_at: Option<u64>,
    /// While readings leave it out because it is asleep: until when its sleep is counted, on the
    /// clock of the readings.
    pub(super) idle_since: Option<u64>,
    /// Status of a zombie in `/proc`.
    pub(super) exit_status: Option<u32>,
    /// Interval up to the last reading, including that of deferred rows, ns.
    pub(super) interval_ns: u64,
    /// Interval of deferred rows, ns.
    pub(super) deferred_ns: u64,
    /// Counters as of the last row.
    pub(super) published: Option<Totals>,
    /// Run-queue histogram as of the last row.
    pub(super) runqueue: LatencySum,
    pub(super) rss_per_cpu: [i64; 4],
    pub(super) threads: Threads,
    pub(super) current: CurrentReading,
    /// State of a process that was in it since the last reading, and that time, ns; its counters
    /// have not changed, and `current` has none.
    pub(super) unchanged: Option<(u32, u64)>,
    pub(super) gauges: Gauges,
}

/// Values of the current reading so far.
#[derive(Debug, Default)]
pub(super) struct CurrentReading {
    pub(super) totals: Totals,
    pub(super) runqueue: LatencySum,
}

/// Adds the child of a fork, which inherits the names of its parent.
pub(super) fn on_fork(processes: &mut Processes, clock: &Clock, fork: &Fork) {
    let parent = ProcessId {
        pid: fork.ppid,
        start_boottime: fork.parent_start_boottime,
    };
    let inherited = processes
        .get(parent)
        .map(|parent| (parent.described, parent.description.clone()));
    let started = clock.monotonic_of_boottime(fork.start_boottime);
    let process = processes.entry(fork.into(), started);
    process.started_in_run = true;
    process.ppid = fork.ppid;
    process.parent = Some(parent);
    process.uid = fork.uid;
    process.is_private = fork.permissions.hide_process(true);
    if let Some((true, description)) = inherited {
        process.description = description;
        process.described = true;
    }
    // The child has the command name of the forking thread.
    let comm = identity::text(&fork.comm);
    process.started_by = Some(comm.clone());
    process.description.comm = comm;
}

impl CurrentReading {
    /// No values.
    pub(super) fn clear(&mut self) {
        self.totals = Totals::default();
        self.runqueue.clear();
    }
}

impl Process {
    /// A process of which nothing is known, followed since `now`.
    pub(super) fn new(id: ProcessId, now: u64) -> Self {
        Self {
            id,
            ppid: 0,
            parent: None,
            started_by: None,
            uid: 0,
            is_private: false,
            access: Access::default(),
            description: Description::default(),
            totals: Totals::default(),
            cpu_time: CpuTime::default(),
            in_run: Totals::default(),
            cpu_time_in_run: CpuTime::default(),
            peak_rss: None,
            followed_since: now,
            end: None,
            io_read: true,
            counted: false,
            peak_before_run: 0,
            peak_before_exec: None,
            started_in_run: false,
            described: false,
            changed: true,
            in_tree: false,
            seen_in: 0,
            read_at: None,
            row_at: None,
            idle_since: None,
            exit_status: None,
            interval_ns: 0,
            deferred_ns: 0,
            published: None,
            runqueue: LatencySum::default(),
            rss_per_cpu: [0; 4],
            threads: Threads::default(),
            current: CurrentReading::default(),
            unchanged: None,
            gauges: Gauges::default(),
        }
    }

    /// Raises the counters to those of the reading, and returns the increases: counters, user and
    /// system time, run-queue waits.
    pub(super) fn advance(&mut self) -> (Totals, CpuTime, Option<Latency>) {
        let published = self.published.get_or_insert_with(|| {
            if self.started_in_run {
                Totals::default()
            } else {
                self.current.totals
            }
        });
        let increase = published.advance(&self.current.totals);
        self.totals = *published;
        let cpu_time = self.cpu_time.advance(&self.totals);
        let runqueue = self.runqueue.advance(&self.current.runqueue);
        (increase, cpu_time, runqueue)
    }

    /// Adds the time in which the process remained in a state; returns the increases.
    pub(super) fn remain(&mut self, state: u32, ns: u64) -> Totals {
        let mut increase = Totals::default();
        for totals in [&mut increase, &mut self.totals] {
            *match state {
                state::QUEUED => &mut totals.run_delay,
                state::BLOCKED => &mut totals.blocked,
                _ => &mut totals.sleep,
            } += ns;
        }
        self.published = Some(self.totals);
        increase
    }

    /// Whether it has run since it is followed.
    pub(super) fn has_run(&self) -> bool {
        self.in_run.oncpu != 0
    }

    pub(super) fn thread_group(&self) -> ThreadGroup {
        ThreadGroup {
            id: self.id,
            started_in_run: self.started_in_run,
            is_baseline: !self.started_in_run && self.published.is_none(),
            io_read: self.io_read,
        }
    }

    pub(super) fn apply_record(&mut self, record: &ProcessRecord, page: u64) {
        self.idle_since = None;
        let is_first = !std::mem::replace(&mut self.counted, true);
        // The parent at the fork is kept when the process gets another parent.
        if self.ppid == 0 {
            self.ppid = record.ppid;
        }
        self.uid = record.uid;
        self.is_private = record.permissions.hide_process(record.has_mm != 0);
        self.description.set_comm(&record.comm);
        self.gauges = Gauges {
            threads: (record.threads != 0).then_some(record.threads),
            fds: (record.fds != record::FDS_UNKNOWN).then_some(record.fds),
            ..Gauges::default()
        };
        if record.rss_exact != 0 {
            self.rss_per_cpu = record.rss_per_cpu;
        }
        if record.has_mm == 0 {
            return;
        }
        // The values of an exiting process can be inconsistent.
        let text = record.end_code.checked_next_multiple_of(page).unwrap_or(0);
        let text = text.saturating_sub(record.start_code / page * page);
        self.gauges.memory = Some(Memory {
            vms: record.total_vm.saturating_mul(page),
            text,
            data: record
                .data_vm
                .saturating_add(record.stack_vm)
                .saturating_mul(page),
            ..Memory::default()
        });
        self.apply_rss(&record.rss, page);
        let noted = record.hiwater_rss.saturating_mul(page);
        if is_first && !self.started_in_run {
            self.peak_before_run = noted.max(self.peak_rss.unwrap_or(0));
        }
        self.raise_peak(noted);
        self.apply_max_rss(record.max_rss, page);
    }

    /// Applies the kernel's largest resident set, which has the memory before execs.
    fn apply_max_rss(&mut self, max_rss: u64, page: u64) {
        if max_rss != 0 && max_rss > *self.peak_before_exec.get_or_insert(max_rss) {
            self.raise_peak(max_rss.saturating_mul(page));
        }
    }

    /// Applies a largest resident set since the start of the process or its last exec, bytes.
    fn raise_peak(&mut self, bytes: u64) {
        if bytes > self.peak_before_run {
            self.peak_rss = self.peak_rss.max(Some(bytes));
        }
    }

    /// What was resident before the first exec is the memory of the parent.
    pub(super) fn on_exec(&mut self, max_rss: u64, page: u64) {
        if self.peak_before_exec.is_none() {
            (self.peak_rss, self.peak_before_run) = (None, 0);
            self.peak_before_exec = Some(max_rss);
        }
        self.apply_max_rss(max_rss, page);
    }

    pub(super) fn apply_rss(&mut self, rss: &[i64; 4], page: u64) {
        let Some(memory) = &mut self.gauges.memory else {
            return;
        };
        let bytes =
            |index: usize| u64::try_from(rss[index] + self.rss_per_cpu[index]).unwrap_or(0) * page;
        let [file, anonymous, swap, shared] = [0, 1, 2, 3].map(bytes);
        memory.rss = file.saturating_add(anonymous).saturating_add(shared);
        memory.shared = file.saturating_add(shared);
        memory.swap = swap;
        self.peak_rss = self.peak_rss.max(Some(memory.rss));
    }

    /// Applies the record of a process that has remained in its state until `clock`.
    pub(super) fn apply_unchanged(&mut self, record: &Unchanged, clock: u64, page: u64) {
        let ns = self.idle_ns(clock).unwrap_or(record.span);
        self.unchanged = Some((record.state, ns));
        self.idle_since = (record.state == state::SLEEPING).then_some(clock);
        if record.has_mm != 0 {
            self.apply_rss(&record.rss, page);
        }
    }

    /// Time asleep that is not counted yet, ns; `None` if readings do not leave it out.
    pub(super) fn idle_ns(&self, clock: u64) -> Option<u64> {
        Some(clock.saturating_sub(self.idle_since?))
    }

    /// Whether the present reading has left it out.
    pub(super) fn is_left_out(&self) -> bool {
        self.idle_since.is_some() && self.unchanged.is_none()
    }

    /// Applies CPU and state of a thread. Those of the main thread have precedence.
    pub(super) fn apply_thread(&mut self, record: &ThreadRecord) {
        if record.tid == record.pid || self.gauges.cpu.is_none() {
            self.gauges.cpu = Some(record.cpu);
            self.gauges.state = state_letter(record.state, record.exit_state);
        }
    }

    pub(super) fn on_exit(&mut self, exit: &ProcessEntry, page: u64, epoch: u32) {
        self.counted = true;
        self.uid = exit.uid;
        self.is_private |= exit.permissions.hide_process(false);
        self.description.set_comm(&exit.comm);
        self.end = Some(End {
            at: exit.end,
            status: Some(exit.exit_code),
        });
        self.current.totals = exit.ended.totals;
        self.current.runqueue.clear();
        self.current.runqueue.add_ended(&exit.ended.runqueue, epoch);
        self.changed = true;
        self.idle_since = None;
        self.raise_peak(exit.peak_rss.saturating_mul(page));
        if self.peak_before_exec.is_some() {
            self.apply_max_rss(exit.max_rss, page);
        } else if exit.peak_rss == 0 {
            self.raise_peak(exit.max_rss.saturating_mul(page));
        }
    }
}
