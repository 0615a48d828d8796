//! Memory for structs that are too large for the stack of a program (512 bytes).

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};

use super::{environment::Scan, task_storage::TaskState};
use crate::{
    event::{Environment, Exec, ProcessEntry, ThreadEnd},
    maps::RECORD_MAX,
    record::{ProcessRecord, ThreadRecord},
};

/// Longest part of a command line that is sent, bytes.
pub const ARGS_MAX: usize = 4096;
/// Bytes of an environment that are read at a time.
pub const VARIABLE_SPACE: usize = 1024;

#[btf_map]
pub static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Programs that use the same field never interrupt one another.
#[repr(C)]
pub struct Scratch {
    /// The event of an exec.
    pub exec: ExecBuffer,
    /// The event of an environment.
    pub environment: Environment,
    /// Where an environment is being searched.
    pub scan: Scan,
    /// The part of it that is being searched.
    pub variable: [u64; VARIABLE_SPACE / 8],
    /// The event of the end of a thread.
    pub end: ThreadEnd,
    /// A new process.
    pub process: ProcessEntry,
    /// A new task.
    pub task: TaskState,
    /// The record of a thread.
    pub thread: ThreadRecord,
    /// The record of a process.
    pub record: ProcessRecord,
}

/// [`Exec`] with its command line.
#[repr(C)]
pub struct ExecBuffer {
    /// The struct that comes first.
    pub header: Exec,
    /// Arguments, each ended by a NUL.
    pub args: [u8; ARGS_MAX],
}

const _: () = assert!(size_of::<ExecBuffer>() <= RECORD_MAX);

/// The scratch of this CPU.
#[inline(always)]
pub fn scratch() -> Option<&'static mut Scratch> {
    // SAFETY: the one entry always exists.
    SCRATCH
        .get_ptr_mut(0)
        .and_then(|scratch| unsafe { scratch.as_mut() })
}
