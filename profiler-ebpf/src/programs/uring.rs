//! File I/O through io_uring, and asynchronous file I/O in general: an operation is stored when it
//! is submitted, and counted when it is completed.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    files::{Load, Untyped, count_sync, count_transfer, file_mount, sync_mount},
    kernel::{Object, config, ktime, offset},
    maps::count_drop,
    per_key::current_owner,
};
use crate::{
    config::syscalls,
    maps::{FILE_ASYNC, FileAsync},
    per_key::Owner,
};

/// An operation in flight.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AsyncOperation {
    /// The submitter.
    pub owner: Owner,
    /// Time of the submission.
    pub since: u64,
    /// Opcode of io_uring.
    pub opcode: u32,
    /// The [`Operation`].
    pub operation: u32,
}

/// Kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// Read of a file.
    Read,
    /// Write of a file.
    Write,
    /// Sync of a file.
    Sync,
}

/// `enum io_uring_op` (include/uapi/linux/io_uring.h).
mod op {
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const FSYNC: u8 = 3;
    pub const READ_FIXED: u8 = 4;
    pub const WRITE_FIXED: u8 = 5;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const READV_FIXED: u8 = 60;
    pub const WRITEV_FIXED: u8 = 61;
}

/// A request is submitted to io_uring. Argument: the request.
#[btf_tracepoint(function = "io_uring_submit_req")]
pub fn uring_submit(ctx: BtfTracePointContext) -> i32 {
    let Some(owner) = current_owner() else {
        return 0;
    };
    let request = Object(ctx.arg(0));
    let opcode: u8 = request.get(offset!(req_opcode));
    let operation = match opcode {
        op::READ | op::READV | op::READ_FIXED | op::READV_FIXED => Operation::Read,
        op::WRITE | op::WRITEV | op::WRITE_FIXED | op::WRITEV_FIXED => Operation::Write,
        // With method `vfs`, the hook of `vfs_fsync_range` counts it.
        op::FSYNC if config!(syscalls) & syscalls::FILES != 0 => Operation::Sync,
        _ => return 0,
    };
    start(request.address(), owner, opcode, operation);
    0
}

/// A request is completed. Arguments: ring, request; the others differ between kernels.
#[btf_tracepoint(function = "io_uring_complete")]
pub fn uring_complete(ctx: BtfTracePointContext) -> i32 {
    let request: u64 = ctx.arg(1);
    let Some(operation) = take(request) else {
        return 0;
    };
    let request = Object(request as *const u8);
    // The memory of the request can have been reused.
    if Untyped::load::<u8>(request, offset!(req_opcode)) != operation.opcode as u8 {
        return 0;
    }
    let result: i32 = Untyped::load(request, offset!(req_res));
    let file = Untyped::pointer(request, offset!(req_file));
    complete::<Untyped>(&operation, file, result.into());
    0
}

/// Stores an operation that is submitted.
#[inline(always)]
pub fn start(request: u64, owner: Owner, opcode: u8, operation: Operation) {
    let operation = AsyncOperation {
        owner,
        since: ktime(),
        opcode: opcode.into(),
        operation: operation as u32,
    };
    if FILE_ASYNC.insert(&request, &operation, 0).is_err() {
        count_drop::<FileAsync>();
    }
}

/// Removes an operation that has ended.
#[inline(always)]
pub fn take(request: u64) -> Option<AsyncOperation> {
    // SAFETY: copied at once. One CPU at a time works on a request.
    let operation = unsafe { FILE_ASYNC.get(&request) }.copied()?;
    let _ = FILE_ASYNC.remove(&request);
    Some(operation)
}

/// Counts a completed operation.
#[inline(always)]
pub fn complete<L: Load>(operation: &AsyncOperation, file: Object, result: i64) {
    let ns = ktime().saturating_sub(operation.since);
    let owner = operation.owner;
    if operation.operation == Operation::Sync as u32 {
        let mount = sync_mount::<L>(file);
        if mount != 0 {
            count_sync(owner, mount, result, ns);
        }
        return;
    }
    let mount = file_mount::<L>(file);
    if mount == 0 {
        return;
    }
    if operation.operation == Operation::Write as u32 {
        count_transfer(owner, 0, mount, result, ns);
    } else {
        count_transfer(owner, mount, 0, result, ns);
    }
}
