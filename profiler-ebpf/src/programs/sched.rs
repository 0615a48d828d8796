//! Time on CPU, in the run queue and asleep.
//!
//! What the scheduler keeps itself (time on CPU, run-queue delay, switches, migrations) is read from the task at
//! each reading and at its end; these hooks add what it does not keep: time asleep, wakeups, the histogram
//! of run-queue latency, and when the present state began.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    kernel::{Object, Task, config, ktime, offset},
    lifecycle,
    maps::{TASKS, control, process},
    per_key::bucket,
    target::{Finder, Followed, asleep, follow},
};
use crate::wire::{EpochMax, TaskState, state};

/// `TASK_DEAD`: the switch away from a task that never comes back.
const TASK_DEAD: u32 = 0x80;

/// Every context switch. Arguments: preempt, prev, next, `prev_state`.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let prev = Task(Object(ctx.arg(1)));
    let next = Task(Object(ctx.arg(2)));
    let mut now = 0;
    if let Some(entry) = TASKS.get(prev) {
        now = ktime();
        left(&ctx, prev, entry, now);
    }
    if let Some(entry) = TASKS.get(next) {
        // One clock read per switch: it costs as much as the rest.
        if now == 0 {
            now = ktime();
        }
        if config!(sched) != 0 && entry.state != state::RUNNING {
            // Also from a sleep without wakeup: a signal was pending, so the task stayed in the queue.
            waited(entry, now);
        }
        entry.state = state::RUNNING;
        entry.since = now;
        entry.runqueue_clock = next.runqueue_clock();
    }
    0
}

/// Only this task's switches write its histogram: no atomics.
#[inline(always)]
fn waited(entry: &mut TaskState, now: u64) {
    let Some(control) = control() else { return };
    let ns = now.saturating_sub(entry.since);
    let histogram = &mut entry.runqueue;
    let peak = EpochMax(histogram.peak);
    if !peak.is_of(control.epoch) {
        histogram.previous_peak = histogram.peak;
        histogram.peak = EpochMax::new(control.epoch, ns).0;
    } else if ns > peak.ns() {
        histogram.peak = EpochMax::new(control.epoch, ns).0;
    }
    histogram.sum += ns;
    histogram.buckets[bucket(ns)] += 1;
}

#[inline(always)]
fn left(ctx: &BtfTracePointContext, prev: Task, entry: Followed, now: u64) {
    let prev_state: u32 = if config!(has_prev_state) != 0 {
        ctx.arg(3)
    } else {
        prev.0.get(offset!(task_state))
    };
    let preempted: u64 = ctx.arg(0);
    entry.since = now;
    if preempted & 0xff != 0 || prev_state == 0 {
        entry.state = state::QUEUED;
    } else if prev_state & TASK_DEAD != 0 {
        lifecycle::thread_ends(prev, entry, now);
    } else {
        entry.state = asleep(prev_state);
    }
}

/// A task is made ready. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup")]
pub fn sched_wakeup(ctx: BtfTracePointContext) -> i32 {
    wakeup(&ctx)
}

/// A new task is made ready for the first time. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup_new")]
pub fn sched_wakeup_new(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(0)));
    // The workers of io_uring are threads of the process, but no fork makes them (kernel/fork.c, create_io_thread).
    if TASKS.get(task).is_none() && process(task.tgid()).is_some() {
        follow(task, Finder::Fork);
    }
    wakeup(&ctx)
}

#[inline(always)]
fn wakeup(ctx: &BtfTracePointContext) -> i32 {
    if let Some(entry) = TASKS.get(Task(Object(ctx.arg(0)))) {
        woken(entry);
    }
    0
}

#[inline(always)]
fn woken(entry: Followed) {
    entry.wakeups += 1;
    if entry.state == state::RUNNING || entry.state == state::QUEUED {
        return;
    }
    let now = ktime();
    let slept = now.saturating_sub(entry.since);
    if entry.state == state::SLEEPING {
        entry.sleep += slept;
    } else if entry.state == state::BLOCKED {
        entry.blocked += slept;
    }
    entry.state = state::QUEUED;
    entry.since = now;
}
