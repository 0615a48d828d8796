//! Fork, exec and exit of the target's processes, and moves between cgroups.

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
    atomic::{add, decrement},
    environment,
    kernel::{Object, Task, config, copy, offset},
    maps::{control, count_drop, counters, process},
    memory::peak_resident,
    net::messages,
    per_key::raise_peak,
    scratch::{ARGS_MAX, scratch},
    target::{Followed, FoundBy, follow, in_cgroup},
};
use crate::{
    config::{arming, scope},
    event::{self, Exec, Fork, ProcessEntry, ThreadEnd},
    histogram::{BUCKETS, Histogram},
    maps::{EVENTS, Events, PROCESSES, TASKS},
    record::{Totals, state},
};

/// A task is created; the current task is its parent. Arguments: parent, child.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn process_fork(ctx: BtfTracePointContext) -> i32 {
    let parent = Task(Object(ctx.arg(0)));
    let child = Task(Object(ctx.arg(1)));
    let in_target = match config!(scope) {
        scope::NODE => true,
        scope::CGROUP => in_cgroup(child),
        scope::JOB => TASKS.get(parent).is_some() || in_cgroup(child),
        _ => TASKS.get(parent).is_some(),
    };
    let is_process = child.tid() == child.tgid();
    if in_target {
        if follow(child, FoundBy::Fork) && is_process {
            report_fork(event::FORK, parent, child);
        }
    } else if is_process
        && config!(scope) != scope::CGROUP
        && control().is_some_and(|control| control.arming != arming::DONE)
    {
        report_fork(event::OUT_OF_SCOPE_FORK, parent, child);
    }
    0
}

#[inline(always)]
fn report_fork(kind: u32, parent: Task, child: Task) {
    let (uid, permissions) = child.user(child.memory());
    let mut fork = Fork {
        kind,
        pid: child.visible_pid(),
        ppid: parent.visible_pid(),
        uid,
        permissions,
        start_boottime: child.start(),
        parent_start_boottime: parent.leader().start(),
        comm: [0; 16],
    };
    child.comm(&mut fork.comm);
    send(
        &raw const fork,
        size_of::<Fork>() as u64,
        Wakeup::WhenHalfFull,
    );
}

/// A process runs another program. Arguments: task, old pid, `struct linux_binprm`.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn process_exec(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(0)));
    let Some(entry) = TASKS.get(task) else {
        return 0;
    };
    let (mm, signal) = (task.memory(), task.signal());
    // An exec by any thread makes it the leader.
    entry.owner.tid = entry.owner.pid;
    messages::set_owner(task, entry.owner);
    let Some(scratch) = scratch() else { return 0 };
    let buffer = &mut scratch.exec;
    let header = &mut buffer.header;
    header.kind = event::EXEC;
    header.pid = task.visible_pid();
    header.start_boottime = task.leader().start();
    (header.uid, header.permissions) = task.user(mm);
    task.comm(&mut header.comm);
    header.path[0] = 0;
    let binprm = Object(ctx.arg(2));
    let interpreter: *const u8 = binprm.get(offset!(binprm_interp));
    // SAFETY: the helper checks the address and terminates the string. After an error it is empty.
    let _ = unsafe { bpf_probe_read_kernel_str_bytes(interpreter, &mut header.path) };

    let start: u64 = mm.get(offset!(mm_arg_start));
    let end: u64 = mm.get(offset!(mm_arg_end));
    let total = end.saturating_sub(start);
    header.args_total = total;
    header.max_rss = signal.get(offset!(signal_maxrss));
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
        Wakeup::WhenHalfFull,
    );
    environment::report(task, mm);
    0
}

/// The current task ends, and still has its memory; not attached on kernels that have taken it by
/// then. Arguments: task, whether it is the last thread of its process.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn process_exit(ctx: BtfTracePointContext) -> i32 {
    let is_last: u64 = ctx.arg(1);
    let task = Task(Object(ctx.arg(0)));
    if is_last == 0 || TASKS.get(task).is_none() {
        return 0;
    }
    if let Some(entry) = process(task.tgid()) {
        entry.peak_rss = peak_resident(task);
    }
    0
}

/// A task was moved to another cgroup. Arguments: cgroup, path, task, threadgroup.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroup_attach(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(2)));
    let (member, followed) = (in_cgroup(task), TASKS.get(task).is_some());
    // A process that leaves the cgroup of a job is still a descendant of the job's processes.
    if member != followed && (member || config!(scope) == scope::CGROUP) {
        let moved = [event::CGROUP_MOVE, 0];
        send(&raw const moved, size_of_val(&moved) as u64, Wakeup::Now);
    }
    0
}

/// Adds a thread that leaves the CPU for the last time to its process. The last thread ends the
/// process.
#[inline(always)]
pub fn end_thread(task: Task, entry: Followed, now: u64) {
    messages::report_of(task);
    let Some(scratch) = scratch() else { return };
    let end = &mut scratch.end;
    task.totals(&mut end.usage.totals);
    entry.totals(&mut end.usage.totals);

    // Before the sums, so that a reading at this moment misses the thread once, but never counts it
    // twice.
    entry.state = state::ACCUMULATED;
    let tgid = task.tgid();
    let Some(process) = process(tgid) else { return };
    accumulate(process, &end.usage.totals, &entry.runqueue);

    if config!(threads) != 0 {
        end.kind = event::THREAD_END;
        end.pid = process.pid;
        end.tid = task.visible_tid();
        end.reserved = 0;
        end.start_boottime = process.start_boottime;
        end.thread_start_boottime = task.start();
        copy(&mut end.usage.runqueue, &entry.runqueue);
        send(
            &raw const *end,
            size_of::<ThreadEnd>() as u64,
            Wakeup::WhenHalfFull,
        );
    }
    if decrement(&mut process.tasks) == 0 {
        end_process(task, tgid, process, now);
    }
}

#[inline(always)]
fn end_process(task: Task, tgid: u32, entry: &mut ProcessEntry, now: u64) {
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
    (entry.uid, entry.permissions) = task.user(task.memory());
    entry.end = now;
    leader.comm(&mut entry.comm);
    let is_last = counters().is_some_and(|counters| decrement(&mut counters.live) == 0);
    let wakeup = if is_last {
        Wakeup::Now
    } else {
        Wakeup::WhenHalfFull
    };
    send(&raw const *entry, size_of::<ProcessEntry>() as u64, wakeup);
    let _ = PROCESSES.remove(&tgid);
}

/// Adds an ended thread to its process. Several threads can end at the same time.
#[inline(always)]
fn accumulate(process: &mut ProcessEntry, totals: &Totals, runqueue: &Histogram) {
    process.ended.totals.add_atomically(totals);
    if config!(sched) == 0 || runqueue.is_empty() {
        return;
    }
    let ended = &mut process.ended.runqueue;
    if let Some(control) = control() {
        let max = runqueue.max_in(control.epoch);
        raise_peak(ended, control.epoch, max);
    }
    add(&mut ended.sum, runqueue.sum);
    let mut bucket = 0;
    while bucket < BUCKETS {
        let count = runqueue.buckets[bucket];
        if count != 0 {
            add(&mut ended.buckets[bucket], count);
        }
        bucket += 1;
    }
}

/// When the profiler is woken to read the ring buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// With this event.
    Now,
    /// When the ring buffer is half full.
    WhenHalfFull,
}

/// Puts an event into the ring buffer, or counts it as dropped.
#[inline(always)]
pub fn send<T>(event: *const T, size: u64, wakeup: Wakeup) {
    const BPF_RB_AVAIL_DATA: u64 = 0;
    let events = (&raw const EVENTS).cast_mut().cast();
    // SAFETY: a map, which is valid.
    let used = unsafe { bpf_ringbuf_query(events, BPF_RB_AVAIL_DATA) };
    let flags = if wakeup == Wakeup::Now || used > u64::from(config!(events_wakeup)) {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    // SAFETY: the verifier checks that `size` bytes at `event` are valid.
    let result =
        unsafe { bpf_ringbuf_output(events, event.cast_mut().cast(), size, u64::from(flags)) };
    if result != 0 {
        count_drop::<Events>();
    }
}
