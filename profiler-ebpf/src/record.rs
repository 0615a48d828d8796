//! Records that the iterator `sample` writes: one reading of all followed tasks.
//!
//! The first word of a record is its kind.

use crate::histogram::Histogram;

/// [`ThreadRecord`].
pub const THREAD: u32 = 1;
/// [`ProcessRecord`], before the first thread of the process.
pub const PROCESS: u32 = 2;
/// [`Header`] and the [`Histogram`] of run-queue waits of the thread before it, and its
/// [`PresentWait`].
pub const RUNQUEUE: u32 = 3;
/// [`Header`] and the [`Usage`] of the ended threads of the process before it.
pub const ENDED: u32 = 4;
/// [`Unchanged`].
pub const UNCHANGED: u32 = 5;

/// [`ProcessRecord::fds`] if the process has no table of file descriptors, or one that is too large
/// to count.
pub const FDS_UNKNOWN: u32 = u32::MAX;

counters! {
    /// Counters of a thread, or of all threads of a process.
    pub struct Totals {
        /// User time as sampled by the timer interrupt (`task_struct.utime`), ns.
        utime,
        /// System time as sampled by the timer interrupt (`task_struct.stime`), ns.
        stime,
        /// Exact time on CPU: `se.sum_exec_runtime` and the time in flight, ns.
        oncpu,
        /// Time in the run queue: `sched_info.run_delay` without sleep, and the time in flight, ns.
        run_delay,
        /// Times put on a CPU (`sched_info.pcount`).
        run_count,
        /// Time in interruptible sleep since the task is followed, ns.
        sleep,
        /// Time in uninterruptible sleep since the task is followed, ns.
        blocked,
        /// Voluntary context switches.
        nvcsw,
        /// Involuntary context switches.
        nivcsw,
        /// Wakeups since the task is followed.
        wakeups,
        /// Migrations to another CPU (`se.nr_migrations`).
        migrations,
        /// Minor page faults.
        min_flt,
        /// Major page faults.
        maj_flt,
        /// Bytes returned by read system calls.
        rchar,
        /// Bytes accepted by write system calls.
        wchar,
        /// Read system calls.
        syscr,
        /// Write system calls.
        syscw,
        /// Bytes read from storage.
        read_bytes,
        /// Bytes written to storage.
        write_bytes,
        /// Dirty bytes that were discarded before they were written.
        cancelled_write_bytes,
        /// Bytes sent on unix sockets since the task is followed.
        unix_tx_bytes,
        /// Bytes received on unix sockets since the task is followed.
        unix_rx_bytes,
        /// Send calls on unix sockets without error.
        unix_tx_calls,
        /// Receive calls on unix sockets without error.
        unix_rx_calls,
    }
}

/// States of a followed task.
pub mod state {
    /// Created, not yet woken.
    pub const NEW: u32 = 0;
    /// On a CPU.
    pub const RUNNING: u32 = 1;
    /// Runnable, waiting for a CPU.
    pub const QUEUED: u32 = 2;
    /// In interruptible sleep.
    pub const SLEEPING: u32 = 3;
    /// In uninterruptible sleep.
    pub const BLOCKED: u32 = 4;
    /// Ended; its counters are in the totals of its process.
    pub const ACCUMULATED: u32 = 5;
}

/// Kinds of [`PresentWait`].
pub mod wait {
    /// There is none.
    pub const NONE: u64 = 0;
    /// No reading has reported it yet.
    pub const NEW: u64 = 1;
    /// A reading has reported it.
    pub const REPORTED: u64 = 2;
}

shared! {
    /// Counters and run-queue waits of a thread, or of several.
    pub struct Usage {
        /// The counters.
        pub totals: Totals,
        /// Run-queue waits that have ended.
        pub runqueue: Histogram,
    }

    /// First words of the records that are copies of map entries.
    pub struct Header {
        /// [`RUNQUEUE`] or [`ENDED`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
    }

    /// The wait before the present time on CPU of a thread, which its histogram does not have yet.
    pub struct PresentWait {
        /// One of [`wait`].
        pub kind: u64,
        /// The wait, ns.
        pub ns: u64,
    }

    /// The single entry of the map `READING`: the last reading.
    #[derive(Default)]
    pub struct Reading {
        /// Its number.
        pub epoch: u64,
        /// Its time: with `config.wakeups` of `CLOCK_MONOTONIC`, without it of the run queues' clocks.
        pub now: u64,
        /// Time of the reading before it.
        pub previous: u64,
        /// Processes without a record: they have slept since an earlier reading that has their
        /// [`Unchanged`], and their resident memory is as it was then.
        pub idle: u64,
        /// Tasks that it has visited, followed or not.
        pub visited: u64,
        /// Tasks that waited for a CPU when it began; 0 if it visits all tasks.
        pub waiting: u64,
        /// Tasks among those visited that were in a run queue and not on a CPU.
        pub queued: u64,
    }

    /// A process with one thread, in the same state since before the last reading. Of its counters,
    /// only the time in that state has increased.
    #[derive(Default)]
    pub struct Unchanged {
        /// [`UNCHANGED`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// One of [`state`].
        pub state: u32,
        /// Whether it has memory of its own.
        pub has_mm: u32,
        /// Time since the last reading, ns.
        pub span: u64,
        /// As [`ProcessRecord::rss`], which can shrink without an action of the process.
        pub rss: [i64; 4],
    }

    /// A thread of the target, also an ended one that still exists.
    #[derive(Default)]
    pub struct ThreadRecord {
        /// [`THREAD`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Thread id in the profiler's pid namespace.
        pub tid: u32,
        /// Whether the thread has ended, so that its counters are in the totals of its process.
        pub accumulated: u32,
        /// CPU on which it ran last.
        pub cpu: u32,
        /// `task_struct.__state`.
        pub state: u32,
        /// `task_struct.exit_state`.
        pub exit_state: u32,
        /// 0.
        pub reserved: u32,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Start of the thread, ns of `CLOCK_BOOTTIME`.
        pub thread_start_boottime: u64,
        /// Counters of the thread.
        pub totals: Totals,
    }

    /// What decides whether the kernel hides a process from its user. The programs do not decide: each
    /// branch there doubles what the verifier has to check.
    #[derive(Default)]
    pub struct Permissions {
        /// 0 if real, effective and saved ids are equal.
        pub ids_differ: u32,
        /// Bits of `mm_struct.flags`: 1 if its user may read the memory. 0 without memory.
        pub dumpable: u32,
    }

    /// A live process, without the counters of its threads. Memory is in pages.
    #[derive(Default)]
    pub struct ProcessRecord {
        /// [`PROCESS`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Parent's process id in the profiler's pid namespace.
        pub ppid: u32,
        /// Real user id.
        pub uid: u32,
        /// Present permissions.
        pub permissions: Permissions,
        /// Number of threads (`signal_struct.nr_threads`).
        pub threads: u32,
        /// Open file descriptors, or [`FDS_UNKNOWN`].
        pub fds: u32,
        /// Whether it has memory of its own: no kernel thread, and not exiting.
        pub has_mm: u32,
        /// Whether `rss_per_cpu` was read.
        pub rss_exact: u32,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Resident pages in the kernel's order: file, anonymous, swap entries, shared memory.
        pub rss: [i64; 4],
        /// Pages that the CPUs have not yet added to `rss` (`percpu_counter`).
        pub rss_per_cpu: [i64; 4],
        /// Largest resident set that the kernel has noted (`mm_struct.hiwater_rss`).
        pub hiwater_rss: u64,
        /// Largest resident set before the last exec (`signal_struct.maxrss`).
        pub max_rss: u64,
        /// Address space.
        pub total_vm: u64,
        /// Private writable pages.
        pub data_vm: u64,
        /// Stack.
        pub stack_vm: u64,
        /// Start address of the program's text.
        pub start_code: u64,
        /// End address of the program's text.
        pub end_code: u64,
        /// Command name.
        pub comm: [u8; 16],
    }
}

impl Permissions {
    /// [`Permissions::dumpable`] of usual programs (`SUID_DUMP_USER`).
    pub const DUMPABLE_BY_USER: u32 = 1;

    /// Those of a usual program.
    pub const USUAL: Self = Self {
        ids_differ: 0,
        dumpable: Self::DUMPABLE_BY_USER,
    };

    /// Whether the kernel hides the process from its user, as ptrace(2) has it: it has other permissions
    /// than the user, or memory that is not dumpable (kernel/ptrace.c, `__ptrace_may_access`).
    pub fn hide_process(self, has_memory: bool) -> bool {
        self.ids_differ != 0 || (has_memory && self.dumpable != Self::DUMPABLE_BY_USER)
    }
}
