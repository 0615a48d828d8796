//! File I/O through io_uring, and asynchronous file I/O in general: an operation is stored when it
//! is submitted, and counted when it is completed.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    atomic::add,
    files::{Load, Untyped, count_sync, count_transfer, file_mount, sync_mount},
    kernel::{Object, argument, config, ktime, offset},
    maps::{count_drop, counters},
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
    /// Address of the request.
    pub request: u64,
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

/// A request is submitted to io_uring. Argument: the request; before Linux 6.0 (`io_uring_submit_sqe`),
/// ring, request and others.
#[btf_tracepoint(function = "io_uring_submit_req")]
pub fn uring_submit(ctx: BtfTracePointContext) -> i32 {
    let Some(owner) = current_owner() else {
        return 0;
    };
    let (request, opcode): (_, u8) = if config!(uring_submit_passes_ring) != 0 {
        let request = Object(argument::<1>(&ctx) as *const u8);
        (request, Untyped::load(request, offset!(req_opcode)))
    } else {
        let request = Object(argument::<0>(&ctx) as *const u8);
        (request, request.get(offset!(req_opcode)))
    };
    let operation = match opcode {
        op::READ | op::READV | op::READ_FIXED | op::READV_FIXED => Operation::Read,
        op::WRITE | op::WRITEV | op::WRITE_FIXED | op::WRITEV_FIXED => Operation::Write,
        // With method `vfs`, the hook of `vfs_fsync_range` counts it.
        op::FSYNC if config!(syscalls) & syscalls::FILES != 0 => Operation::Sync,
        _ => return 0,
    };
    let key = if config!(uring_complete_passes_data) != 0 {
        let key = data_key(ctx.arg(0), Untyped::load(request, offset!(req_user_data)));
        // Two operations with the same `user_data`: one of them will not be found.
        if in_flight(key) {
            add_indistinct();
        }
        key
    } else {
        request.address()
    };
    start(key, request, owner, opcode, operation);
    0
}

/// A request is completed. Arguments: ring, request, and others; before Linux 5.18, ring, `user_data` of
/// the request, and its result.
#[btf_tracepoint(function = "io_uring_complete")]
pub fn uring_complete(ctx: BtfTracePointContext) -> i32 {
    let mut key: u64 = ctx.arg(1);
    if config!(uring_complete_passes_data) != 0 {
        key = data_key(ctx.arg(0), key);
    }
    let Some(operation) = take(key) else {
        return 0;
    };
    let request = Object(operation.request as *const u8);
    // The memory of the request can have been reused.
    if Untyped::load::<u8>(request, offset!(req_opcode)) != operation.opcode as u8 {
        return 0;
    }
    let result: i32 = if config!(uring_complete_passes_data) != 0 {
        ctx.arg(2)
    } else {
        Untyped::load(request, offset!(req_res))
    };
    let file = Untyped::pointer(request, offset!(req_file));
    complete::<Untyped>(&operation, file, result.into());
    0
}

/// Key of an operation of which only the ring and `user_data` are passed at its end.
#[inline(always)]
fn data_key(ring: u64, user_data: u64) -> u64 {
    ring ^ user_data
}

#[inline(always)]
fn add_indistinct() {
    if let Some(counters) = counters() {
        add(&mut counters.indistinct, 1);
    }
}

#[inline(always)]
fn in_flight(key: u64) -> bool {
    FILE_ASYNC.get_ptr(key).is_some()
}

/// Stores an operation that is submitted.
#[inline(always)]
pub fn start(key: u64, request: Object, owner: Owner, opcode: u8, operation: Operation) {
    let operation = AsyncOperation {
        owner,
        since: ktime(),
        request: request.address(),
        opcode: opcode.into(),
        operation: operation as u32,
    };
    if FILE_ASYNC.insert(&key, &operation, 0).is_err() {
        count_drop::<FileAsync>();
    }
}

/// Removes an operation that has ended.
#[inline(always)]
pub fn take(key: u64) -> Option<AsyncOperation> {
    // SAFETY: copied at once. One CPU at a time works on a request.
    let operation = unsafe { FILE_ASYNC.get(&key) }.copied()?;
    let _ = FILE_ASYNC.remove(&key);
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
