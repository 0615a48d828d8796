//! Iterators over all tasks: one finds those of the target, one reads them.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_seq_write;

use super::{
    kernel::{Object, Task, config, ktime, offset, read, repeat},
    maps::{
        TASKS, add, control, counters, find_namespace, find_per_cpu_offsets, per_cpu_offset,
        process, scratch,
    },
    target::{Finder, belongs, follow, forget},
};
use crate::{
    offsets::MISSING,
    wire::{
        ARMING_LEARN, Control, FDS_MAX, FDS_UNKNOWN, Histogram, HistogramHeader, Process,
        ProcessRecord, TaskState, Thread, Totals, Unchanged, record, scope, state, thread_flags,
    },
};

/// `struct bpf_iter__task` (kernel/bpf/task_iter.c): meta, task; its meta begins with the `seq_file`.
fn arguments(ctx: *mut c_void) -> Option<(Object, Task)> {
    let ctx = Object(ctx.cast());
    let task = ctx.object(8);
    if task.is_null() {
        None
    } else {
        Some((ctx.object(0).object(0), Task(task)))
    }
}

/// Follows every task that belongs to the target and is not followed yet. Run until it finds no more: a task
/// may have been passed before its parent was followed.
#[unsafe(link_section = "iter/task")]
#[unsafe(no_mangle)]
fn mark(ctx: *mut c_void) -> i32 {
    let Some((_, task)) = arguments(ctx) else {
        return 0;
    };
    if control().is_some_and(|control| control.arming == ARMING_LEARN) {
        find_per_cpu_offsets();
        find_namespace();
        return 0;
    }
    if belongs(task) {
        if follow(task, Finder::Mark)
            && let Some(counters) = counters()
        {
            add(&mut counters.marked, 1);
        }
    } else if config!(scope) == scope::CGROUP && TASKS.get(task).is_some() {
        forget(task);
    }
    0
}

/// Writes the counters of every followed task, and before the first thread of a process those of the process.
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
    if is_quiet(task, entry, control) {
        report_quiet(seq, task, process, entry.state);
        return 0;
    }
    let tid = task.tid();
    // When the output did not fit, the kernel runs the program again for the same task.
    if process.reported_pass != control.epoch || process.reported_tid == tid {
        process.reported_pass = control.epoch;
        process.reported_tid = tid;
        report_process(seq, task, process, &mut scratch.record);
    }
    let accumulated = entry.state == state::ACCUMULATED;
    let thread = &mut scratch.thread;
    thread.record = record::THREAD;
    thread.pid = process.pid;
    thread.tid = task.visible_tid();
    thread.flags = if accumulated {
        thread_flags::ACCUMULATED
    } else {
        0
    };
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
    add_in_flight(task, entry, control, thread);
    write(seq, &raw const *thread, size_of::<Thread>());
    if config!(sched) != 0 && !accumulated && entry.runqueue.sum != 0 {
        let header = HistogramHeader {
            record: record::HISTOGRAM,
            pid: process.pid,
        };
        write(seq, &raw const header, size_of::<HistogramHeader>());
        write(seq, &raw const entry.runqueue, size_of::<Histogram>());
    }
    0
}

/// Whether the process is known not to have run since before the last reading, which reported it: its only
/// thread has been in the same state all the time.
#[inline(always)]
fn is_quiet(task: Task, entry: &TaskState, control: &Control) -> bool {
    config!(threads) == 0
        && entry.since < control.previous
        && (entry.state == state::SLEEPING
            || entry.state == state::BLOCKED
            || entry.state == state::QUEUED)
        && task.0.get::<u32>(offset!(task_on_cpu)) == 0
        && task.signal().get::<u32>(offset!(signal_nr_threads)) == 1
}

#[inline(always)]
fn report_quiet(seq: Object, task: Task, process: &Process, state: u32) {
    let mut to = Unchanged {
        record: record::UNCHANGED,
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

/// The shared parts of `mm->rss_stat`.
#[inline(always)]
fn resident(mm: Object) -> [i64; 4] {
    let first = offset!(mm_rss_stat);
    if config!(rss_percpu) == 0 {
        // Direct loads do not see through `atomic_long_t count[]` (Linux 6.1).
        let count = |index: u32| {
            read(
                mm.0.wrapping_add((first + 8 * index) as usize)
                    .cast::<i64>(),
            )
            .unwrap_or(0)
        };
        return [count(0), count(1), count(2), count(3)];
    }
    let first = first + offset!(percpu_counter_count);
    let step = config!(percpu_counter_size);
    [
        mm.get(first),
        mm.get(first + step),
        mm.get(first + 2 * step),
        mm.get(first + 3 * step),
    ]
}

/// Adds the span of the present state, which the kernel adds only when it ends.
#[inline(always)]
fn add_in_flight(task: Task, entry: &TaskState, control: &Control, thread: &mut Thread) {
    let totals = &mut thread.totals;
    entry.totals(totals);
    thread.runnable = 0;
    if task.0.get::<u32>(offset!(task_on_cpu)) != 0 {
        thread.runnable = 1;
        // The scheduler adds to sum_exec_runtime at each timer interrupt. What is missing is what our clock has
        // advanced more since the task was put on the CPU than the scheduler's up to the last such addition.
        let now = ktime();
        let clock = task.runqueue_clock();
        if entry.state == state::RUNNING {
            let ours = now.saturating_sub(entry.since);
            let theirs = clock.saturating_sub(entry.runqueue_clock);
            let missing = ours.saturating_sub(theirs);
            // What a hypervisor is stealing now is in our clock only; no more than a timer period can be missing.
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

/// ns between timer interrupts at `CONFIG_HZ=100`, the slowest.
const TIMER_PERIOD: u64 = 10_000_000;

#[inline(always)]
fn report_process(seq: Object, task: Task, process: &Process, to: &mut ProcessRecord) {
    let leader = task.leader();
    let signal = task.signal();
    to.record = record::PROCESS;
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
    if process.ended.oncpu != 0 {
        let header = HistogramHeader {
            record: record::ENDED,
            pid: process.pid,
        };
        write(seq, &raw const header, size_of::<HistogramHeader>());
        write(seq, &raw const process.ended, size_of::<Totals>());
        write(
            seq,
            &raw const process.ended_runqueue,
            size_of::<Histogram>(),
        );
    }
}

#[inline(always)]
fn report_memory(task: Task, to: &mut ProcessRecord) {
    let mm = task.0.object(offset!(task_mm));
    to.has_mm = u32::from(!mm.is_null());
    to.rss = [0; 4];
    to.rss_per_cpu = [0; 4];
    to.rss_exact = 0;
    if mm.is_null() {
        return;
    }
    to.hiwater_rss = mm.get(offset!(mm_hiwater_rss));
    to.total_vm = mm.get(offset!(mm_total_vm));
    to.data_vm = mm.get(offset!(mm_data_vm));
    to.stack_vm = mm.get(offset!(mm_stack_vm));
    to.start_code = mm.get(offset!(mm_start_code));
    to.end_code = mm.get(offset!(mm_end_code));
    to.rss = resident(mm);
    if config!(rss_percpu) == 0 {
        to.rss_exact = 1;
    } else if per_cpu_offset(0) != 0 {
        let step = config!(percpu_counter_size);
        let counters = offset!(mm_rss_stat) + offset!(percpu_counter_counters);
        let parts: [u64; 4] = [
            mm.get(counters),
            mm.get(counters + step),
            mm.get(counters + 2 * step),
            mm.get(counters + 3 * step),
        ];
        let mut sums = PerCpuSums {
            parts,
            sums: [0; 4],
        };
        repeat(config!(cpus), add_per_cpu, &mut sums);
        to.rss_per_cpu = sums.sums;
        to.rss_exact = 1;
    }
    // The task may have lost its memory meanwhile; then the figures are of no one.
    if task.0.object(offset!(task_mm)) != mm {
        to.has_mm = 0;
    }
}

/// Adds up four `percpu_counter`.
struct PerCpuSums {
    parts: [u64; 4],
    sums: [i64; 4],
}

/// Adds one CPU's parts.
extern "C" fn add_per_cpu(cpu: u64, sums: &mut PerCpuSums) -> i64 {
    let base = per_cpu_offset(cpu as u32);
    let mut part = 0;
    while part < 4 {
        let address = sums.parts[part].wrapping_add(base) as *const i32;
        sums.sums[part] += read(address).map_or(0, i64::from);
        part += 1;
    }
    0
}

/// Counts the bits of `files->fdt->open_fds`.
#[inline(always)]
fn open_fds(task: Task) -> u32 {
    let files = task.0.object(offset!(task_files));
    if files.is_null() {
        return FDS_UNKNOWN;
    }
    let table = files.object(offset!(files_fdt));
    let size: u32 = table.get(offset!(fdtable_max_fds));
    if size > FDS_MAX {
        return FDS_UNKNOWN;
    }
    let words: *const u64 = table.get(offset!(fdtable_open_fds));
    let mut bits = Bits { words, count: 0 };
    repeat(size / 64, add_bits, &mut bits);
    bits.count
}

/// Counts the bits of some words.
struct Bits {
    words: *const u64,
    count: u32,
}

/// Adds one word's bits.
extern "C" fn add_bits(word: u64, bits: &mut Bits) -> i64 {
    bits.count += ones(read(bits.words.wrapping_add(word as usize)).unwrap_or(0));
    0
}

/// Bits set in a word; BPF has no instruction for it.
#[inline(always)]
fn ones(mut word: u64) -> u32 {
    word -= (word >> 1) & 0x5555_5555_5555_5555;
    word = (word & 0x3333_3333_3333_3333) + ((word >> 2) & 0x3333_3333_3333_3333);
    word = (word + (word >> 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    (word.wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32
}

#[inline(always)]
fn write<T>(seq: Object, data: *const T, size: usize) {
    // SAFETY: `size` bytes at `data` are valid, which the verifier checks. When the buffer is full, the kernel calls
    // again with an empty one.
    unsafe {
        bpf_seq_write(seq.0.cast_mut().cast(), data.cast_mut().cast(), size as u32);
    }
}
