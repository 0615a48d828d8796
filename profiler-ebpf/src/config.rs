//! Settings of the programs: constants that are set before load, and the state of the run.

shared! {
    /// Read-only global, set before load; the verifier folds its values to constants.
    pub struct Config {
        /// Hierarchy of the cgroups in the map `CGROUPS`, 0 for v2.
        pub cgroup_hierarchy: u32,
        /// One of [`scope`].
        pub scope: u32,
        /// Whether time asleep and the histogram of waits are kept.
        pub sched: u32,
        /// Whether wakeups are observed, instead of the times that the scheduler notes in each task.
        pub wakeups: u32,
        /// Whether `sched_switch` passes the previous task's state (Linux 5.18 and later).
        pub has_prev_state: u32,
        /// Whether the end of each thread is reported.
        pub threads: u32,
        /// Number of possible CPUs.
        pub cpus: u32,
        /// Whether `mm_struct.rss_stat` is an array of `percpu_counter` (Linux 6.2 and later).
        pub rss_percpu: u32,
        /// `sizeof(struct percpu_counter)`.
        pub percpu_counter_size: u32,
        /// `sizeof(struct upid)`.
        pub upid_size: u32,
        /// Bits of [`syscalls`].
        pub syscalls: u32,
        /// Whether `recvmsg` of protocols has the argument `noblock` before its flags (before Linux 5.19).
        pub recvmsg_has_noblock: u32,
        /// Whether `__skb_recv_udp` has it after its flags (before Linux 5.19).
        pub recv_udp_has_noblock: u32,
        /// Whether `io_uring_submit_sqe` passes the ring before the request (before Linux 6.0).
        pub uring_submit_passes_ring: u32,
        /// Whether `io_uring_complete` passes `user_data` instead of the request (before Linux 5.18).
        pub uring_complete_passes_data: u32,
        /// `I_DIRTY_PAGES`, a bit of `inode.i_state`.
        pub dirty_pages: u32,
        /// `PG_writeback`, a bit number of `page.flags`; 64 if unknown.
        pub writeback_bit: u32,
        /// Whether the profiler is in a pid namespace other than the initial one.
        pub in_pid_namespace: u32,
        /// Whether the kernel has bpf_loop (Linux 5.17 and later).
        pub has_loop: u32,
        /// Whether it has bpf_map_lookup_percpu_elem (Linux 5.19 and later).
        pub has_percpu_lookup: u32,
        /// Whether processes that run are listed, so that a reading can visit only these.
        pub lists_active: u32,
        /// Bytes of waiting events above which the profiler is woken: half of the ring buffer.
        pub events_wakeup: u32,
    }

    /// The single entry of the map `CONTROL`, written by the profiler.
    #[derive(Default)]
    pub struct Control {
        /// Time of the current reading.
        pub now: u64,
        /// Number of the current reading.
        pub epoch: u32,
        /// One of [`arming`].
        pub arming: u32,
        /// What the iterator `sample` reports: one of [`pass`].
        pub pass: u64,
    }
}

impl Config {
    /// Placeholder in the object, overwritten before load.
    pub const UNSET: Self = Self {
        cgroup_hierarchy: 0,
        scope: 0,
        sched: 0,
        wakeups: 0,
        has_prev_state: 0,
        threads: 0,
        cpus: 0,
        rss_percpu: 0,
        percpu_counter_size: 0,
        upid_size: 0,
        syscalls: 0,
        recvmsg_has_noblock: 0,
        recv_udp_has_noblock: 0,
        uring_submit_passes_ring: 0,
        uring_complete_passes_data: 0,
        dirty_pages: 0,
        writeback_bit: 64,
        in_pid_namespace: 0,
        has_loop: 0,
        has_percpu_lookup: 0,
        lists_active: 0,
        events_wakeup: 0,
    };
}

/// Which tasks belong to the target.
pub mod scope {
    /// Processes named by pid, and their descendants.
    pub const PIDS: u32 = 0;
    /// Members of a cgroup and of the cgroups below it.
    pub const CGROUP: u32 = 1;
    /// Every task.
    pub const NODE: u32 = 2;
    /// Members of cgroups, processes named by pid, and the descendants of both. Both sets can grow.
    pub const JOB: u32 = 3;
}

/// What a pass of the iterator `sample` reports.
pub mod pass {
    /// All tasks that it visits.
    pub const VISITED: u64 = 0;
    /// Those that no other pass of the current reading has visited.
    pub const NOT_VISITED: u64 = 1;
    /// The processes that are left out of the current reading.
    pub const LEFT_OUT: u64 = 2;
}

/// Counts of the programs at `sys_enter` and `sys_exit`.
pub mod syscalls {
    /// Count and time of each call.
    pub const COUNT: u32 = 1;
    /// File I/O of the calls.
    pub const FILES: u32 = 2;
}

/// Phases of [`Control::arming`].
pub mod arming {
    /// The target is followed; forks outside it are not reported.
    pub const DONE: u32 = 0;
    /// Forks outside the target are reported as well.
    pub const REPORT: u32 = 1;
    /// The iterator `mark` follows no task: it only finds the per-CPU offsets and the profiler's
    /// pid namespace.
    pub const LEARN: u32 = 2;
}
