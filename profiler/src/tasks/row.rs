//! The row of a process or thread at a sample.

use profiler_ebpf::record::Totals;

use super::{
    counters::{self, CpuTime, Latency},
    gauges::Memory,
    process_id::ProcessId,
    slow_fields::Details,
};

/// A process or thread at one sample.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: ProcessId,
    /// Thread id; `None` in the row of the process.
    pub tid: Option<u32>,
    /// Time since the previous reading or the start, until now or the end, ns.
    pub interval_ns: u64,
    /// Increases of the counters.
    pub increase: Totals,
    /// Whether I/O accounting could be read.
    pub io_read: bool,
    /// Whether the row has only what `/proc` shows to every user.
    pub is_public: bool,
    /// Increases of user and system time.
    pub cpu_time: CpuTime,
    /// Run-queue waits that ended.
    pub runqueue: Option<Latency>,
    /// Memory; `None` for ended processes, kernel threads and threads.
    pub memory: Option<Memory>,
    /// Values that are read every 30 s, in the sample after that.
    pub details: Option<Details>,
    /// Number of threads; `None` for ended processes and threads.
    pub threads: Option<u32>,
    /// Open file descriptors; `None` for ended processes and threads, or if unknown.
    pub fds: Option<u32>,
    /// CPU of the last execution.
    pub cpu: Option<u32>,
    /// State letter as in ps(1).
    pub state: &'static str,
}

impl Row {
    /// Adds a later row of the same process or thread.
    pub(super) fn add(&mut self, later: &Self) {
        self.increase.add(&later.increase);
        let increase = self.increase;
        let cpu_time = CpuTime {
            user: self.cpu_time.user + later.cpu_time.user,
            system: self.cpu_time.system + later.cpu_time.system,
        };
        counters::add_latency(&mut self.runqueue, later.runqueue.as_ref());
        *self = Self {
            interval_ns: self.interval_ns + later.interval_ns,
            increase,
            io_read: self.io_read && later.io_read,
            is_public: self.is_public || later.is_public,
            cpu_time,
            runqueue: self.runqueue.take(),
            details: later.details.or(self.details),
            ..later.clone()
        };
    }
}
