//! One process of the target: what is known of it, and how a reading's records change that.

use std::sync::Arc;

use hashbrown::HashMap;
use profiler_ebpf::wire::{self, ProcessRecord, Thread, Totals};

use super::{
    counters::{CpuTime, LatencySum},
    names::{self, Description},
    threads,
};
use crate::support::clock::Clock;

/// A process, also when its pid is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Thread group id in our pid namespace.
    pub pid: u32,
    /// Start, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
}

/// Memory of a process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident.
    pub rss: u64,
    /// Resident pages of files and shared memory.
    pub shared: u64,
    /// Swapped out (`VmSwap`).
    pub swap: u64,
    /// Address space.
    pub vms: u64,
    /// Text of the program.
    pub text: u64,
    /// Data and stack.
    pub data: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// When, ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// As wait(2) reports it; `None` when the end itself was not seen.
    pub status: Option<u32>,
}

/// A process of the target.
#[derive(Debug)]
pub struct Process {
    /// Who.
    pub id: ProcessId,
    /// Parent's pid.
    pub ppid: u32,
    /// Who that was; `None` for who was there before the run.
    pub parent: Option<ProcessId>,
    /// Command name of the thread that forked it, at that moment; `None` for who was there before the run.
    pub started_by: Option<Arc<str>>,
    /// Real user id.
    pub uid: u32,
    /// Names.
    pub description: Description,
    /// Counters since its birth.
    pub totals: Totals,
    /// User and system time since its birth.
    pub cpu_time: CpuTime,
    /// What was added to the counters in this run.
    pub in_run: Totals,
    /// What was added to user and system time in this run.
    pub cpu_time_in_run: CpuTime,
    /// Largest resident set seen, bytes.
    pub peak_rss: Option<u64>,
    /// When it was first followed, ns of `CLOCK_MONOTONIC`.
    pub followed_since: u64,
    /// Its end.
    pub end: Option<End>,
    /// Whether its I/O accounting could be read whenever it was asked for: of others' processes, /proc does not give
    /// it to everybody.
    pub io_read: bool,
    pub(super) born_here: bool,
    pub(super) described: bool,
    pub(super) changed: bool,
    pub(super) seen_in: u32,
    pub(super) read_at: Option<u64>,
    /// Length of the interval up to the last reading, with that of rows that are held.
    pub(super) interval_ns: u64,
    /// That of rows that are held.
    pub(super) held_ns: u64,
    pub(super) published: Option<Totals>,
    pub(super) runqueue: LatencySum,
    pub(super) rss_per_cpu: [i64; 4],
    pub(super) threads: threads::Histories,
    pub(super) now: Now,
    pub(super) gauges: Gauges,
}

/// What this tick's reading says of a process so far.
#[derive(Debug, Default)]
pub(super) struct Now {
    pub(super) totals: Totals,
    pub(super) runqueue: LatencySum,
    /// Has been in this state for the whole interval; its counters have not changed.
    pub(super) quiet: Option<u32>,
}

/// Values as last read.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    pub(super) memory: Option<Memory>,
    pub(super) threads: Option<u32>,
    pub(super) fds: Option<u32>,
    pub(super) cpu: Option<u32>,
    pub(super) state: &'static str,
}

/// The entry of a process, a new one if there is none.
pub(super) fn entry(
    processes: &mut HashMap<ProcessId, Process>,
    id: ProcessId,
    now: u64,
) -> &mut Process {
    processes.entry(id).or_insert_with(|| Process {
        id,
        ppid: 0,
        parent: None,
        started_by: None,
        uid: 0,
        description: Description::default(),
        totals: Totals::default(),
        cpu_time: CpuTime::default(),
        in_run: Totals::default(),
        cpu_time_in_run: CpuTime::default(),
        peak_rss: None,
        followed_since: now,
        end: None,
        io_read: true,
        born_here: false,
        described: false,
        changed: true,
        seen_in: 0,
        read_at: None,
        interval_ns: 0,
        held_ns: 0,
        published: None,
        runqueue: LatencySum::default(),
        rss_per_cpu: [0; 4],
        threads: threads::Histories::default(),
        now: Now::default(),
        gauges: Gauges::default(),
    })
}

/// Takes over a birth: the child has its parent's names.
pub(super) fn on_fork(
    processes: &mut HashMap<ProcessId, Process>,
    clock: &Clock,
    birth: &wire::Birth,
) {
    let parent = ProcessId {
        pid: birth.ppid,
        start_boottime: birth.parent_start_boottime,
    };
    let inherited = processes
        .get(&parent)
        .map(|parent| (parent.described, parent.description.clone()));
    let id = ProcessId {
        pid: birth.pid,
        start_boottime: birth.start_boottime,
    };
    let process = entry(
        processes,
        id,
        clock.monotonic_of_boottime(birth.start_boottime),
    );
    process.born_here = true;
    process.ppid = birth.ppid;
    process.parent = Some(parent);
    process.uid = birth.uid;
    if let Some((true, description)) = inherited {
        process.description = description;
        process.described = true;
    }
    // The child of a fork has the name of the thread that forked.
    let comm = names::text(&birth.comm);
    process.started_by = Some(comm.clone());
    process.description.comm = comm;
}

impl Process {
    pub(super) fn observe(&mut self, record: &ProcessRecord, page: u64) {
        // An orphan's new parent says less than the one it was born to.
        if self.ppid == 0 {
            self.ppid = record.ppid;
        }
        self.uid = record.uid;
        self.description.comm_is(&record.comm);
        self.gauges = Gauges {
            threads: (record.threads != 0).then_some(record.threads),
            fds: (record.fds != wire::FDS_UNKNOWN).then_some(record.fds),
            ..Gauges::default()
        };
        if record.rss_exact != 0 {
            self.rss_per_cpu = record.rss_per_cpu;
        }
        if record.has_mm == 0 {
            return;
        }
        // A process that exits at this moment can give any values.
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
        self.observe_rss(&record.rss, page);
        let peak = record.hiwater_rss.max(record.max_rss).saturating_mul(page);
        self.peak_rss = self.peak_rss.max(Some(peak));
    }

    pub(super) fn observe_rss(&mut self, rss: &[i64; 4], page: u64) {
        let Some(memory) = &mut self.gauges.memory else {
            return;
        };
        let pages =
            |index: usize| u64::try_from(rss[index] + self.rss_per_cpu[index]).unwrap_or(0) * page;
        let [file, anonymous, swap, shared] = [0, 1, 2, 3].map(pages);
        memory.rss = file.saturating_add(anonymous).saturating_add(shared);
        memory.shared = file.saturating_add(shared);
        memory.swap = swap;
        self.peak_rss = self.peak_rss.max(Some(memory.rss));
    }

    pub(super) fn observe_thread(&mut self, record: &Thread) {
        if record.tid == record.pid || self.gauges.cpu.is_none() {
            self.gauges.cpu = Some(record.cpu);
            self.gauges.state = state_letter(record.state, record.exit_state);
        }
    }

    pub(super) fn finish(&mut self, end: &wire::Process, page: u64, epoch: u32) {
        self.uid = end.uid;
        self.description.comm_is(&end.comm);
        self.end = Some(End {
            at: end.end,
            status: Some(end.exit_code),
        });
        self.now.totals = end.ended;
        self.now.runqueue = LatencySum::default();
        self.now.runqueue.add_ended(&end.ended_runqueue, epoch);
        self.changed = true;
        if end.max_rss != 0 {
            self.peak_rss = self.peak_rss.max(Some(end.max_rss * page));
        }
    }
}

/// State letter as in /proc/PID/stat (fs/proc/array.c, `get_task_state`).
pub(super) fn state_letter(state: u32, exit_state: u32) -> &'static str {
    const TASK_IDLE: u32 = 0x402;
    const TASK_REPORT: u32 = 0x7f;
    if state & TASK_IDLE == TASK_IDLE {
        return "I";
    }
    match u32::BITS - ((state | exit_state) & TASK_REPORT).leading_zeros() {
        0 => "R",
        1 => "S",
        2 => "D",
        3 => "T",
        4 => "t",
        5 => "X",
        6 => "Z",
        _ => "P",
    }
}
