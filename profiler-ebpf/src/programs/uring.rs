//! File I/O through io_uring, and what the ways of asynchronous I/O have in common: an operation is noted when it is
//! submitted and accounted when it is complete.

use aya_ebpf::{
    btf_maps::HashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{
    files::{Any, Load, file_mount, sync_mount, synced, transfer},
    kernel::{Object, config, ktime, offset},
    maps::dropped,
    per_key::current_owner,
};
use crate::wire::{Map, Owner, calls};

/// An operation under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Async {
    /// Whose.
    pub owner: Owner,
    /// Since when.
    pub since: u64,
    /// Which, as io_uring numbers them.
    pub opcode: u32,
    /// [`Does`].
    pub does: u32,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Does {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Syncs.
    Sync,
}

/// Asynchronous file I/O by the address of its request.
#[btf_map]
static FILE_ASYNC: HashMap<u64, Async, 1, 1> = HashMap::new();

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

/// A request is handed to io_uring. Argument: the request.
#[btf_tracepoint(function = "io_uring_submit_req")]
pub fn uring_submit(ctx: BtfTracePointContext) -> i32 {
    let Some(owner) = current_owner() else {
        return 0;
    };
    let request = Object(ctx.arg(0));
    let opcode: u8 = request.get(offset!(req_opcode));
    let does = match opcode {
        op::READ | op::READV | op::READ_FIXED | op::READV_FIXED => Does::Read,
        op::WRITE | op::WRITEV | op::WRITE_FIXED | op::WRITEV_FIXED => Does::Write,
        // With the functions it is seen where all syncs meet.
        op::FSYNC if config!(calls) & calls::FILES != 0 => Does::Sync,
        _ => return 0,
    };
    begin(request.address(), owner, opcode, does);
    0
}

/// A request is complete. Arguments: ring, request, and what differs between kernels.
#[btf_tracepoint(function = "io_uring_complete")]
pub fn uring_complete(ctx: BtfTracePointContext) -> i32 {
    let request: u64 = ctx.arg(1);
    let Some(begun) = end(request) else { return 0 };
    let request = Object(request as *const u8);
    // The address may be that of another request by now.
    if Any::load::<u8>(request, offset!(req_opcode)) != begun.opcode as u8 {
        return 0;
    }
    let result: i32 = Any::load(request, offset!(req_res));
    let file = Any::pointer(request, offset!(req_file));
    done::<Any>(&begun, file, result.into());
    0
}

/// Notes that an operation is under way.
#[inline(always)]
pub fn begin(request: u64, owner: Owner, opcode: u8, does: Does) {
    let begun = Async {
        owner,
        since: ktime(),
        opcode: opcode.into(),
        does: does as u32,
    };
    if FILE_ASYNC.insert(&request, &begun, 0).is_err() {
        dropped(Map::FileAsync);
    }
}

/// Takes note of an operation out.
#[inline(always)]
pub fn end(request: u64) -> Option<Async> {
    // SAFETY: copied at once; nobody else works on this request.
    let begun = unsafe { FILE_ASYNC.get(&request) }.copied()?;
    let _ = FILE_ASYNC.remove(&request);
    Some(begun)
}

/// Accounts an operation that is complete.
#[inline(always)]
pub fn done<L: Load>(begun: &Async, file: Object, result: i64) {
    let ns = ktime().saturating_sub(begun.since);
    let owner = begun.owner;
    if begun.does == Does::Sync as u32 {
        let mount = sync_mount::<L>(file);
        if mount != 0 {
            synced(owner, mount, result, ns);
        }
        return;
    }
    let mount = file_mount::<L>(file);
    if mount == 0 {
        return;
    }
    if begun.does == Does::Write as u32 {
        transfer(owner, 0, mount, result, ns);
    } else {
        transfer(owner, mount, 0, result, ns);
    }
}
