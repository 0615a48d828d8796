//! Time on CPU, in the run queue and asleep.
//!
//! Values that the scheduler maintains (time on CPU, run-queue delay, switches, migrations) are
//! read from the task at each reading and at its end. These hooks add the others: time asleep,
//! wakeups, the run-queue histogram, and the start of the present state.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    kernel::{Object, Task, config, ktime, offset},
    lifecycle,
    maps::{control, process},
    target::{Followed, FoundBy, follow, sleep_state},
    task_storage::TaskState,
};
use crate::{
    histogram::{EpochMax, bucket},
    maps::TASKS,
    record::state,
};

/// `TASK_DEAD`: the state of a task that is switched out for the last time.
const TASK_DEAD: u32 = 0x80;

/// A context switch. Arguments: preempt, prev, next, `prev_state`.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let prev = Task(Object(ctx.arg(1)));
    let next = Task(Object(ctx.arg(2)));
    let mut now = 0;
    if let Some(entry) = TASKS.get(prev) {
        now = ktime();
        switch_out(&ctx, prev, entry, now);
    }
    if let Some(entry) = TASKS.get(next) {
        // Reading the clock costs as much as the rest, so it is read once per switch.
        if now == 0 {
            now = ktime();
        }
        if config!(sched) != 0 && entry.state != state::RUNNING {
            // A task with a pending signal stays in the queue, so that no wakeup ends its sleep.
            record_wait(entry, now);
        }
        entry.state = state::RUNNING;
        entry.since = now;
        entry.runqueue_clock = next.runqueue_clock();
    }
    0
}

/// Adds a run-queue wait. Only switches of the same task write its histogram, so nothing is atomic.
#[inline(always)]
fn record_wait(entry: &mut TaskState, now: u64) {
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
fn switch_out(ctx: &BtfTracePointContext, prev: Task, entry: Followed, now: u64) {
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
        lifecycle::end_thread(prev, entry, now);
    } else {
        entry.state = sleep_state(prev_state);
    }
}

/// A task is woken. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup")]
pub fn sched_wakeup(ctx: BtfTracePointContext) -> i32 {
    count_wakeup(&ctx)
}

/// A new task is woken for the first time. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup_new")]
pub fn sched_wakeup_new(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(0)));
    // Workers of io_uring are threads that are created without a fork (kernel/fork.c,
    // create_io_thread).
    if TASKS.get(task).is_none() && process(task.tgid()).is_some() {
        follow(task, FoundBy::Fork);
    }
    count_wakeup(&ctx)
}

#[inline(always)]
fn count_wakeup(ctx: &BtfTracePointContext) -> i32 {
    if let Some(entry) = TASKS.get(Task(Object(ctx.arg(0)))) {
        end_sleep(entry);
    }
    0
}

#[inline(always)]
fn end_sleep(entry: Followed) {
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
