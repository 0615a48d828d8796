//! Block I/O: requests from their creation to their completion, and their owners.
//!
//! The owner is found when a request is first seen, in the context of the submitter. Its
//! completion, in any context, finds the owner in `REQUESTS`. Requests that ask for a flush are
//! seen too late: the kernel (block/blk-flush.c) holds them back and sends flushes of its own for
//! them. Their bios are seen in time.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    atomic::add,
    kernel::{Object, config, ktime, offset, read},
    maps::{count_drop, current},
    per_key::{key, lookup, lookup_or_init, record},
    writeback::{Pages, WORKER, pages_of},
};
use crate::{
    config::scope,
    maps::{DISKS, DiskName, REQUESTS, Requests, TASKS},
    offsets::MISSING,
    per_key::{BlockCounters, BlockIo, CounterKey, Owner, block, block::op},
};

/// A request in flight.
#[repr(C)]
pub struct Request {
    owner: Owner,
    /// [`block::dimension`].
    dimension: u64,
    /// Time of its creation, or of the first hook that saw it if the kernel does not store that.
    queued: u64,
    /// Time of its last issue to the driver; 0 before.
    issued: u64,
    /// `request.start_time_ns`, which identifies the request if its memory was reused.
    start: u64,
    /// Bytes that are not completed.
    left: u64,
    /// Whether `left` is the remainder of the completion in progress.
    partial: u64,
}

/// `REQ_OP_MASK` (include/linux/blk_types.h).
const OP_MASK: u32 = 0xff;
const OP_FLUSH: u32 = 2;
const OP_DISCARD: u32 = 3;
/// The first operation that is a driver's own command.
const OP_DRIVER: u32 = 32;
/// `REQ_FUA | REQ_PREFLUSH`.
const ASKS_FOR_FLUSH: u32 = 1 << 17 | 1 << 18;
/// `BLK_MQ_NO_TAG`.
const NO_TAG: u32 = u32::MAX;

/// A bio gets a request, in the context of the submitter. Argument: the bio.
#[btf_tracepoint(function = "block_getrq")]
pub fn block_getrq(ctx: BtfTracePointContext) -> i32 {
    let bio = Object(ctx.arg(0));
    if asks_for_flush(bio)
        && let Some(owner) = submitter(bio, false, true)
    {
        let now = ktime();
        let request = Request {
            owner,
            dimension: 0,
            queued: now,
            issued: now,
            start: now,
            left: u64::from(bio.get::<u32>(offset!(bio_size))),
            partial: 0,
        };
        if !store(bio, &request) {
            count_drop::<Requests>();
        }
    }
    0
}

/// A request enters a queue. Argument: the request.
#[btf_tracepoint(function = "block_rq_insert")]
pub fn block_rq_insert(ctx: BtfTracePointContext) -> i32 {
    track(Object(ctx.arg(0)), 0);
    0
}

/// A request is issued to the driver, again if the driver was busy. Argument: the request.
#[btf_tracepoint(function = "block_rq_issue")]
pub fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    track(Object(ctx.arg(0)), 1);
    0
}

/// A request was merged into another one. Argument: the request that no longer exists.
#[btf_tracepoint(function = "block_rq_merge")]
pub fn block_rq_merge(ctx: BtfTracePointContext) -> i32 {
    forget(Object(ctx.arg(0)));
    0
}

/// A request, or a part of it, is completed. Arguments: request, error, bytes.
#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    complete(&ctx);
    0
}

/// Runs at the same hook as [`block_rq_complete`]. The kernel does not run a program that is
/// already running on the CPU, so a completion in an interrupt during another one is left to this
/// program. In most cases there is nothing left to do.
#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_nested(ctx: BtfTracePointContext) -> i32 {
    complete(&ctx);
    0
}

#[inline(always)]
fn track(rq: Object, is_issue: u32) {
    let now = ktime();
    let start: u64 = rq.get(offset!(request_start));
    let left = u64::from(rq.get::<u32>(offset!(request_data_len)));
    let mut known = find(rq);
    if let Some(request) = &mut known
        && request.start == start
    {
        if is_issue != 0 {
            request.issued = now;
            request.left = left;
        }
        return;
    }
    let disk = disk_of(rq);
    if let Some(request) = known {
        count_untimed(disk, request);
    }
    let Some(dimension) = dimension_of(rq, disk) else {
        return;
    };
    let Some(owner) = owner_of(rq, dimension) else {
        return;
    };
    let request = Request {
        owner,
        dimension,
        // Includes the time in the submitter's plug, as /proc/diskstats does.
        queued: if start != 0 { start } else { now },
        issued: if is_issue != 0 { now } else { 0 },
        start,
        left,
        partial: 0,
    };
    // Every request is issued, so it is counted once if the map is full.
    if !store(rq, &request) && is_issue != 0 {
        count_drop::<Requests>();
    }
}

/// Counts a request whose memory was reused, which means that no program saw its completion: two
/// nested interrupts, or a program that the kernel did not run. Its times are unknown.
#[inline(always)]
fn count_untimed(disk: Object, request: &Request) {
    if request.issued != 0
        && let Some(entry) = counters_of(disk, &key(request.owner, request.dimension))
    {
        add(&mut entry.counts.bytes, request.left);
        add(&mut entry.counts.ops_untimed, 1);
        add(&mut entry.counts.ops, 1);
    }
}

#[inline(always)]
fn complete(ctx: &BtfTracePointContext) {
    let rq = Object(ctx.arg(0));
    let error: u8 = ctx.arg(1);
    let bytes = u64::from(ctx.arg::<u32>(2));
    let (disk, bio) = (disk_of(rq), rq.object(offset!(request_bio)));
    let Some(request) = find(rq) else {
        if bytes == 0 {
            complete_flush(rq, disk);
        }
        return;
    };
    let left = u64::from(rq.get::<u32>(offset!(request_data_len)));
    // The other of the two programs has already counted this completion.
    if request.partial != 0 && request.left < left {
        return;
    }
    if let Some(entry) = counters_of(disk, &key(request.owner, request.dimension)) {
        add(&mut entry.counts.bytes, bytes);
        if bytes < left {
            request.left = left - bytes;
            request.partial = 1;
        } else {
            count_request(request, entry, error);
        }
    }
    if bytes >= left {
        forget(rq);
        // With its own `end_io`, the request is part of a flush sequence that continues.
        if rq.get::<u64>(offset!(request_end_io)) == 0 && asks_for_flush(bio) {
            forget(bio);
        }
    }
}

#[inline(always)]
fn count_request(request: &Request, entry: &mut BlockCounters, error: u8) {
    let now = ktime();
    let issued = if request.issued == 0 {
        request.queued
    } else {
        request.issued
    };
    let queue = issued.saturating_sub(request.queued);
    let service = now.saturating_sub(issued);
    add(&mut entry.counts.ops, 1);
    if error != 0 {
        add(&mut entry.counts.errors, 1);
    }
    record(&mut entry.queue, queue);
    record(&mut entry.service, service);
}

/// Ends the flush sequence of a request, whose parts were counted. A request without data has no
/// parts: the device got one flush for all waiting requests.
#[inline(always)]
fn complete_flush(rq: Object, disk: Object) {
    let bio = rq.object(offset!(request_biotail));
    if asks_for_flush(bio)
        && let Some(request) = find(bio)
    {
        if request.left == 0
            && let Some(device) = device_of(disk)
            && let Some(entry) = counters_of(
                disk,
                &key(request.owner, block::dimension(device, op::FLUSH)),
            )
        {
            add(&mut entry.counts.flush_requests, 1);
        }
        forget(bio);
    }
}

#[inline(always)]
fn asks_for_flush(bio: Object) -> bool {
    !bio.is_null() && bio.get::<u32>(offset!(bio_opf)) & ASKS_FOR_FLUSH != 0
}

/// The counters with this key. New counters also store the name of the disk.
#[inline(always)]
fn counters_of(disk: Object, key: &CounterKey) -> Option<&'static mut BlockCounters> {
    if let Some(counters) = lookup::<BlockIo>(key) {
        return Some(counters);
    }
    let name = DiskName {
        name: [
            disk.get(offset!(disk_name)),
            disk.get(offset!(disk_name) + 8),
            disk.get(offset!(disk_name) + 16),
            disk.get(offset!(disk_name) + 24),
        ],
    };
    // If the map is full, the disk is reported by its number.
    let _ = DISKS.insert(&block::device_of(key.dimension), &name, 0);
    lookup_or_init::<BlockIo>(key)
}

/// The entry of a `struct request` or a `struct bio`.
#[inline(always)]
fn find(object: Object) -> Option<&'static mut Request> {
    find_at(object.0 as u64)
}

#[inline(always)]
fn find_at(address: u64) -> Option<&'static mut Request> {
    // SAFETY: freed by the kernel only after the program has ended. One CPU at a time works on a
    // request.
    REQUESTS
        .get_ptr_mut(&address)
        .and_then(|request| unsafe { request.as_mut() })
}

#[inline(always)]
fn store(object: Object, request: &Request) -> bool {
    REQUESTS.insert(&(object.0 as u64), request, 0).is_ok()
}

#[inline(always)]
fn forget(object: Object) {
    let _ = REQUESTS.remove(&(object.0 as u64));
}

/// The owner of a new request; `None` if it is outside the target.
#[inline(always)]
fn owner_of(rq: Object, dimension: u64) -> Option<Owner> {
    let op = block::op_of(dimension);
    if op == op::FLUSH {
        return flush_owner(rq);
    }
    let bio = rq.object(offset!(request_bio));
    if asks_for_flush(bio) {
        // The request can have been held back and sent by a worker.
        return find(bio).map(|request| request.owner).or(unknown(0));
    }
    submitter(bio, true, op == op::WRITE)
}

/// The owner of a bio; with `chain`, of the request that begins with it. For writeback it is the
/// process that has dirtied the pages, otherwise the running task. A worker acts for another task,
/// which is unknown.
#[inline(always)]
fn submitter(bio: Object, chain: bool, write: bool) -> Option<Owner> {
    let mut owner = Owner::UNKNOWN;
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

/// An owner of which only the cgroup is known. Counted only if the target is the node.
#[inline(always)]
fn unknown(cgroup: u64) -> Option<Owner> {
    (config!(scope) == scope::NODE).then_some(Owner {
        start_boottime: cgroup,
        pid: 0,
        tid: 0,
    })
}

/// The cgroup to which the kernel accounts a bio; 0 if there is none.
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

/// The owner of the first request that waits for a flush. The kernel sends one flush for all
/// waiting requests, with the tag of the first (`blk_kick_flush`).
#[inline(always)]
fn flush_owner(rq: Object) -> Option<Owner> {
    // struct list_head
    const LIST_HEAD: u32 = 16;
    let queue = rq.object(offset!(request_hctx)).object(offset!(hctx_fq));
    let link = if offset!(request_flush_list) == MISSING {
        offset!(request_queuelist)
    } else {
        offset!(request_flush_list)
    };
    let tag: u32 = rq.get(offset!(request_internal_tag));
    let (tag, tag_offset) = if tag == NO_TAG {
        (rq.get(offset!(request_tag)), offset!(request_tag))
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
        let first_tag = read((first + u64::from(tag_offset)) as *const u32);
        let bio = read((first + u64::from(offset!(request_biotail))) as *const u64);
        if first_tag == Some(tag)
            && let Some(bio) = bio
            && let Some(request) = find_at(bio)
        {
            return Some(request.owner);
        }
        list += 1;
    }
    unknown(0)
}

#[inline(always)]
fn disk_of(rq: Object) -> Object {
    rq.object(offset!(request_q)).object(offset!(queue_disk))
}

/// Device and operation as in /proc/diskstats; `None` for a driver's own commands.
#[inline(always)]
fn dimension_of(rq: Object, disk: Object) -> Option<u64> {
    let op = rq.get::<u32>(offset!(request_cmd_flags)) & OP_MASK;
    let op = match op {
        OP_DRIVER.. => return None,
        OP_DISCARD => op::DISCARD,
        OP_FLUSH => op::FLUSH,
        _ if op & 1 != 0 => op::WRITE,
        _ => op::READ,
    };
    Some(block::dimension(device_of(disk)?, op))
}

/// Major and minor number of the whole disk; `None` if it has not been added yet.
#[inline(always)]
fn device_of(disk: Object) -> Option<u64> {
    if disk.is_null() {
        return None;
    }
    let major: u32 = disk.get(offset!(disk_major));
    let minor: u32 = disk.get(offset!(disk_first_minor));
    Some(block::device(major.into(), minor.into()))
}
