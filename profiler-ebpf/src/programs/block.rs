//! Block I/O: requests from their way into the queue to their completion, charged to whom they are for.
//!
//! The first that is seen of a request, in the context of who submits it, tells the owner; the completion, in any
//! context, finds it in [`REQUESTS`].

use aya_ebpf::{
    btf_maps::HashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{
    flows::{Flows, current_owner, flow, key, latency},
    kernel::{Object, config, ktime, offset},
    maps::{add, dropped},
};
use crate::{
    flows::{BlockFlow, DiskName, block, block::op, kind},
    wire::{Map, Owner, scope},
};

/// Block I/O by process and [`block::what`].
#[btf_map]
static BLOCK_IO: Flows<BlockFlow> = HashMap::new();

/// Requests under way, by their address. Entries take memory only while used.
#[btf_map]
static REQUESTS: HashMap<u64, Request, 65536, 1> = HashMap::new();

/// Names of the disks that have flows, by device number.
#[btf_map]
static DISKS: HashMap<u64, DiskName, 4096, 1> = HashMap::new();

/// A request under way.
#[repr(C)]
struct Request {
    owner: Owner,
    /// [`block::what`].
    what: u64,
    /// When it was first seen.
    queued: u64,
    /// When it was given to the driver, the last time; 0 before.
    issued: u64,
}

/// `REQ_OP_MASK`, and the first operation that is a command of the driver's (include/linux/blk_types.h).
const OP_MASK: u32 = 0xff;
const OP_DISCARD: u32 = 3;
const OP_FLUSH: u32 = 2;
const OP_DRIVER: u32 = 32;

/// A request goes into a queue. Argument: the request.
#[btf_tracepoint(function = "block_rq_insert")]
pub fn block_rq_insert(ctx: BtfTracePointContext) -> i32 {
    let request = Object(ctx.arg(0));
    if under_way(request).is_none() {
        begin(request, ktime(), 0);
    }
    0
}

/// A request goes to the driver; again when the driver had no room. Argument: the request.
#[btf_tracepoint(function = "block_rq_issue")]
pub fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    let request = Object(ctx.arg(0));
    let now = ktime();
    match under_way(request) {
        Some(state) => state.issued = now,
        None => begin(request, now, now),
    }
    0
}

/// A request has become part of another. Argument: the one that is no more.
#[btf_tracepoint(function = "block_rq_merge")]
pub fn block_rq_merge(ctx: BtfTracePointContext) -> i32 {
    let address: u64 = ctx.arg(0);
    let _ = REQUESTS.remove(&address);
    0
}

/// A request, or a part of it, is done. Arguments: request, error, bytes.
#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    let request = Object(ctx.arg(0));
    let error: u8 = ctx.arg(1);
    let bytes: u32 = ctx.arg(2);
    let Some(state) = under_way(request) else {
        return 0;
    };
    let key = key(state.owner, state.what);
    if let Some(flow) = flow_of(request, &key) {
        add(&mut flow.bytes, bytes.into());
        // The last part.
        if bytes >= request.get::<u32>(offset!(request_data_len)) {
            done(state, flow, error);
            let _ = REQUESTS.remove(&(request.0 as u64));
        }
    }
    0
}

#[inline(always)]
fn done(state: &Request, flow: &mut BlockFlow, error: u8) {
    let now = ktime();
    let issued = if state.issued == 0 {
        state.queued
    } else {
        state.issued
    };
    let queue = issued.saturating_sub(state.queued);
    let service = now.saturating_sub(issued);
    add(&mut flow.ops, 1);
    add(&mut flow.queue_ns, queue);
    add(&mut flow.service_ns, service);
    if error != 0 {
        add(&mut flow.errors, 1);
    }
    if state.owner.pid != 0 {
        let service_kind = kind::BLOCK_READ + block::op_of(state.what);
        latency(state.owner, service_kind, service);
        latency(state.owner, kind::BLOCK_QUEUE, queue);
    }
}

/// The flow with this key. The disk's name is noted when it is new.
#[inline(always)]
fn flow_of(request: Object, key: &crate::flows::FlowKey) -> Option<&'static mut BlockFlow> {
    if let Some(flow) = BLOCK_IO.get_ptr_mut(key) {
        // SAFETY: as in `flow`.
        return unsafe { flow.as_mut() };
    }
    let disk = disk_of(request);
    let name = DiskName {
        name: [
            disk.get(offset!(disk_name)),
            disk.get(offset!(disk_name) + 8),
            disk.get(offset!(disk_name) + 16),
            disk.get(offset!(disk_name) + 24),
        ],
    };
    let _ = DISKS.insert(&block::device_of(key.what), &name, 0);
    flow(&BLOCK_IO, Map::BlockIo, key)
}

#[inline(always)]
fn under_way(request: Object) -> Option<&'static mut Request> {
    // SAFETY: freed by the kernel only after the program has ended; one CPU at a time has a request.
    REQUESTS
        .get_ptr_mut(&(request.0 as u64))
        .and_then(|state| unsafe { state.as_mut() })
}

/// Begins to follow a request, if it is for the target.
#[inline(always)]
fn begin(request: Object, queued: u64, issued: u64) {
    let Some(what) = what_of(request) else { return };
    let Some(owner) = owner_of(request) else {
        return;
    };
    let state = Request {
        owner,
        what,
        queued,
        issued,
    };
    if REQUESTS.insert(&(request.0 as u64), &state, 0).is_err() {
        dropped(Map::Requests);
    }
}

/// For whom a request is that is seen for the first time; `None` when that is not the target.
#[inline(always)]
fn owner_of(_request: Object) -> Option<Owner> {
    current_owner().or(unknown(0))
}

/// Of whom nothing but the cgroup is known.
#[inline(always)]
fn unknown(cgroup: u64) -> Option<Owner> {
    (config!(scope) == scope::NODE).then_some(Owner {
        start_boottime: cgroup,
        pid: 0,
        tid: 0,
    })
}

#[inline(always)]
fn disk_of(request: Object) -> Object {
    request
        .object(offset!(request_q))
        .object(offset!(queue_disk))
}

/// Device and operation as /proc/diskstats counts them; `None` for the driver's own commands.
#[inline(always)]
fn what_of(request: Object) -> Option<u64> {
    let op = request.get::<u32>(offset!(request_cmd_flags)) & OP_MASK;
    let disk = disk_of(request);
    if op >= OP_DRIVER || disk.is_null() {
        return None;
    }
    let op = match op {
        OP_DISCARD => op::DISCARD,
        OP_FLUSH => op::FLUSH,
        _ if op & 1 != 0 => op::WRITE,
        _ => op::READ,
    };
    let major: u32 = disk.get(offset!(disk_major));
    let minor: u32 = disk.get(offset!(disk_first_minor));
    Some(block::what(major.into(), minor.into(), op))
}
