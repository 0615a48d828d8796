//! Iterators over all tasks: `mark` follows those of the target, `sample` reads the followed ones.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_seq_write;

use super::{
    atomic::add,
    kernel::{Object, Task, config, ktime, offset},
    maps::{control, counters, process},
    memory::{open_fds, report_memory, resident},
    namespace::find_namespace,
    per_cpu::find_per_cpu_offsets,
    scratch::scratch,
    target::{FoundBy, follow, in_target, unfollow},
    task_storage::TaskState,
};
use crate::{
    config::{Control, arming, scope},
    event::ProcessEntry,
    histogram::Histogram,
    maps::TASKS,
    offsets::MISSING,
    record::{self, Header, ProcessRecord, ThreadRecord, Unchanged, Usage, state},
};

/// ns between timer interrupts with `CONFIG_HZ=100`, the lowest rate.
const TIMER_PERIOD: u64 = 10_000_000;

/// The `seq_file` and the task of a `struct bpf_iter__task` (kernel/bpf/task_iter.c).
fn arguments(ctx: *mut c_void) -> Option<(Object, Task)> {
    let ctx = Object(ctx.cast());
    let task = ctx.object(8);
    if task.is_null() {
        None
    } else {
        Some((ctx.object(0).object(0), Task(task)))
    }
}

/// Follows every task of the target. To be repeated until no new task is found, because a task can
/// be visited before its parent is followed.
#[unsafe(link_section = "iter/task")]
#[unsafe(no_mangle)]
fn mark(ctx: *mut c_void) -> i32 {
    let Some((_, task)) = arguments(ctx) else {
        return 0;
    };
    if control().is_some_and(|control| control.arming == arming::LEARN) {
        find_per_cpu_offsets();
        find_namespace();
        return 0;
    }
    if in_target(task) {
        if follow(task, FoundBy::Mark)
            && let Some(counters) = counters()
        {
            add(&mut counters.marked, 1);
        }
    } else if config!(scope) == scope::CGROUP && TASKS.get(task).is_some() {
        unfollow(task);
    }
    0
}

/// Writes the record of every followed task, after that of its process.
#[unsafe(link_section = "iter/task")]
#[unsafe(no_mangle)]
fn sample(ctx: *mut c_void) -> i32 {
    let Some((seq, task)) = arguments(ctx) else {
        return 0;
    };
    let Some(entry) = TASKS.get(task) else {
        return 0;
    };
    let (Some(control), Some(scratch), Some(process)) =
        (control(), scratch(), process(task.tgid()))
    else {
        return 0;
    };
    if is_unchanged(task, entry, control) {
        report_unchanged(seq, task, process, entry.state);
        return 0;
    }
    let tid = task.tid();
    // If the output was full, the kernel runs the program again for the same task.
    if process.reported_epoch != control.epoch || process.reported_tid == tid {
        process.reported_epoch = control.epoch;
        process.reported_tid = tid;
        report_process(seq, task, process, &mut scratch.record);
    }
    let accumulated = entry.state == state::ACCUMULATED;
    let thread = &mut scratch.thread;
    thread.kind = record::THREAD;
    thread.pid = process.pid;
    thread.tid = task.visible_tid();
    thread.accumulated = u32::from(accumulated);
    thread.cpu = if offset!(task_cpu) == MISSING {
        task.0.get_or_zero(offset!(task_cpu_old)) as u32
    } else {
        task.0.get(offset!(task_cpu))
    };
    thread.state = task.0.get(offset!(task_state));
    thread.exit_state = task.0.get(offset!(task_exit_state));
    thread.start_boottime = process.start_boottime;
    thread.thread_start_boottime = task.start();
    task.totals(&mut thread.totals);
    entry.totals(&mut thread.totals);
    add_in_flight(task, entry, control, thread);
    write(seq, &raw const *thread, size_of::<ThreadRecord>());
    if config!(sched) != 0 && !accumulated && entry.runqueue.sum != 0 {
        let header = Header {
            kind: record::RUNQUEUE,
            pid: process.pid,
        };
        write(seq, &raw const header, size_of::<Header>());
        write(seq, &raw const entry.runqueue, size_of::<Histogram>());
    }
    0
}

/// Whether the process has not run since before the last reading, which has reported it: its only
/// thread has been in the same state since.
#[inline(always)]
fn is_unchanged(task: Task, entry: &TaskState, control: &Control) -> bool {
    config!(threads) == 0
        && entry.since < control.previous
        && (entry.state == state::SLEEPING
            || entry.state == state::BLOCKED
            || entry.state == state::QUEUED)
        && task.0.get::<u32>(offset!(task_on_cpu)) == 0
        && task.signal().get::<u32>(offset!(signal_nr_threads)) == 1
}

#[inline(always)]
fn report_unchanged(seq: Object, task: Task, process: &ProcessEntry, state: u32) {
    let mut to = Unchanged {
        kind: record::UNCHANGED,
        pid: process.pid,
        start_boottime: process.start_boottime,
        state,
        has_mm: 0,
        rss: [0; 4],
    };
    let mm = task.0.object(offset!(task_mm));
    if !mm.is_null() {
        to.has_mm = 1;
        to.rss = resident(mm);
    }
    write(seq, &raw const to, size_of::<Unchanged>());
}

/// Adds the time in flight: that of the present state, which the kernel adds only when it ends.
#[inline(always)]
fn add_in_flight(task: Task, entry: &TaskState, control: &Control, thread: &mut ThreadRecord) {
    let totals = &mut thread.totals;
    thread.runnable = 0;
    if task.0.get::<u32>(offset!(task_on_cpu)) != 0 {
        thread.runnable = 1;
        // The scheduler updates sum_exec_runtime at each timer interrupt. The time since its last
        // update is the time by which our clock has advanced further than the run queue's, since
        // the task was put on the CPU.
        let now = ktime();
        let clock = task.runqueue_clock();
        if entry.state == state::RUNNING {
            let ours = now.saturating_sub(entry.since);
            let theirs = clock.saturating_sub(entry.runqueue_clock);
            let missing = ours.saturating_sub(theirs);
            // Our clock includes time that the hypervisor is stealing now. The scheduler's update
            // is at most one timer period old.
            totals.oncpu += if missing < TIMER_PERIOD {
                missing
            } else {
                TIMER_PERIOD
            };
        }
        return;
    }
    let span = control.now.saturating_sub(entry.since);
    match entry.state {
        state::QUEUED => {
            thread.runnable = 1;
            totals.run_delay += span;
        }
        state::SLEEPING => totals.sleep += span,
        state::BLOCKED => totals.blocked += span,
        _ => {}
    }
}

#[inline(always)]
fn report_process(seq: Object, task: Task, process: &ProcessEntry, to: &mut ProcessRecord) {
    let leader = task.leader();
    let signal = task.signal();
    to.kind = record::PROCESS;
    to.pid = process.pid;
    to.ppid = task.parent().visible_pid();
    to.uid = task.uid();
    to.threads = signal.get(offset!(signal_nr_threads));
    to.start_boottime = process.start_boottime;
    to.max_rss = signal.get(offset!(signal_maxrss));
    leader.comm(&mut to.comm);
    to.fds = open_fds(task);
    report_memory(task, to);
    write(seq, &raw const *to, size_of::<ProcessRecord>());
    if process.ended.totals.oncpu != 0 {
        let header = Header {
            kind: record::ENDED,
            pid: process.pid,
        };
        write(seq, &raw const header, size_of::<Header>());
        write(seq, &raw const process.ended, size_of::<Usage>());
    }
}

#[inline(always)]
fn write<T>(seq: Object, data: *const T, size: usize) {
    // SAFETY: the verifier checks that `size` bytes at `data` are valid. If the buffer is full, the
    // kernel calls again with an empty one.
    unsafe {
        bpf_seq_write(seq.0.cast_mut().cast(), data.cast_mut().cast(), size as u32);
    }
}
