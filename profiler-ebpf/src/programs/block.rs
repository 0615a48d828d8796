//! Block I/O: requests from their way into the queue to their completion, charged to whom they are for.
//!
//! The first that is seen of a request, in the context of who submits it, tells the owner; the completion, in any
//! context, finds it in [`REQUESTS`]. Requests that ask for a flush are seen too late for that: the kernel (block/
//! blk-flush.c) keeps them back, and sends flushes of its own for them. Their bios are seen in time.

use aya_ebpf::{
    btf_maps::HashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{
    kernel::{Object, config, ktime, offset, read},
    maps::{TASKS, add, current, dropped},
    per_key::{PerKeyCounters, count, key, lookup_or_init},
    writeback::{Pages, WORKER, pages_of},
};
use crate::{
    offsets::MISSING,
    per_key::{BlockCounters, CounterKey, DiskName, block, block::op},
    wire::{Map, Owner, scope},
};

/// Block I/O by process and [`block::dimension`].
#[btf_map]
static BLOCK_IO: PerKeyCounters<BlockCounters> = HashMap::new();

/// Requests under way by their address, and bios that ask for a flush by theirs. Its memory is taken at once: an entry
/// comes and goes with every request, on different CPUs.
#[btf_map]
static REQUESTS: HashMap<u64, Request, 1> = HashMap::new();

/// Names of the disks that have flows, by device number.
#[btf_map]
static DISKS: HashMap<u64, DiskName, 1024, 1> = HashMap::new();

/// A request under way.
#[repr(C)]
struct Request {
    owner: Owner,
    /// [`block::dimension`].
    dimension: u64,
    /// When it was made, or first seen where the kernel does not keep that.
    queued: u64,
    /// When it was given to the driver, the last time; 0 before.
    issued: u64,
    /// `request.start_time_ns`: tells it from the next that has the same memory.
    start: u64,
    /// Bytes that are not done yet.
    left: u64,
    /// 1 when `left` is what the completion that is under way has left.
    partly: u64,
}

/// `REQ_OP_MASK`, and the first operation that is a command of the driver's (include/linux/blk_types.h).
const OP_MASK: u32 = 0xff;
const OP_FLUSH: u32 = 2;
const OP_DISCARD: u32 = 3;
const OP_DRIVER: u32 = 32;
/// `REQ_FUA | REQ_PREFLUSH`.
const ASKS_FOR_FLUSH: u32 = 1 << 17 | 1 << 18;
/// `BLK_MQ_NO_TAG`.
const NO_TAG: u32 = u32::MAX;

/// A bio gets a request, in the context of who submits it. Argument: the bio.
#[btf_tracepoint(function = "block_getrq")]
pub fn block_getrq(ctx: BtfTracePointContext) -> i32 {
    let bio = Object(ctx.arg(0));
    if asks_for_flush(bio)
        && let Some(owner) = submitter(bio, false, true)
    {
        let now = ktime();
        let state = Request {
            owner,
            dimension: 0,
            queued: now,
            issued: now,
            start: now,
            left: u64::from(bio.get::<u32>(offset!(bio_size))),
            partly: 0,
        };
        if !store(bio, &state) {
            dropped(Map::Requests);
        }
    }
    0
}

/// A request goes into a queue. Argument: the request.
#[btf_tracepoint(function = "block_rq_insert")]
pub fn block_rq_insert(ctx: BtfTracePointContext) -> i32 {
    seen(Object(ctx.arg(0)), 0);
    0
}

/// A request goes to the driver; again when the driver had no room. Argument: the request.
#[btf_tracepoint(function = "block_rq_issue")]
pub fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    seen(Object(ctx.arg(0)), 1);
    0
}

/// A request has become part of another. Argument: the one that is no more.
#[btf_tracepoint(function = "block_rq_merge")]
pub fn block_rq_merge(ctx: BtfTracePointContext) -> i32 {
    forget(Object(ctx.arg(0)));
    0
}

/// A request, or a part of it, is done. Arguments: request, error, bytes.
#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    completed(&ctx);
    0
}

/// The same once more: the kernel does not run a program that it has interrupted, so a completion in an interrupt
/// that came during another is left to this one. Mostly there is nothing left to do.
#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_nested(ctx: BtfTracePointContext) -> i32 {
    completed(&ctx);
    0
}

#[inline(always)]
fn seen(request: Object, issued: u32) {
    let now = ktime();
    let start: u64 = request.get(offset!(request_start));
    let left = u64::from(request.get::<u32>(offset!(request_data_len)));
    let mut state = state_of(request);
    if let Some(state) = &mut state
        && state.start == start
    {
        if issued != 0 {
            state.issued = now;
            state.left = left;
        }
        return;
    }
    let disk = disk_of(request);
    if let Some(state) = state {
        unseen(disk, state);
    }
    let Some(dimension) = what_of(request, disk) else {
        return;
    };
    let Some(owner) = owner_of(request, dimension) else {
        return;
    };
    let state = Request {
        owner,
        dimension,
        // With the time in the submitter's plug, as /proc/diskstats has it.
        queued: if start != 0 { start } else { now },
        issued: if issued != 0 { now } else { 0 },
        start,
        left,
        partly: 0,
    };
    // Every request is issued, and finds room then or not.
    if !store(request, &state) && issued != 0 {
        dropped(Map::Requests);
    }
}

/// The memory of a request is another's now, so its completion was missed: two interrupts within one another, or a
/// kernel that did not run the program. How long it took is not known.
#[inline(always)]
fn unseen(disk: Object, state: &Request) {
    if state.issued != 0
        && let Some(entry) = flow_of(disk, &key(state.owner, state.dimension))
    {
        add(&mut entry.counts.bytes, state.left);
        add(&mut entry.counts.untimed, 1);
        add(&mut entry.counts.ops, 1);
    }
}

#[inline(always)]
fn completed(ctx: &BtfTracePointContext) {
    let request = Object(ctx.arg(0));
    let error: u8 = ctx.arg(1);
    let bytes = u64::from(ctx.arg::<u32>(2));
    let Some(state) = state_of(request) else {
        if bytes == 0 {
            flush_done(request);
        }
        return;
    };
    let left = u64::from(request.get::<u32>(offset!(request_data_len)));
    // The other of the two programs was here already.
    if state.partly != 0 && state.left < left {
        return;
    }
    if let Some(entry) = flow_of(disk_of(request), &key(state.owner, state.dimension)) {
        add(&mut entry.counts.bytes, bytes);
        if bytes < left {
            state.left = left - bytes;
            state.partly = 1;
        } else {
            done(state, entry, error);
        }
    }
    if bytes >= left {
        forget(request);
        let bio = request.object(offset!(request_bio));
        // With an `end_io` of its own it is a part of a sequence that goes on.
        if request.get::<u64>(offset!(request_end_io)) == 0 && asks_for_flush(bio) {
            forget(bio);
        }
    }
}

#[inline(always)]
fn done(state: &Request, entry: &mut BlockCounters, error: u8) {
    let now = ktime();
    let issued = if state.issued == 0 {
        state.queued
    } else {
        state.issued
    };
    let queue = issued.saturating_sub(state.queued);
    let service = now.saturating_sub(issued);
    add(&mut entry.counts.ops, 1);
    if error != 0 {
        add(&mut entry.counts.errors, 1);
    }
    count(&mut entry.queue, queue);
    count(&mut entry.service, service);
}

/// A request that asked for a flush is done with its sequence, whose parts were accounted. Without data it had none:
/// the device got a flush for all that waited.
#[inline(always)]
fn flush_done(request: Object) {
    let bio = request.object(offset!(request_biotail));
    if asks_for_flush(bio)
        && let Some(state) = state_of(bio)
    {
        let disk = disk_of(request);
        if state.left == 0
            && let Some(device) = device_of(disk)
            && let Some(entry) =
                flow_of(disk, &key(state.owner, block::dimension(device, op::FLUSH)))
        {
            add(&mut entry.counts.asked, 1);
        }
        forget(bio);
    }
}

#[inline(always)]
fn asks_for_flush(bio: Object) -> bool {
    !bio.is_null() && bio.get::<u32>(offset!(bio_opf)) & ASKS_FOR_FLUSH != 0
}

/// The flow with this key. The disk's name is noted when it is new.
#[inline(always)]
fn flow_of(disk: Object, key: &CounterKey) -> Option<&'static mut BlockCounters> {
    if let Some(entry) = BLOCK_IO.get_ptr_mut(key) {
        // SAFETY: as in `flow`.
        return unsafe { entry.as_mut() };
    }
    let name = DiskName {
        name: [
            disk.get(offset!(disk_name)),
            disk.get(offset!(disk_name) + 8),
            disk.get(offset!(disk_name) + 16),
            disk.get(offset!(disk_name) + 24),
        ],
    };
    // Without room it goes by its number.
    let _ = DISKS.insert(&block::device_of(key.dimension), &name, 0);
    lookup_or_init(&BLOCK_IO, Map::BlockIo, key)
}

/// Of a request or a bio.
#[inline(always)]
fn state_of(object: Object) -> Option<&'static mut Request> {
    state_at(object.0 as u64)
}

#[inline(always)]
fn state_at(address: u64) -> Option<&'static mut Request> {
    // SAFETY: freed by the kernel only after the program has ended; one CPU at a time has a request.
    REQUESTS
        .get_ptr_mut(&address)
        .and_then(|state| unsafe { state.as_mut() })
}

#[inline(always)]
fn store(object: Object, state: &Request) -> bool {
    REQUESTS.insert(&(object.0 as u64), state, 0).is_ok()
}

#[inline(always)]
fn forget(object: Object) {
    let _ = REQUESTS.remove(&(object.0 as u64));
}

/// For whom a request is that is seen for the first time; `None` when that is not the target.
#[inline(always)]
fn owner_of(request: Object, dimension: u64) -> Option<Owner> {
    let op = block::op_of(dimension);
    if op == op::FLUSH {
        return flush_owner(request);
    }
    let bio = request.object(offset!(request_bio));
    if asks_for_flush(bio) {
        // Kept back, perhaps, and sent on by a worker.
        return state_of(bio).map(|state| state.owner).or(unknown(0));
    }
    submitter(bio, true, op == op::WRITE)
}

/// Who submits a bio, or with `chain` the request that begins with it: for pages from the page cache, who dirtied
/// them; otherwise who runs, unless that is a worker, which acts for somebody else.
#[inline(always)]
fn submitter(bio: Object, chain: bool, write: bool) -> Option<Owner> {
    let mut owner = Owner::NOBODY;
    if write && pages_of(bio, chain, &mut owner) == Pages::Owned {
        return Some(owner);
    }
    let task = current();
    if task.0.get::<u32>(offset!(task_flags)) & WORKER != 0 {
        return unknown(cgroup_of(bio));
    }
    match TASKS.get(task) {
        Some(entry) => Some(entry.owner),
        None => unknown(0),
    }
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

/// The cgroup that the kernel charges for a bio; 0 when it charges none.
#[inline(always)]
fn cgroup_of(bio: Object) -> u64 {
    if offset!(bio_blkg) == MISSING || offset!(blkcg_cgroup) == MISSING {
        return 0;
    }
    let blkcg = bio.object(offset!(bio_blkg)).object(offset!(blkg_blkcg));
    let cgroup = blkcg.object(offset!(blkcg_cgroup));
    cgroup
        .object(offset!(cgroup_kn))
        .get(offset!(kernfs_node_id))
}

/// Who asked first for a flush that the kernel now sends for all who have: it takes the tag of the first of them
/// (`blk_kick_flush`).
#[inline(always)]
fn flush_owner(request: Object) -> Option<Owner> {
    // struct list_head
    const LIST_HEAD: u32 = 16;
    let queue = request
        .object(offset!(request_hctx))
        .object(offset!(hctx_fq));
    let link = if offset!(request_flush_list) == MISSING {
        offset!(request_queuelist)
    } else {
        offset!(request_flush_list)
    };
    let tag: u32 = request.get(offset!(request_internal_tag));
    let (tag, tag_at) = if tag == NO_TAG {
        (request.get(offset!(request_tag)), offset!(request_tag))
    } else {
        (tag, offset!(request_internal_tag))
    };
    let mut list = 0;
    while list < 2 {
        let head = queue
            .0
            .wrapping_add((offset!(fq_queues) + list * LIST_HEAD) as usize);
        let first = read(head.cast::<u64>())
            .unwrap_or(0)
            .wrapping_sub(link.into());
        let its_tag = read((first + u64::from(tag_at)) as *const u32);
        let bio = read((first + u64::from(offset!(request_biotail))) as *const u64);
        if its_tag == Some(tag)
            && let Some(bio) = bio
            && let Some(state) = state_at(bio)
        {
            return Some(state.owner);
        }
        list += 1;
    }
    unknown(0)
}

#[inline(always)]
fn disk_of(request: Object) -> Object {
    request
        .object(offset!(request_q))
        .object(offset!(queue_disk))
}

/// Device and operation as /proc/diskstats counts them; `None` for the driver's own commands.
#[inline(always)]
fn what_of(request: Object, disk: Object) -> Option<u64> {
    let op = request.get::<u32>(offset!(request_cmd_flags)) & OP_MASK;
    let op = match op {
        OP_DRIVER.. => return None,
        OP_DISCARD => op::DISCARD,
        OP_FLUSH => op::FLUSH,
        _ if op & 1 != 0 => op::WRITE,
        _ => op::READ,
    };
    Some(block::dimension(device_of(disk)?, op))
}

/// Major and minor number of the whole disk; `None` when there is none yet.
#[inline(always)]
fn device_of(disk: Object) -> Option<u64> {
    if disk.is_null() {
        return None;
    }
    let major: u32 = disk.get(offset!(disk_major));
    let minor: u32 = disk.get(offset!(disk_first_minor));
    Some(block::device(major.into(), minor.into()))
}
