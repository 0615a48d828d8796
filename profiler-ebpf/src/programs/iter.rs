//! Iterators over all tasks: `mark` follows those of the target, `sample` reads the followed ones.

use core::{ffi::c_void, ptr::read_volatile};

use aya_ebpf::helpers::generated::bpf_seq_write;

use super::{
    atomic::add,
    kernel::{Object, Task, config, ktime, offset, user},
    maps::{control, counters, current, process},
    memory::{open_fds, report_memory, resident},
    namespace::find_namespace,
    net::messages,
    per_cpu::find_per_cpu_offsets,
    scratch::scratch,
    target::{FoundBy, follow, in_target, is_queued, unfollow},
    task_storage::{Idle, TaskState},
};
use crate::{
    config::{Control, arming, pass, scope},
    event::ProcessEntry,
    histogram::Histogram,
    maps::{READING, TASKS},
    offsets::MISSING,
    record::{
        self, Header, PresentWait, ProcessRecord, Reading, ThreadRecord, Unchanged, Usage, state,
        wait,
    },
};

/// ns between timer interrupts with `CONFIG_HZ=100`, the lowest rate.
const TIMER_PERIOD: u64 = 10_000_000;

/// The `seq_file` and the task of a `struct bpf_iter__task` (kernel/bpf/task_iter.c).
pub fn arguments(ctx: *mut c_void) -> Option<(Object, Task)> {
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
        find_namespace();
        find_per_cpu_offsets();
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
    let Some(control) = control() else {
        return 0;
    };
    let Some(reading) = reading(control) else {
        return 0;
    };
    reading.visited += 1;
    let Some(entry) = TASKS.get(task) else {
        return 0;
    };
    let is_visited = entry.visited_epoch == reading.epoch;
    if (control.pass == pass::NOT_VISITED && is_visited)
        || (control.pass == pass::LEFT_OUT && entry.idle.is_reported == 0)
    {
        return 0;
    }
    let (signal, mm) = (task.signal(), task.memory());
    // SAFETY: a field of the entry; volatile, because it has to be read first: what the task does from
    // here on is in its next record.
    let since = unsafe { read_volatile(&raw const entry.since) };
    let is_unchanged = since == entry.recorded && is_unchanged(task, signal, entry, reading);
    let resident = if is_unchanged && !mm.is_null() {
        resident(mm)
    } else {
        [0; 4]
    };
    if control.pass != pass::LEFT_OUT && is_unchanged && entry.idle.has(resident) {
        end_visit(task, entry, reading);
        reading.idle += 1;
        return 0;
    }
    let (Some(scratch), Some(process)) = (scratch(), process(task.tgid())) else {
        return 0;
    };
    if control.pass == pass::LEFT_OUT && process.reported_epoch == control.epoch {
        return 0;
    }
    if is_unchanged {
        process.reported_epoch = control.epoch;
        let is_written = report_unchanged(seq, mm, process, entry.state, resident, reading);
        if is_written {
            end_visit(task, entry, reading);
            if entry.state == state::SLEEPING {
                entry.idle = Idle::new(resident);
            }
        }
        return 0;
    }
    entry.idle.is_reported = 0;
    let members = Members {
        signal,
        mm,
        leader: task.leader(),
        parent: task.parent(),
        cred: task.cred(),
        files: task.files(),
    };
    messages::report_of(task);
    let tid = task.tid();
    if process.reported_epoch != control.epoch || process.reported_tid == tid {
        process.reported_epoch = control.epoch;
        process.reported_tid = tid;
        report_process(seq, task, members, process, &mut scratch.record);
    }
    let accumulated = entry.state == state::ACCUMULATED;
    let thread = &mut scratch.thread;
    thread.kind = record::THREAD;
    thread.pid = process.pid;
    thread.tid = task.visible_tid();
    thread.accumulated = u32::from(accumulated);
    thread.cpu = if offset!(task_cpu) == MISSING {
        task.0.get_or_zero(offset!(task_cpu_old))
    } else {
        task.0.get(offset!(task_cpu))
    };
    thread.state = task.0.get(offset!(task_state));
    thread.exit_state = task.0.get(offset!(task_exit_state));
    thread.start_boottime = process.start_boottime;
    thread.thread_start_boottime = task.start();
    task.totals(&mut thread.totals);
    let run_delay = thread.totals.run_delay;
    entry.totals(&mut thread.totals);
    if config!(wakeups) != 0 {
        add_observed(task, entry, reading.now, thread);
    } else {
        add_in_flight(task, entry, run_delay, reading.now, thread);
    }
    let mut is_written = write(seq, &raw const *thread, size_of::<ThreadRecord>());
    if config!(sched) != 0 && !accumulated && (is_on_cpu(task) || !entry.runqueue.is_empty()) {
        let header = Header {
            kind: record::RUNQUEUE,
            pid: process.pid,
        };
        write(seq, &raw const header, size_of::<Header>());
        write(seq, &raw const entry.runqueue, size_of::<Histogram>());
        let present = present_wait(task, entry);
        is_written = write(seq, &raw const present, size_of::<PresentWait>());
    }
    if is_written {
        entry.recorded = since;
        end_visit(task, entry, reading);
    }
    0
}

/// Ends the visit of a task. If the output was full, the kernel runs the program again for the same
/// task.
#[inline(always)]
fn end_visit(task: Task, entry: &mut TaskState, reading: &mut Reading) {
    entry.visited_epoch = reading.epoch;
    let is_queued = task.0.get::<u32>(offset!(task_on_rq)) != 0;
    if is_queued && !is_on_cpu(task) {
        reading.queued += 1;
    }
}

/// The wait that the scheduler has accounted for a running task, and that the task adds to its
/// histogram when it leaves the CPU. Read after the histogram: if the task leaves in between, this
/// reading does not have the wait, but none has it twice.
#[inline(always)]
fn present_wait(task: Task, entry: &mut TaskState) -> PresentWait {
    let arrived: u64 = task.0.get(offset!(task_last_arrival));
    let total: u64 = task.0.get(offset!(task_run_delay));
    // SAFETY: fields of the entry; volatile, because the task writes them in the opposite order.
    let (before, since) = unsafe {
        (
            read_volatile(&raw const entry.run_delay),
            read_volatile(&raw const entry.since),
        )
    };
    let ns = if entry.asleep_in_queue != 0 {
        0
    } else {
        total.saturating_sub(before)
    };
    let waited = config!(wakeups) == 0
        && is_on_cpu(task)
        && arrived >= since
        && entry.state != state::RUNNING
        && entry.state != state::ACCUMULATED;
    let kind = if !waited {
        wait::NONE
    } else if entry.reported == arrived {
        wait::REPORTED
    } else {
        entry.reported = arrived;
        wait::NEW
    };
    PresentWait { kind, ns }
}

#[inline(always)]
fn is_on_cpu(task: Task) -> bool {
    task.0.get::<u32>(offset!(task_on_cpu)) != 0
}

/// The present reading, which begins with the first task that is visited.
#[inline(always)]
pub fn reading(control: &Control) -> Option<&'static mut Reading> {
    // SAFETY: the one entry always exists. One thread reads the iterator.
    let reading = READING
        .get_ptr_mut(0)
        .and_then(|reading| unsafe { reading.as_mut() })?;
    if reading.epoch != u64::from(control.epoch) {
        reading.epoch = control.epoch.into();
        reading.idle = 0;
        reading.visited = 0;
        reading.waiting = 0;
        reading.queued = 0;
        reading.previous = reading.now;
        reading.now = if config!(wakeups) != 0 {
            control.now
        } else {
            // The profiler has just had its own CPU's clock updated. It can have been preempted
            // since the time of the reading.
            let since = ktime().saturating_sub(control.now);
            current().runqueue_clock().saturating_sub(since)
        };
    }
    Some(reading)
}

/// Whether the process has not run since before the last reading: its only thread has been in the same
/// state since.
#[inline(always)]
fn is_unchanged(task: Task, signal: Object, entry: &TaskState, reading: &Reading) -> bool {
    config!(threads) == 0
        && entry.since < reading.previous
        && (entry.state == state::QUEUED
            || entry.state == state::SLEEPING
            || entry.state == state::BLOCKED)
        && (config!(wakeups) != 0
            || entry.asleep_in_queue != 0
            || is_queued(task) == (entry.state == state::QUEUED))
        && !is_on_cpu(task)
        && signal.get::<u32>(offset!(signal_nr_threads)) == 1
}

/// Returns whether there was room.
#[inline(always)]
fn report_unchanged(
    seq: Object,
    mm: Object,
    process: &ProcessEntry,
    state: u32,
    resident: [i64; 4],
    reading: &Reading,
) -> bool {
    let to = Unchanged {
        kind: record::UNCHANGED,
        pid: process.pid,
        start_boottime: process.start_boottime,
        state,
        has_mm: u32::from(!mm.is_null()),
        span: reading.now.saturating_sub(reading.previous),
        rss: resident,
    };
    write(seq, &raw const to, size_of::<Unchanged>())
}

/// Adds the time in flight: since the task last left a CPU and, if it is on one, since the
/// scheduler last updated its time there. `run_delay` is what the scheduler has accounted.
#[inline(always)]
fn add_in_flight(
    task: Task,
    entry: &TaskState,
    run_delay: u64,
    now: u64,
    thread: &mut ThreadRecord,
) {
    let totals = &mut thread.totals;
    let arrived: u64 = task.0.get(offset!(task_last_arrival));
    let (queued, waited) = if entry.asleep_in_queue != 0 {
        (0, 0)
    } else {
        let queued: u64 = task.0.get(offset!(task_last_queued));
        (queued, run_delay.saturating_sub(entry.run_delay))
    };
    let on_cpu = is_on_cpu(task);
    // Otherwise it is about to leave.
    let has_arrived = on_cpu && arrived >= entry.since;
    let until = if has_arrived {
        arrived
    } else if queued != 0 {
        queued
    } else {
        now
    };
    let slept = until.saturating_sub(entry.since).saturating_sub(waited);
    let slept = slept.min(now.saturating_sub(entry.since));
    if entry.state == state::SLEEPING {
        totals.sleep += slept;
    } else if entry.state == state::BLOCKED {
        totals.blocked += slept;
    }
    if entry.state == state::SLEEPING || entry.state == state::BLOCKED {
        totals.wakeups += u64::from(has_arrived || queued != 0);
    }
    if on_cpu {
        // The scheduler updates sum_exec_runtime at each timer interrupt.
        totals.oncpu += at_most_a_period(now.saturating_sub(task.time_updated()));
    } else if queued != 0 {
        totals.run_delay += now.saturating_sub(queued);
    }
}

/// Time since an update of the scheduler, which is at most one timer period old. A clock can include
/// time that the hypervisor is stealing now.
#[inline(always)]
fn at_most_a_period(ns: u64) -> u64 {
    if ns < TIMER_PERIOD { ns } else { TIMER_PERIOD }
}

/// Adds the time in flight, with `config.wakeups`: that of the present state, which the kernel adds
/// only when it ends.
#[inline(always)]
fn add_observed(task: Task, entry: &TaskState, now: u64, thread: &mut ThreadRecord) {
    let totals = &mut thread.totals;
    if is_on_cpu(task) {
        // The scheduler updates sum_exec_runtime at each timer interrupt. The time since its last
        // update is the time by which our clock has advanced further than the run queue's, since
        // the task was put on the CPU.
        if entry.state == state::RUNNING {
            let ours = ktime().saturating_sub(entry.since);
            let theirs = task.time_updated().saturating_sub(entry.runqueue_clock);
            totals.oncpu += at_most_a_period(ours.saturating_sub(theirs));
        }
        return;
    }
    let span = now.saturating_sub(entry.since);
    match entry.state {
        state::QUEUED => {
            totals.run_delay += span;
        }
        state::SLEEPING => totals.sleep += span,
        state::BLOCKED => totals.blocked += span,
        _ => {}
    }
}

/// Members of a task, each loaded once: see [`Object::object`].
struct Members {
    signal: Object,
    mm: Object,
    leader: Task,
    parent: Task,
    cred: Object,
    files: Object,
}

#[inline(always)]
fn report_process(
    seq: Object,
    task: Task,
    of: Members,
    process: &ProcessEntry,
    to: &mut ProcessRecord,
) {
    to.kind = record::PROCESS;
    to.pid = process.pid;
    to.ppid = of.parent.visible_pid();
    (to.uid, to.permissions) = user(of.cred, of.mm);
    to.threads = of.signal.get(offset!(signal_nr_threads));
    to.start_boottime = process.start_boottime;
    to.max_rss = of.signal.get(offset!(signal_maxrss));
    of.leader.comm(&mut to.comm);
    to.fds = open_fds(of.files);
    report_memory(task, of.mm, to);
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

/// Returns whether there was room.
#[inline(always)]
fn write<T>(seq: Object, data: *const T, size: usize) -> bool {
    // SAFETY: the verifier checks that `size` bytes at `data` are valid. If the buffer is full, the
    // kernel calls again with an empty one.
    let error =
        unsafe { bpf_seq_write(seq.0.cast_mut().cast(), data.cast_mut().cast(), size as u32) };
    error == 0
}
