//! Time in the run queue and asleep.
//!
//! Values that the scheduler maintains (time on CPU, run-queue delay, switches, migrations) are
//! read from the task at each reading and at its end. These hooks add the others: time asleep,
//! wakeups, the histogram of waits, and the start of the present state.
//!
//! When a task leaves a CPU, `sched_info` has the time at which it came there and its total wait
//! until then. With the time at which it had left the last CPU, this gives the sleep and the wait
//! between the two, as the scheduler accounts them, without a hook at wakeups and without a clock.
//! A hook at migrations notes the sleep that it accounts as a wait.
//!
//! With `config.wakeups`, wakeups are observed instead, and the histogram has the times from the
//! wakeup to the start on a CPU. It does not need clocks that agree between CPUs.

use core::ptr::write_volatile;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    active::list_active,
    kernel::{Object, Task, config, ktime, offset},
    lifecycle,
    maps::{control, process},
    target::{Followed, FoundBy, follow, sleep_state},
    task_storage::TaskState,
};
use crate::{
    config::Control,
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
    if config!(wakeups) != 0 {
        return switch_observed(&ctx, prev);
    }
    if let Some(entry) = TASKS.get(prev)
        && let Some(control) = control()
    {
        end_absence(prev, entry, control);
        leave(&ctx, prev, entry, control);
    }
    0
}

/// Adds the wait, and the sleep before it, that ended when the task came to the CPU that it now
/// leaves.
#[inline(always)]
fn end_absence(task: Task, entry: &mut TaskState, control: &Control) {
    let now = task.runqueue_clock();
    let run_delay: u64 = task.0.get(offset!(task_run_delay));
    let arrived: u64 = task.0.get(offset!(task_last_arrival));
    let left = entry.since;
    // First, so that a reading at this moment misses the times, but never counts them twice: it
    // reads them in the opposite order.
    // SAFETY: a field of the entry.
    unsafe {
        write_volatile(&raw mut entry.since, now);
    }
    let waited = entry.end_wait(run_delay);
    let slept = arrived.saturating_sub(left).saturating_sub(waited);
    // It was on this CPU when it was found, or it was preempted on its way to sleep: the scheduler
    // does not account such a wait.
    if entry.state == state::RUNNING || arrived < left {
        return;
    }
    if entry.state == state::SLEEPING {
        entry.sleep += slept;
        entry.wakeups += 1;
    } else if entry.state == state::BLOCKED {
        entry.blocked += slept;
        entry.wakeups += 1;
    }
    if config!(sched) != 0 {
        let is_reported = entry.reported == arrived;
        record_wait(entry, waited, is_reported, control);
    }
}

/// Adds a wait. Only switches of the same task write its histogram, so nothing is atomic. A wait
/// that a reading has reported is no peak of the present one.
#[inline(always)]
fn record_wait(entry: &mut TaskState, ns: u64, is_reported: bool, control: &Control) {
    let histogram = &mut entry.runqueue;
    if !is_reported {
        let peak = EpochMax(histogram.peak);
        if !peak.is_of(control.epoch) {
            histogram.previous_peak = histogram.peak;
            histogram.peak = EpochMax::new(control.epoch, ns).0;
        } else if ns > peak.ns() {
            histogram.peak = EpochMax::new(control.epoch, ns).0;
        }
    }
    histogram.sum += ns;
    histogram.buckets[bucket(ns)] += 1;
}

/// Sets the state of a task that leaves its CPU; its last switch ends the thread.
#[inline(always)]
fn leave(ctx: &BtfTracePointContext, task: Task, entry: Followed, control: &Control) {
    let present: u32 = task.0.get(offset!(task_state));
    let state: u32 = if config!(has_prev_state) != 0 {
        ctx.arg(3)
    } else {
        present
    };
    let preempted: u64 = ctx.arg(0);
    // A task with a pending signal does not sleep: the scheduler has set its state back.
    if preempted & 0xff != 0 || state == 0 || present == 0 {
        entry.state = state::QUEUED;
    } else if state & TASK_DEAD != 0 {
        lifecycle::end_thread(task, entry, ktime());
        return;
    } else {
        entry.state = sleep_state(state);
    }
    list_active(task, entry, control);
}

/// A context switch, with `config.wakeups`.
#[inline(always)]
fn switch_observed(ctx: &BtfTracePointContext, prev: Task) -> i32 {
    let next = Task(Object(ctx.arg(2)));
    let Some(control) = control() else {
        return 0;
    };
    let mut now = 0;
    if let Some(entry) = TASKS.get(prev) {
        now = ktime();
        entry.since = now;
        if entry.asleep_in_queue != 0 {
            entry.end_wait(prev.0.get_or_zero(offset!(task_run_delay)));
        }
        leave(ctx, prev, entry, control);
    }
    if let Some(entry) = TASKS.get(next) {
        // Reading the clock costs as much as the rest, so it is read once per switch.
        if now == 0 {
            now = ktime();
        }
        if config!(sched) != 0 && entry.state != state::RUNNING {
            let waited = now.saturating_sub(entry.since);
            record_wait(entry, waited, false, control);
            // Here the end of the sleep is known.
            if entry.asleep_in_queue != 0 {
                entry.run_delay += waited;
            }
        }
        entry.state = state::RUNNING;
        entry.since = now;
        entry.runqueue_clock = next.time_updated();
    }
    0
}

/// A task is moved to another CPU. Arguments: task, CPU.
///
/// Since Linux 6.12, a task that has gone to sleep can remain in the run queue for a while
/// (`sched_delayed`). If it is moved meanwhile, the scheduler puts it into the other run queue as it does
/// with a task that waits, and accounts a wait from then until it comes to a CPU
/// (kernel/sched/core.c, `enqueue_task`).
#[btf_tracepoint(function = "sched_migrate_task")]
pub fn sched_migrate(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(0)));
    if task.0.get::<u8>(offset!(task_sched_delayed)) != 0
        && let Some(entry) = TASKS.get(task)
        && entry.asleep_in_queue == 0
    {
        entry.begin_false_wait(task.0.get_or_zero(offset!(task_run_delay)));
    }
    0
}

/// A task is woken, with `config.wakeups`. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup")]
pub fn sched_wakeup(ctx: BtfTracePointContext) -> i32 {
    if let Some(entry) = TASKS.get(Task(Object(ctx.arg(0)))) {
        end_sleep(entry);
    }
    0
}

/// A new task is woken for the first time. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup_new")]
pub fn sched_wakeup_new(ctx: BtfTracePointContext) -> i32 {
    let task = Task(Object(ctx.arg(0)));
    let found = TASKS.get(task);
    // Workers of io_uring are threads that are created without a fork (kernel/fork.c,
    // create_io_thread).
    let entry = if found.is_none() && process(task.tgid()).is_some() {
        follow(task, FoundBy::Fork);
        TASKS.get(task)
    } else {
        found
    };
    if let Some(entry) = entry {
        if config!(wakeups) != 0 {
            end_sleep(entry);
        } else {
            entry.wakeups += 1;
        }
    }
    0
}

#[inline(always)]
fn end_sleep(entry: &mut TaskState) {
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
