//! Events that the programs send through the ring buffer.
//!
//! The first word of an event is its kind.

use crate::record::{Permissions, Usage};

/// [`ProcessEntry`]: the last thread of a process of the target has ended.
pub const EXIT: u32 = 1;
/// [`Fork`]: a process of the target was created.
pub const FORK: u32 = 2;
/// [`Exec`]: a process of the target runs another program.
pub const EXEC: u32 = 3;
/// [`Fork`]: a process outside the target was created, while the target is being found.
pub const OUT_OF_SCOPE_FORK: u32 = 4;
/// [`ThreadEnd`]: a thread has ended (with `--threads`).
pub const THREAD_END: u32 = 5;
/// One word: a task was moved between cgroups.
pub const CGROUP_MOVE: u32 = 6;
/// [`Environment`]: the batch job, step and rank of a program, after its [`Exec`].
pub const ENVIRONMENT: u32 = 7;

/// Longest path of an executable that is sent, in bytes with its NUL.
pub const PATH_MAX: usize = 256;

/// Variables of an environment that name batch jobs, their steps and ranks. No others are read,
/// because environments contain secrets.
pub const VARIABLES: [&str; 12] = [
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "PBS_JOBID",
    "OAR_JOB_ID",
    "FLUX_JOB_ID",
    "FLUX_TASK_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
];

/// Longest `NAME=value` of such a variable that is sent, in bytes with its NUL.
pub const VARIABLE_MAX: usize = 128;

shared! {
    /// A followed process: entry of the map `PROCESSES`, and the event [`EXIT`] when it has ended.
    pub struct ProcessEntry {
        /// [`EXIT`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Start of the process (`task_struct.start_boottime` of the leader), ns of
        /// `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Time at which the last thread left the CPU for the last time.
        pub end: u64,
        /// Largest resident set (`signal_struct.maxrss`), pages. It includes the memory of the parent
        /// that the process had before its first exec.
        pub max_rss: u64,
        /// Largest resident set since the last exec, pages; 0 if it is unknown.
        pub peak_rss: u64,
        /// Followed threads that have not ended.
        pub tasks: u64,
        /// Exit status as in wait(2): code << 8 | signal.
        pub exit_code: u32,
        /// Real user id at the end.
        pub uid: u32,
        /// Permissions at the end.
        pub permissions: Permissions,
        /// Reading in which the process was last reported.
        pub reported_epoch: u32,
        /// Thread with which it was last reported.
        pub reported_tid: u32,
        /// Reading before which it was last listed in `ACTIVE`.
        pub listed_epoch: u32,
        /// Unused.
        pub padding: u32,
        /// Command name at the end.
        pub comm: [u8; 16],
        /// Usage of the threads that have ended.
        pub ended: Usage,
    }

    /// The creation of a process.
    pub struct Fork {
        /// [`FORK`] or [`OUT_OF_SCOPE_FORK`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Parent's process id in the profiler's pid namespace.
        pub ppid: u32,
        /// Real user id.
        pub uid: u32,
        /// Present permissions.
        pub permissions: Permissions,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Start of the parent process, ns of `CLOCK_BOOTTIME`.
        pub parent_start_boottime: u64,
        /// Command name, inherited from the parent.
        pub comm: [u8; 16],
    }

    /// An exec. `args_len` bytes of the command line follow this struct.
    pub struct Exec {
        /// [`EXEC`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Real user id after the exec.
        pub uid: u32,
        /// Permissions after the exec.
        pub permissions: Permissions,
        /// Bytes of the command line that are sent.
        pub args_len: u32,
        /// Bytes of the whole command line.
        pub args_total: u64,
        /// Largest resident set before the exec (`signal_struct.maxrss`), pages.
        pub max_rss: u64,
        /// Command name.
        pub comm: [u8; 16],
        /// Path of the binary, for a script that of its interpreter, as passed to execve(2); ends
        /// with a NUL.
        pub path: [u8; PATH_MAX],
    }

    /// Variables of the environment with which a process runs a program. Only the first `count`
    /// elements are sent.
    pub struct Environment {
        /// [`ENVIRONMENT`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Number of variables.
        pub count: u32,
        /// Whether the environment is longer than the part that was searched.
        pub truncated: u32,
        /// `NAME=value`, each ended by a NUL.
        pub variables: [[u8; VARIABLE_MAX]; VARIABLES.len()],
    }

    /// The end of a thread.
    pub struct ThreadEnd {
        /// [`THREAD_END`].
        pub kind: u32,
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Thread id in the profiler's pid namespace.
        pub tid: u32,
        /// Padding, 0.
        pub reserved: u32,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Start of the thread, ns of `CLOCK_BOOTTIME`.
        pub thread_start_boottime: u64,
        /// Usage of the thread.
        pub usage: Usage,
    }
}

impl Environment {
    /// Length of an event without variables, bytes.
    pub const HEADER: usize = core::mem::offset_of!(Self, variables);
}
