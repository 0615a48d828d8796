//! Structs that cross the border between kernel and controller.
//!
//! All are `repr(C)` without padding; sizes are asserted. Times are ns, of `CLOCK_MONOTONIC` unless said
//! otherwise; memory is in pages.

/// Log2 buckets of a latency histogram: bucket i counts [2^i, 2^(i+1)) ns; the last also all above (2^39 ns
/// are 9 minutes).
pub const BUCKETS: usize = 40;
/// Longest part of a command line that is carried, in bytes.
pub const ARGS_MAX: usize = 4096;
/// Longest part of an executable's path that is carried, in bytes.
pub const PATH_MAX: usize = 256;
/// Largest number of possible CPUs whose per-CPU counters are summed.
pub const CPUS_MAX: u32 = 1024;
/// Bits of open file descriptors that are counted; a process with a larger table reports [`FDS_UNKNOWN`].
pub const FDS_MAX: u32 = 1 << 20;
/// The table of file descriptors is larger than [`FDS_MAX`] or there is none.
pub const FDS_UNKNOWN: u32 = u32::MAX;

/// Cgroups that can be the target at the same time.
pub const CGROUPS_MAX: u32 = 256;

/// Which tasks belong to the target.
pub mod scope {
    /// Roots given by pid, and their descendants.
    pub const PIDS: u32 = 0;
    /// Members of a cgroup and of those below it.
    pub const CGROUP: u32 = 1;
    /// Everything.
    pub const NODE: u32 = 2;
    /// Members of cgroups, roots given by pid, and the descendants of both; all can grow.
    pub const JOB: u32 = 3;
}

/// Read-only global, set before load.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Hierarchy that the cgroups of the map `CGROUPS` belong to, 0 for v2.
    pub cgroup_hierarchy: u32,
    /// One of [`scope`].
    pub scope: u32,
    /// Whether time asleep and the run-queue histogram are kept.
    pub sched: u32,
    /// Whether `sched_switch` passes the previous task's state (5.18 and later).
    pub has_prev_state: u32,
    /// Whether threads that end are reported one by one.
    pub threads: u32,
    /// Number of possible CPUs.
    pub cpus: u32,
    /// Layout of `mm_struct.rss_stat`: 1 when it is an array of `percpu_counter` (6.2 and later).
    pub rss_percpu: u32,
    /// `sizeof(struct percpu_counter)`.
    pub percpu_counter_size: u32,
    /// `sizeof(struct upid)`.
    pub upid_size: u32,
    /// [`calls`]: what is wanted of system calls.
    pub calls: u32,
    /// `I_DIRTY_PAGES`, a bit of `inode.i_state`.
    pub dirty_pages: u32,
    /// `PG_writeback`, the number of a bit of `page.flags`; 64 when not known.
    pub writeback_bit: u32,
    /// Whether the controller is in another pid namespace than the initial one.
    pub in_pid_namespace: u32,
}

/// Bits of [`Config::calls`].
pub mod calls {
    /// Count and time them.
    pub const COUNT: u32 = 1;
    /// Account the file I/O that they do.
    pub const FILES: u32 = 2;
}

impl Config {
    /// All zero.
    pub const ZERO: Self = Self {
        cgroup_hierarchy: 0,
        scope: 0,
        sched: 0,
        has_prev_state: 0,
        threads: 0,
        cpus: 0,
        rss_percpu: 0,
        percpu_counter_size: 0,
        upid_size: 0,
        calls: 0,
        dirty_pages: 0,
        writeback_bit: 64,
        in_pid_namespace: 0,
    };
}

/// [`Control::arming`]: `mark` only learns about the kernel and the controller.
pub const ARMING_LEARN: u32 = 2;
/// [`Control::arming`]: births outside the target are reported too.
pub const ARMING_REPORT: u32 = 1;

/// The single entry of the map `NAMESPACE`: the controller's pid namespace, found by `mark`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Namespace {
    /// Address of its `struct pid_namespace`.
    pub address: u64,
    /// Its depth below the initial one.
    pub level: u64,
    /// The controller's thread group id in the initial one.
    pub controller: u64,
}

/// The single entry of the map `CONTROL`, written by the controller.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    /// Time of the reading under way.
    pub now: u64,
    /// Time of the reading before it.
    pub previous: u64,
    /// Number of the reading under way.
    pub epoch: u32,
    /// [`ARMING_LEARN`], [`ARMING_REPORT`], or 0 when the target is followed.
    pub arming: u32,
}

/// The single entry of the map `COUNTERS`, written by the programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Processes of the target that live.
    pub live: u64,
    /// Tasks that `mark` has added.
    pub marked: u64,
    /// Entries that found no room, by [`Map`].
    pub dropped: [u64; Map::COUNT],
}

/// The maps that can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Map {
    /// Task storage.
    Tasks,
    /// Processes.
    Processes,
    /// Ring buffer.
    Events,
    /// Latency histograms.
    Latency,
    /// Network I/O.
    NetIo,
    /// Block I/O.
    BlockIo,
    /// Block requests under way.
    Requests,
    /// File I/O.
    FileIo,
    /// System calls.
    Syscalls,
    /// Socket storage.
    Sockets,
    /// Asynchronous file I/O under way.
    FileAsync,
    /// Files with pages that are not written back.
    Dirtiers,
}

impl Map {
    /// How many there are.
    pub const COUNT: usize = 12;
    /// Names, in order.
    pub const NAMES: [&str; Self::COUNT] = [
        "TASKS",
        "PROCESSES",
        "EVENTS",
        "LATENCY",
        "NET_IO",
        "BLOCK_IO",
        "REQUESTS",
        "FILE_IO",
        "SYSCALLS",
        "SOCKETS",
        "FILE_ASYNC",
        "DIRTIERS",
    ];
}

/// Counters of a task or of a whole process; they only grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// User time, sampled at the timer interrupt (`task_struct.utime`), ns.
    pub utime: u64,
    /// System time, likewise, ns.
    pub stime: u64,
    /// Exact time on CPU (`se.sum_exec_runtime`, with what is in flight), ns.
    pub oncpu: u64,
    /// Time ready but waiting (`sched_info.run_delay`, with what is in flight), ns.
    pub run_delay: u64,
    /// Times put on a CPU (`sched_info.pcount`).
    pub run_count: u64,
    /// Interruptible sleep since the task is followed, ns.
    pub sleep: u64,
    /// Uninterruptible sleep since the task is followed, ns.
    pub blocked: u64,
    /// Voluntary context switches.
    pub nvcsw: u64,
    /// Involuntary context switches.
    pub nivcsw: u64,
    /// Wakeups since the task is followed.
    pub wakeups: u64,
    /// Moves to another CPU (`se.nr_migrations`).
    pub migrations: u64,
    /// Minor faults.
    pub min_flt: u64,
    /// Major faults.
    pub maj_flt: u64,
    /// Bytes asked to be read by system calls.
    pub rchar: u64,
    /// Bytes asked to be written by system calls.
    pub wchar: u64,
    /// Read system calls.
    pub syscr: u64,
    /// Write system calls.
    pub syscw: u64,
    /// Bytes fetched from storage.
    pub read_bytes: u64,
    /// Bytes sent to storage.
    pub write_bytes: u64,
    /// Dirty bytes that were dropped before being written.
    pub cancelled_write_bytes: u64,
    /// Bytes sent on unix sockets since the task is followed.
    pub unix_tx_bytes: u64,
    /// Bytes received on unix sockets.
    pub unix_rx_bytes: u64,
    /// Send calls on unix sockets that returned no error.
    pub unix_tx_calls: u64,
    /// Receive calls on unix sockets that returned no error.
    pub unix_rx_calls: u64,
}

/// A file whose page a task dirtied, which is known then to be in the map `DIRTIERS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Dirtied {
    /// Which.
    pub file: FileKey,
    /// The state of `DIRTIERS` in which it was found there; 0 for none.
    pub epoch: u64,
}

/// A file for as long as it is the same: its inode's number can be another's after it was removed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// Number of the inode.
    pub ino: u64,
    /// Device of the file system.
    pub dev: u32,
    /// Generation of the inode.
    pub generation: u32,
}

/// Entry of the map `DIRTIERS`: who dirtied pages of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Dirtier {
    /// Pid 0: somebody outside the target, or nobody who can be named.
    pub owner: Owner,
    /// 1 when others dirtied pages too.
    pub shared: u64,
    /// When it was last noted that pages were dirtied.
    pub noted: u64,
    /// When it began to be written back; 0 when pages were dirtied since.
    pub started: u64,
    /// When it was clean; 0 when it may not be.
    pub clean: u64,
}

/// Latency histogram with sum and, per reading, maximum.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Sum of all values, ns.
    pub sum: u64,
    /// Largest value since a reading, with the number of that reading: [`EpochMax`].
    pub peak: u64,
    /// Likewise for the reading before.
    pub previous_peak: u64,
    /// Counts.
    pub buckets: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Histogram {
    /// Nothing counted.
    pub const EMPTY: Self = Self {
        sum: 0,
        peak: 0,
        previous_peak: 0,
        buckets: [0; BUCKETS],
    };

    /// Largest value since reading `pass`, ns.
    #[inline(always)]
    pub fn max_in(&self, epoch: u32) -> u64 {
        if EpochMax(self.peak).is_of(epoch) {
            EpochMax(self.peak).ns()
        } else if EpochMax(self.previous_peak).is_of(epoch) {
            EpochMax(self.previous_peak).ns()
        } else {
            0
        }
    }
}

/// The largest value since a reading, in one word, so that it can be replaced atomically: the low 16 bits of the
/// reading's number above 48 bits of ns (78 hours).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochMax(pub u64);

impl EpochMax {
    const BITS: u32 = 48;

    /// `ns` since reading `pass`.
    #[inline(always)]
    pub fn new(epoch: u32, ns: u64) -> Self {
        let most = (1 << Self::BITS) - 1;
        let ns = if ns < most { ns } else { most };
        Self(u64::from(epoch) << Self::BITS | ns)
    }

    /// Whether it is of reading `pass`.
    #[inline(always)]
    pub fn is_of(self, epoch: u32) -> bool {
        self.0 >> Self::BITS == u64::from(epoch & 0xffff)
    }

    /// The value.
    #[inline(always)]
    pub fn ns(self) -> u64 {
        self.0 & ((1 << Self::BITS) - 1)
    }
}

/// Whose something is; also part of the key of all flows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Start of the process, ns of `CLOCK_BOOTTIME`; 0 when the owner is not known.
    pub start_boottime: u64,
    /// Process id in the controller's pid namespace; 0 when the owner is not known.
    pub pid: u32,
    /// Thread id likewise.
    pub tid: u32,
}

impl Owner {
    /// Not known.
    pub const NOBODY: Self = Self {
        start_boottime: 0,
        pid: 0,
        tid: 0,
    };
}

/// What a followed task is doing.
pub mod state {
    /// Born, not yet woken.
    pub const NEW: u32 = 0;
    /// On a CPU.
    pub const RUNNING: u32 = 1;
    /// Ready, waiting for a CPU.
    pub const QUEUED: u32 = 2;
    /// Interruptible sleep.
    pub const SLEEPING: u32 = 3;
    /// Uninterruptible sleep.
    pub const BLOCKED: u32 = 4;
    /// Ended; its counters are in its process's `ended`.
    pub const ACCUMULATED: u32 = 5;
}

/// What a task has under way; of the task itself only, so nothing in it is atomic.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// When its read, write or copy of files began, 0: none.
    pub rw_since: u64,
    /// When its sync began, 0: none …
    pub sync_since: u64,
    /// … and of which `struct file`.
    pub sync_file: u64,
    /// Mount in which it removes, renames or makes something, [`InFlight::NO_MOUNT`] when not known yet.
    pub path_mount: u64,
    /// When its system call began, 0: none.
    pub call_since: u64,
    /// Which: [`crate::per_key::call`].
    pub call: u64,
    /// What it does with files.
    pub call_op: u64,
    /// Mount of the file it reads or syncs, 0: not a file.
    pub call_from: u64,
    /// Mount of the file it writes, 0: not a file.
    pub call_to: u64,
    /// Where the datagram goes that it sends, 0: not known; see the programs' `net::udp`.
    pub datagram_to: u64,
    /// Where the datagram came from that it receives, likewise.
    pub datagram_from: u64,
}

impl InFlight {
    /// [`InFlight::path_mount`]: something is about to be done, the mount is not known yet.
    pub const NO_MOUNT: u64 = u64::MAX;
}

/// Task storage: what the kernel does not keep of a followed task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TaskState {
    /// One of [`state`].
    pub state: u32,
    /// 1 when the fork hook made this entry, 2 when `mark` did.
    pub made_by: u32,
    /// When the task entered `state`.
    pub since: u64,
    /// Clock of the CPU's run queue when the task was last put on that CPU.
    pub runqueue_clock: u64,
    /// Interruptible sleep, ended spans only.
    pub sleep: u64,
    /// Uninterruptible sleep, ended spans only.
    pub blocked: u64,
    /// Wakeups.
    pub wakeups: u64,
    /// Bytes sent on unix sockets.
    pub unix_tx_bytes: u64,
    /// Bytes received on unix sockets.
    pub unix_rx_bytes: u64,
    /// Send calls on unix sockets that returned no error.
    pub unix_tx_calls: u64,
    /// Receive calls on unix sockets that returned no error.
    pub unix_rx_calls: u64,
    /// Who it is.
    pub owner: Owner,
    /// What it has under way.
    pub in_flight: InFlight,
    /// The file of which it dirtied a page last.
    pub dirtied: Dirtied,
    /// Run-queue latency.
    pub runqueue: Histogram,
}

impl TaskState {
    /// Puts in what is counted here and not by the kernel, ended spans only.
    #[inline(always)]
    pub fn totals(&self, to: &mut Totals) {
        to.sleep = self.sleep;
        to.blocked = self.blocked;
        to.wakeups = self.wakeups;
        to.unix_tx_bytes = self.unix_tx_bytes;
        to.unix_rx_bytes = self.unix_rx_bytes;
        to.unix_tx_calls = self.unix_tx_calls;
        to.unix_rx_calls = self.unix_rx_calls;
    }
}

/// Entry of the map `PROCESSES` by thread group id; also the body of the event [`event::EXIT`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// [`event::EXIT`].
    pub event: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
    /// `task_struct.start_boottime` of the leader, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// When the last thread left the CPU for good.
    pub end: u64,
    /// Largest resident set (`signal_struct.maxrss`), pages.
    pub max_rss: u64,
    /// Threads that have not ended.
    pub tasks: u64,
    /// As in wait(2): code << 8 | signal.
    pub exit_code: u32,
    /// Real user id at the end.
    pub uid: u32,
    /// Reading in which the process was last reported …
    pub reported_pass: u32,
    /// … and the thread it was reported with.
    pub reported_tid: u32,
    /// `comm` at the end.
    pub comm: [u8; 16],
    /// Sum over the threads that have ended.
    pub ended: Totals,
    /// Run-queue latency of the threads that have ended.
    pub ended_runqueue: Histogram,
}

/// First word of an event in the ring buffer.
pub mod event {
    /// [`super::Process`]: a process of the target has ended.
    pub const EXIT: u32 = 1;
    /// [`super::Birth`]: a process of the target was born.
    pub const BIRTH: u32 = 2;
    /// [`super::Exec`]: a process of the target runs another program.
    pub const EXEC: u32 = 3;
    /// [`super::Birth`]: while arming, a process was born outside the target.
    pub const OUT_OF_SCOPE_FORK: u32 = 4;
    /// [`super::ThreadEnd`]: with `--threads`, a thread has ended.
    pub const THREAD_END: u32 = 5;
    /// One word: a task was moved between cgroups.
    pub const CGROUP_MOVE: u32 = 6;
    /// [`super::Environment`]: which batch job and rank a program was started for.
    pub const ENVIRONMENT: u32 = 7;
}

/// A process is born by fork.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// [`event::BIRTH`] or [`event::OUT_OF_SCOPE_FORK`].
    pub event: u32,
    /// Its process id in the controller's pid namespace.
    pub pid: u32,
    /// Its parent's.
    pub ppid: u32,
    /// Real user id.
    pub uid: u32,
    /// Its start, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// Its parent's start, ns of `CLOCK_BOOTTIME`.
    pub parent_start_boottime: u64,
    /// Command name, its parent's at birth.
    pub comm: [u8; 16],
}

/// A process runs another program; `args_len` bytes of the command line follow this header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Exec {
    /// [`event::EXEC`].
    pub event: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
    /// Its start, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// Real user id after the exec.
    pub uid: u32,
    /// Bytes of `args` that are valid; the whole command line may be longer.
    pub args_len: u32,
    /// Length of the whole command line, bytes.
    pub args_total: u64,
    /// Command name.
    pub comm: [u8; 16],
    /// Path of the binary as it was given (of the interpreter, for a script), ended by NUL.
    pub path: [u8; PATH_MAX],
}

/// [`Exec`] with room for the command line.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecBuffer {
    /// What comes first.
    pub header: Exec,
    /// Arguments, each ended by NUL.
    pub args: [u8; ARGS_MAX],
}

/// Variables of an environment that name batch jobs, their steps and ranks. No others are read: an environment is full of
/// secrets.
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
/// Longest part of such a variable that is carried, bytes of `NAME=value` and NUL.
pub const VARIABLE_MAX: usize = 128;

/// Some of the [`VARIABLES`] with which a process runs another program; sent after [`Exec`] when there are any.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    /// [`event::ENVIRONMENT`].
    pub event: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
    /// Its start, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// How many of the places are used; only these are sent.
    pub count: u32,
    /// Whether the environment is longer than what was looked at.
    pub torn: u32,
    /// `NAME=value`, each ended by NUL.
    pub variables: [[u8; VARIABLE_MAX]; VARIABLES.len()],
}

/// Length of an [`Environment`] with no variable, bytes.
pub const ENVIRONMENT_HEADER: usize = 24;

/// A thread has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ThreadEnd {
    /// [`event::THREAD_END`].
    pub event: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
    /// Thread id likewise.
    pub tid: u32,
    /// Zero.
    pub reserved: u32,
    /// Start of the process, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// Start of the thread, ns of `CLOCK_BOOTTIME`.
    pub thread_start_boottime: u64,
    /// Its counters.
    pub totals: Totals,
    /// Its run-queue latency.
    pub runqueue: Histogram,
}

/// First word of a record from the iterator `sample`.
pub mod record {
    /// [`super::Thread`].
    pub const THREAD: u32 = 1;
    /// [`super::ProcessRecord`]; comes before the process's first thread.
    pub const PROCESS: u32 = 2;
    /// [`super::Histogram`] of the thread before it, after a [`super::HistogramHeader`].
    pub const HISTOGRAM: u32 = 3;
    /// [`super::Totals`] and [`super::Histogram`] of the ended threads of the process before it, after a
    /// [`super::HistogramHeader`].
    pub const ENDED: u32 = 4;
    /// [`super::Unchanged`].
    pub const UNCHANGED: u32 = 5;
}

/// First words of records that are copied as they lie in a map.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HistogramHeader {
    /// [`record::HISTOGRAM`] or [`record::ENDED`].
    pub record: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
}

/// A process of one thread that has been in the same state since before the last reading: none of its own
/// counters has changed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchanged {
    /// [`record::UNCHANGED`].
    pub record: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
    /// Start, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// One of [`state`].
    pub state: u32,
    /// 1 when it has memory of its own.
    pub has_mm: u32,
    /// As [`ProcessRecord::rss`]: others can take memory away.
    pub rss: [i64; 4],
}

/// Flags of [`Thread`].
pub mod thread_flags {
    /// The thread has ended; its counters are in its process's `ended`.
    pub const ACCUMULATED: u32 = 1;
}

/// A live thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Thread {
    /// [`record::THREAD`].
    pub record: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
    /// Thread id likewise.
    pub tid: u32,
    /// [`thread_flags`].
    pub flags: u32,
    /// CPU it last ran on.
    pub cpu: u32,
    /// `task_struct.__state`.
    pub state: u32,
    /// `task_struct.exit_state`.
    pub exit_state: u32,
    /// 1 while on a CPU or ready for one.
    pub runnable: u32,
    /// Start of the process, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// Start of the thread, ns of `CLOCK_BOOTTIME`.
    pub thread_start_boottime: u64,
    /// Its counters.
    pub totals: Totals,
}

/// A live process, apart from the counters of its threads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessRecord {
    /// [`record::PROCESS`].
    pub record: u32,
    /// Process id in the controller's pid namespace.
    pub pid: u32,
    /// Parent's process id likewise.
    pub ppid: u32,
    /// Real user id.
    pub uid: u32,
    /// Threads (`signal_struct.nr_threads`).
    pub threads: u32,
    /// Open file descriptors or [`FDS_UNKNOWN`].
    pub fds: u32,
    /// 1 when it has memory of its own (no kernel thread, not exiting).
    pub has_mm: u32,
    /// 1 when `rss_per_cpu` was read.
    pub rss_exact: u32,
    /// Start, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
    /// Resident pages: file, anonymous, swap entries, shared memory (the kernel's order).
    pub rss: [i64; 4],
    /// What the CPUs hold back of `rss` (`percpu_counter`), pages.
    pub rss_per_cpu: [i64; 4],
    /// Largest resident set so far that the kernel noted, pages.
    pub hiwater_rss: u64,
    /// Largest resident set at an earlier exec, pages.
    pub max_rss: u64,
    /// Address space, pages.
    pub total_vm: u64,
    /// Private writable pages.
    pub data_vm: u64,
    /// Stack pages.
    pub stack_vm: u64,
    /// Start of the program's text, an address.
    pub start_code: u64,
    /// End of the program's text, an address.
    pub end_code: u64,
    /// Command name.
    pub comm: [u8; 16],
}

const _: () = {
    assert!(size_of::<Config>() == 52);
    assert!(size_of::<Control>() == 24);
    assert!(size_of::<Counters>() == 16 + 8 * Map::COUNT);
    assert!(size_of::<Totals>() == 192);
    assert!(size_of::<Histogram>() == 24 + 8 * BUCKETS);
    assert!(size_of::<InFlight>() == 88);
    assert!(
        size_of::<TaskState>()
            == 48
                + 32
                + size_of::<Owner>()
                + size_of::<InFlight>()
                + size_of::<Dirtied>()
                + size_of::<Histogram>()
    );
    assert!(size_of::<Process>() == 40 + 16 + 16 + size_of::<Totals>() + size_of::<Histogram>());
    assert!(size_of::<FileKey>() == 16);
    assert!(size_of::<Dirtier>() == 32 + size_of::<Owner>());
    assert!(size_of::<Birth>() == 48);
    assert!(size_of::<Exec>() == 48 + PATH_MAX);
    assert!(size_of::<ExecBuffer>() == 48 + PATH_MAX + ARGS_MAX);
    assert!(size_of::<Environment>() == ENVIRONMENT_HEADER + VARIABLE_MAX * VARIABLES.len());
    assert!(size_of::<ThreadEnd>() == 32 + size_of::<Totals>() + size_of::<Histogram>());
    assert!(size_of::<Thread>() == 48 + size_of::<Totals>());
    assert!(size_of::<Unchanged>() == 56);
    assert!(size_of::<ProcessRecord>() == 40 + 64 + 56 + 16);
};

/// The structs as aya's plain old data.
#[cfg(feature = "user")]
mod pod {
    use super::{Config, Control, Counters, Process};
    use crate::offsets::Offsets;

    // SAFETY: `repr(C)`, integers only, no padding.
    unsafe impl aya::Pod for Config {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Control {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Counters {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Process {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Offsets {}
}
