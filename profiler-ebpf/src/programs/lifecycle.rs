//! Births, execs and ends of the target's processes.

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_probe_read_kernel_str_bytes,
        generated::{bpf_probe_read_user, bpf_ringbuf_output, bpf_ringbuf_query},
    },
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};

use super::{
    environment,
    kernel::{Object, Task, config, copy, offset},
    maps::{
        EVENTS, EVENTS_SIZE, PROCESSES, TASKS, add, control, counters, decrement, dropped, process,
        scratch,
    },
    per_key::raise,
    target::{Finder, Followed, follow, in_cgroup},
};
use crate::wire::{
    ARGS_MAX, BUCKETS, Birth, Exec, Histogram, Map, Process, ThreadEnd, Totals, event, scope, state,
};

/// A task is born; `current` is its parent. Arguments: parent, child.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn process_fork(ctx: BtfTracePointContext) -> i32 {
    let parent = Task(Object(ctx.arg(0)));
    let child = Task(Object(ctx.arg(1)));
    let of_target = match config!(scope) {
        scope::NODE => true,
        scope::CGROUP => in_cgroup(child),
        scope::JOB => TASKS.get(parent).is_some() || in_cgroup(child),
        _ => TASKS.get(parent).is_some(),
    };
    let is_process = child.tid() == child.tgid();
    if of_target {
        if follow(child, Finder::Fork) && is_process {
            born(event::BIRTH, parent, child);
        }
    } else if is_process
        && config!(scope) != scope::CGROUP
        && control().is_some_and(|c| c.arming != 0)
    {
        born(event::OUT_OF_SCOPE_FORK, parent, child);
    }
    0
}

#[inline(always)]
fn born(event: u32, parent: Task, child: Task) {
    let mut birth = Birth {
        event,
        pid: child.visible_pid(),
        ppid: parent.visible_pid(),
        uid: child.uid(),
        start_boottime: child.start(),
        parent_start_boottime: parent.leader().start(),
        comm: [0; 16],
    };
    child.comm(&mut birth.comm);
    send(&raw const birth, size_of::<Birth>() as u64, false);
}

/// A process runs another program. Arguments: task, old pid, `struct linux_binprm`.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn process_exec(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(0)));
    let Some(entry) = TASKS.get(task) else {
        return 0;
    };
    // Whichever thread it was, it is the first one now.
    entry.owner.tid = entry.owner.pid;
    let Some(scratch) = scratch() else { return 0 };
    let buffer = &mut scratch.exec;
    let header = &mut buffer.header;
    header.event = event::EXEC;
    header.pid = task.visible_pid();
    header.start_boottime = task.leader().start();
    header.uid = task.uid();
    task.comm(&mut header.comm);
    header.path[0] = 0;
    let binprm = Object(ctx.arg(2));
    let interpreter: *const u8 = binprm.get(offset!(binprm_interp));
    // SAFETY: the helper checks the address and ends the string; what it cannot read is left empty.
    let _ = unsafe { bpf_probe_read_kernel_str_bytes(interpreter, &mut header.path) };

    let mm = task.0.object(offset!(task_mm));
    let start: u64 = mm.get(offset!(mm_arg_start));
    let end: u64 = mm.get(offset!(mm_arg_end));
    let total = end.saturating_sub(start);
    header.args_total = total;
    let mut length = if total < ARGS_MAX as u64 {
        total
    } else {
        ARGS_MAX as u64 - 1
    };
    length &= ARGS_MAX as u64 - 1;
    // SAFETY: the helper checks the address, which is in the memory of the current task.
    let read = unsafe {
        bpf_probe_read_user(
            buffer.args.as_mut_ptr().cast(),
            length as u32,
            start as *const _,
        )
    };
    if read != 0 {
        length = 0;
    }
    buffer.header.args_len = length as u32;
    send(
        &raw const buffer.header,
        size_of::<Exec>() as u64 + length,
        false,
    );
    environment::report(task, mm);
    0
}

/// Membership in cgroups changed. Arguments: cgroup, path, task, threadgroup.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroup_attach(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(2)));
    let (member, followed) = (in_cgroup(task), TASKS.get(task).is_some());
    // Whoever leaves the cgroup of a job is still its descendant.
    if member != followed && (member || config!(scope) == scope::CGROUP) {
        let moved = [event::CGROUP_MOVE, 0];
        send(&raw const moved, size_of_val(&moved) as u64, true);
    }
    0
}

/// The thread leaves the CPU for good: its counters go to its process, whose last thread ends it.
#[inline(always)]
pub fn thread_ends(task: Task, entry: Followed, now: u64) {
    let Some(scratch) = scratch() else { return };
    let end = &mut scratch.end;
    task.totals(&mut end.totals);
    entry.totals(&mut end.totals);

    // Before the sums: a reading in between then misses the thread once, but never counts it twice.
    entry.state = state::ACCUMULATED;
    let tgid = task.tgid();
    let Some(process) = process(tgid) else { return };
    fold(process, &end.totals, &entry.runqueue);

    if config!(threads) != 0 {
        end.event = event::THREAD_END;
        end.pid = process.pid;
        end.tid = task.visible_tid();
        end.reserved = 0;
        end.start_boottime = process.start_boottime;
        end.thread_start_boottime = task.start();
        copy(&mut end.runqueue, &entry.runqueue);
        send(&raw const *end, size_of::<ThreadEnd>() as u64, false);
    }
    if decrement(&mut process.tasks) == 0 {
        process_ends(task, tgid, process, now);
    }
}

#[inline(always)]
fn process_ends(task: Task, tgid: u32, entry: &mut Process, now: u64) {
    const SIGNAL_GROUP_EXIT: u32 = 0x4;
    let leader = task.leader();
    let signal = task.signal();
    // As wait(2) reports it (kernel/exit.c, wait_task_zombie).
    entry.exit_code = if signal.get::<u32>(offset!(signal_flags)) & SIGNAL_GROUP_EXIT != 0 {
        signal.get(offset!(signal_group_exit_code))
    } else {
        leader.0.get(offset!(task_exit_code))
    };
    entry.max_rss = signal.get(offset!(signal_maxrss));
    entry.uid = task.uid();
    entry.end = now;
    leader.comm(&mut entry.comm);
    let last = counters().is_some_and(|counters| decrement(&mut counters.live) == 0);
    send(&raw const *entry, size_of::<Process>() as u64, last);
    let _ = PROCESSES.remove(&tgid);
}

/// Adds an ended thread to its process; threads may end on several CPUs at once.
#[inline(always)]
fn fold(process: &mut Process, totals: &Totals, runqueue: &Histogram) {
    macro_rules! add_all {
        ($($field:ident)*) => {$(add(&mut process.ended.$field, totals.$field);)*};
    }
    add_all!(utime stime oncpu run_delay run_count sleep blocked nvcsw nivcsw wakeups migrations min_flt maj_flt
        rchar wchar syscr syscw read_bytes write_bytes cancelled_write_bytes
        unix_tx_bytes unix_rx_bytes unix_tx_calls unix_rx_calls);
    if config!(sched) == 0 || runqueue.sum == 0 {
        return;
    }
    let ended = &mut process.ended_runqueue;
    add(&mut ended.sum, runqueue.sum);
    let mut bucket = 0;
    while bucket < BUCKETS {
        let count = runqueue.buckets[bucket];
        if count != 0 {
            add(&mut ended.buckets[bucket], count);
        }
        bucket += 1;
    }
    if let Some(control) = control() {
        let max = runqueue.max_in(control.epoch);
        raise(ended, control.epoch, max);
    }
}

/// Puts an event into the ring buffer; wakes the controller only when `now` or when half of the buffer is full.
#[inline(always)]
pub fn send<T>(event: *const T, size: u64, now: bool) {
    const BPF_RB_AVAIL_DATA: u64 = 0;
    let events = &raw const EVENTS;
    // SAFETY: `size` bytes at `event` are valid, which the verifier checks.
    let result = unsafe {
        let used = bpf_ringbuf_query(events.cast_mut().cast(), BPF_RB_AVAIL_DATA);
        let flags = if now || used > EVENTS_SIZE / 2 {
            BPF_RB_FORCE_WAKEUP
        } else {
            BPF_RB_NO_WAKEUP
        };
        bpf_ringbuf_output(
            events.cast_mut().cast(),
            event.cast_mut().cast(),
            size,
            u64::from(flags),
        )
    };
    if result != 0 {
        dropped(Map::Events);
    }
}
