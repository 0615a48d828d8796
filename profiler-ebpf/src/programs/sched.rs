//! Time on CPU, in the run queue and asleep.
//!
//! What the scheduler keeps itself (time on CPU, run-queue delay, switches, migrations) is read from the task at
//! each reading and at its end; these hooks add what it does not keep: time asleep, wakeups, the histogram
//! of run-queue latency, and when the present state began.

use aya_ebpf::{
    helpers::generated::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{
    kernel::{Object, Task, config, offset},
    lifecycle,
    maps::{TASKS, control},
    target::{Followed, asleep},
};
use crate::wire::{BUCKETS, Histogram, state};

/// `TASK_DEAD`: the switch away from a task that never comes back.
const TASK_DEAD: u32 = 0x80;

/// Every context switch. Arguments: preempt, prev, next, `prev_state`.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let prev = Task(Object(ctx.arg(1)));
    let next = Task(Object(ctx.arg(2)));
    let leaving = TASKS.get(prev);
    let coming = TASKS.get(next);
    if leaving.is_none() && coming.is_none() {
        return 0;
    }
    // SAFETY: a helper without preconditions.
    let now = unsafe { bpf_ktime_get_ns() };

    if let Some(entry) = leaving {
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
    if let Some(entry) = coming {
        if config!(sched) != 0 && entry.state != state::RUNNING {
            // Also from a sleep without wakeup: a signal was pending, so the task stayed in the queue.
            waited(&mut entry.runqueue, now.saturating_sub(entry.since));
        }
        entry.state = state::RUNNING;
        entry.since = now;
        entry.exec_start = next.0.get(offset!(task_exec_start));
    }
    0
}

/// A task is made ready. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup")]
pub fn sched_wakeup(ctx: BtfTracePointContext) -> i32 {
    wakeup(&ctx)
}

/// A new task is made ready for the first time. Argument: the task.
#[btf_tracepoint(function = "sched_wakeup_new")]
pub fn sched_wakeup_new(ctx: BtfTracePointContext) -> i32 {
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
    let slept = match entry.state {
        state::SLEEPING => &mut entry.sleep,
        state::BLOCKED => &mut entry.blocked,
        // Birth: nothing to add.
        state::NEW => &mut 0,
        // Woken while it still ran.
        _ => return,
    };
    // SAFETY: a helper without preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    *slept += now.saturating_sub(entry.since);
    entry.state = state::QUEUED;
    entry.since = now;
}

/// Adds one wait of `ns` to a histogram that only this task's switches write.
#[inline(always)]
fn waited(histogram: &mut Histogram, ns: u64) {
    let Some(control) = control() else { return };
    let pass = control.pass;
    if histogram.pass != pass {
        histogram.previous_max = histogram.max;
        histogram.previous_pass = histogram.pass;
        histogram.max = 0;
        histogram.pass = pass;
    }
    if ns > histogram.max {
        histogram.max = ns;
    }
    histogram.sum += ns;
    let bucket = log2(ns) as usize;
    let bucket = if bucket < BUCKETS {
        bucket
    } else {
        BUCKETS - 1
    };
    histogram.buckets[bucket] += 1;
}

/// Index of the highest bit that is set; BPF has no instruction for it.
#[inline(always)]
fn log2(value: u64) -> u32 {
    let mut rest = value;
    let mut log = 0;
    macro_rules! halve {
        ($($bits:literal)*) => {$(
            if rest >> $bits != 0 {
                rest >>= $bits;
                log += $bits;
            }
        )*};
    }
    halve!(32 16 8 4 2 1);
    let _ = rest;
    log
}
