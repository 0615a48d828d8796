//! Identity of a process.

use std::path::Path;

use profiler_ebpf::{
    event::{Environment, Exec, Fork, ProcessEntry, ThreadEnd},
    names::Names,
    record::{ProcessRecord, ThreadRecord, Unchanged},
};

use crate::procfs::process_stat;

/// Pid and start time of a process. Processes that have the same pid one after the other are
/// different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Thread group id in the profiler's pid namespace.
    pub pid: u32,
    /// Start, ns of `CLOCK_BOOTTIME`.
    pub start_boottime: u64,
}

impl ProcessId {
    /// Whether the process still exists.
    pub(super) fn is_alive(self, procfs: &Path) -> bool {
        process_stat::has_start(procfs, self.pid, self.start_boottime)
    }
}

/// Records and events all identify their process by the same two members.
macro_rules! from_shared {
    ($($record:ident),+) => {$(
        impl From<&$record> for ProcessId {
            fn from(record: &$record) -> Self {
                Self {
                    pid: record.pid,
                    start_boottime: record.start_boottime,
                }
            }
        }
    )+};
}
from_shared!(
    Environment,
    Exec,
    Fork,
    Names,
    ProcessEntry,
    ProcessRecord,
    ThreadEnd,
    ThreadRecord,
    Unchanged
);
