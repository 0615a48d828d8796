//! Task storage: the state that the programs keep of each followed task.

use core::ptr::{null, null_mut, read_volatile, write_volatile};

use aya_ebpf::helpers::generated::{bpf_task_storage_delete, bpf_task_storage_get};

use super::{kernel::Task, writeback::LastDirtied};
use crate::{histogram::Histogram, per_key::Owner, record::Totals};

/// `BPF_MAP_TYPE_TASK_STORAGE`, for which aya has no type: a value that belongs to a task, and is
/// freed with it.
#[repr(C)]
pub struct TaskStorage<T> {
    r#type: *const [i32; 29],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; 1],
}

// SAFETY: a description for the loader; nothing is stored in it.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    /// The description.
    pub const fn new() -> Self {
        Self {
            r#type: null(),
            key: null(),
            value: null(),
            max_entries: null(),
            map_flags: null(),
        }
    }

    /// The value of `task`, if it has one.
    #[inline(always)]
    pub fn get(&'static self, task: Task) -> Option<&'static mut T> {
        self.get_or_insert(task, null_mut(), 0)
    }

    /// The value of `task`, which becomes `value` if it has none; `None` without memory.
    #[inline(always)]
    pub fn insert(&'static self, task: Task, value: &mut T) -> Option<&'static mut T> {
        self.get_or_insert(task, value, 1)
    }

    /// The value of `task`, which becomes zero if it has none; `None` without memory.
    #[inline(always)]
    pub fn insert_zeroed(&'static self, task: Task) -> Option<&'static mut T> {
        self.get_or_insert(task, null_mut(), 1)
    }

    #[inline(always)]
    fn get_or_insert(
        &'static self,
        task: Task,
        value: *mut T,
        flags: u64,
    ) -> Option<&'static mut T> {
        let map: *const Self = self;
        // SAFETY: the verifier knows the type of the task. The storage lives as long as the task,
        // and tracepoints of one task do not run at the same time.
        unsafe {
            bpf_task_storage_get(
                map.cast_mut().cast(),
                task.0.0.cast_mut().cast(),
                value.cast(),
                flags,
            )
            .cast::<T>()
            .as_mut()
        }
    }

    /// Removes the value of `task`.
    #[inline(always)]
    pub fn delete(&'static self, task: Task) {
        let map: *const Self = self;
        // SAFETY: the verifier knows the type of the task. The only error is that there is no
        // value.
        unsafe {
            bpf_task_storage_delete(map.cast_mut().cast(), task.0.0.cast_mut().cast());
        }
    }
}

/// A followed task: values that the kernel does not maintain.
#[repr(C)]
pub struct TaskState {
    /// One of [`state`](crate::record::state).
    pub state: u32,
    /// The [`FoundBy`](super::target::FoundBy) that created this entry.
    pub found_by: u32,
    /// Time at which the task entered `state`: with `config.wakeups` of `CLOCK_MONOTONIC`, without
    /// it of the run queue's clock.
    pub since: u64,
    /// `sched_info.run_delay` at that time.
    pub run_delay: u64,
    /// Whether the scheduler accounts the present sleep as a wait.
    pub asleep_in_queue: u32,
    /// Reading before which it was last listed in [`ACTIVE`](crate::maps::ACTIVE).
    pub listed_epoch: u32,
    /// Completed sleep that the scheduler has accounted as waits, ns.
    pub false_waits: u64,
    /// `sched_info.last_arrival` of the last wait that a reading has reported before it was in
    /// `runqueue`.
    pub reported: u64,
    /// With `config.wakeups`: clock of the CPU's run queue when the task was last put on that CPU.
    pub runqueue_clock: u64,
    /// Completed time in interruptible sleep, ns.
    pub sleep: u64,
    /// Completed time in uninterruptible sleep, ns.
    pub blocked: u64,
    /// Wakeups.
    pub wakeups: u64,
    /// Bytes sent on unix sockets.
    pub unix_tx_bytes: u64,
    /// Bytes received on unix sockets.
    pub unix_rx_bytes: u64,
    /// Send calls on unix sockets without error.
    pub unix_tx_calls: u64,
    /// Receive calls on unix sockets without error.
    pub unix_rx_calls: u64,
    /// Its process and thread.
    pub owner: Owner,
    /// Operations in flight.
    pub in_flight: InFlight,
    /// The file of which it last dirtied a page.
    pub dirtied: LastDirtied,
    /// `since` as of its last record; 0 if it has none.
    pub recorded: u64,
    /// Number of the last reading that has visited it.
    pub visited_epoch: u64,
    /// Whether readings can leave it out.
    pub idle: Idle,
    /// Run-queue waits.
    pub runqueue: Histogram,
}

/// What the last record of a sleeping task said. Only the iterator writes it.
#[repr(C)]
pub struct Idle {
    /// Whether its [`Unchanged`](crate::record::Unchanged) has been written, and it has not run since.
    pub is_reported: u64,
    /// Resident memory, as in that record.
    resident: [i64; 4],
}

impl Idle {
    /// The task has been reported with this memory.
    #[inline(always)]
    pub fn new(resident: [i64; 4]) -> Self {
        Self {
            is_reported: 1,
            resident,
        }
    }

    /// Whether it has been reported with this memory.
    #[inline(always)]
    pub fn has(&self, resident: [i64; 4]) -> bool {
        self.is_reported != 0
            && self.resident[0] == resident[0]
            && self.resident[1] == resident[1]
            && self.resident[2] == resident[2]
            && self.resident[3] == resident[3]
    }
}

impl TaskState {
    /// Sets the counters that the kernel does not maintain, without the time in flight, and takes
    /// sleep out of `run_delay`.
    #[inline(always)]
    pub fn totals(&self, to: &mut Totals) {
        to.run_delay = self.run_delay_without_sleep(to.run_delay);
        to.sleep = self.sleep;
        to.blocked = self.blocked;
        to.wakeups = self.wakeups;
        to.unix_tx_bytes = self.unix_tx_bytes;
        to.unix_rx_bytes = self.unix_rx_bytes;
        to.unix_tx_calls = self.unix_tx_calls;
        to.unix_rx_calls = self.unix_rx_calls;
    }

    /// The waits among `run_delay`, which is the task's `sched_info.run_delay`.
    #[inline(always)]
    fn run_delay_without_sleep(&self, run_delay: u64) -> u64 {
        // SAFETY: fields of the entry; volatile, because the task writes them in the opposite order.
        // A reading at that moment can be too small, but never too large.
        unsafe {
            let is_wait = read_volatile(&raw const self.asleep_in_queue);
            let before = read_volatile(&raw const self.run_delay);
            let run_delay = if is_wait == 0 { run_delay } else { before };
            run_delay.saturating_sub(read_volatile(&raw const self.false_waits))
        }
    }

    /// The scheduler accounts a wait from now on, although the task sleeps. It has this
    /// `sched_info.run_delay`.
    #[inline(always)]
    pub fn begin_false_wait(&mut self, run_delay: u64) {
        // SAFETY: fields of the entry.
        unsafe {
            write_volatile(&raw mut self.run_delay, run_delay);
            write_volatile(&raw mut self.asleep_in_queue, 1);
        }
    }

    /// The task leaves its CPU with this `sched_info.run_delay`. Returns its wait before.
    #[inline(always)]
    pub fn end_wait(&mut self, run_delay: u64) -> u64 {
        let waited = run_delay.saturating_sub(self.run_delay);
        let is_false = self.asleep_in_queue != 0;
        // SAFETY: fields of the entry.
        unsafe {
            if is_false {
                write_volatile(&raw mut self.false_waits, self.false_waits + waited);
            }
            write_volatile(&raw mut self.run_delay, run_delay);
            if is_false {
                write_volatile(&raw mut self.asleep_in_queue, 0);
            }
        }
        if is_false { 0 } else { waited }
    }
}

/// Operations in flight of a task. Only programs that run in the task write it, so nothing is
/// atomic.
#[repr(C)]
pub struct InFlight {
    /// Start of a read, write or copy of files; 0 if there is none.
    pub rw_since: u64,
    /// Start of a sync; 0 if there is none.
    pub sync_since: u64,
    /// The `struct file` of that sync.
    pub sync_file: u64,
    /// Mount of an operation on a path, [`InFlight::UNKNOWN_MOUNT`] until it is found; 0 if there
    /// is none.
    pub path_mount: u64,
    /// Start of a system call; 0 if there is none.
    pub call_since: u64,
    /// [`call::dimension`](crate::per_key::call::dimension) of that call.
    pub call: u64,
    /// Kind of file operation that the call performs; 0 if there is none.
    pub call_op: u64,
    /// Mount of the file that the call reads or syncs; 0 if it is no file.
    pub call_from: u64,
    /// Mount of the file that the call writes; 0 if it is no file.
    pub call_to: u64,
    /// Class and port of a datagram that is being sent (see [`net::udp`](super::net)); 0 if
    /// unknown.
    pub datagram_to: u64,
    /// Class and port of a datagram that was received; 0 if unknown.
    pub datagram_from: u64,
}

impl InFlight {
    /// [`InFlight::path_mount`] of an operation that has not reached the mount yet.
    pub const UNKNOWN_MOUNT: u64 = u64::MAX;
}
