//! Which processes a reading has to visit.
//!
//! On a node with many sleeping processes, a reading would spend most of its time on visits without a
//! result. A process whose last record says that it sleeps needs a visit only if it has run since,
//! or waits for a CPU. A process that leaves a CPU is listed; `survey` begins a reading, lists those on
//! CPUs, and counts the tasks that wait. If the reading then visits fewer waiting tasks, it also
//! visits all others. Tasks that wait because their cgroup is throttled are not counted: if one has slept
//! before, its wait is seen when it has run, or at the next reading that visits all tasks.

use core::ffi::c_void;

use aya_ebpf::{bindings::BPF_RB_NO_WAKEUP, helpers::generated::bpf_get_smp_processor_id};

use super::{
    atomic::add,
    iter::reading,
    kernel::{Task, config, offset, read, repeat},
    maps::{control, counters, current, process},
    per_cpu::{CPUS_MAX, per_cpu_offset},
    task_storage::TaskState,
};
use crate::{config::Control, maps::ACTIVE};

/// Lists the process of a task that leaves its CPU, once before each reading. After the change of
/// `since`: a reading that takes the process from the list sees that it has run.
#[inline(always)]
pub fn list_active(task: Task, entry: &mut TaskState, control: &Control) {
    if config!(lists_active) == 0 || entry.listed_epoch == control.epoch {
        return;
    }
    entry.listed_epoch = control.epoch;
    if let Some(process) = process(task.tgid())
        && process.listed_epoch != control.epoch
    {
        process.listed_epoch = control.epoch;
        list(process.pid);
    }
}

#[inline(always)]
fn list(pid: u32) {
    if let Some(mut place) = ACTIVE.reserve(0) {
        place.write(pid);
        place.submit(u64::from(BPF_RB_NO_WAKEUP));
    } else if let Some(counters) = counters() {
        add(&mut counters.unlisted_active, 1);
    }
}

/// Begins a reading, lists the processes on CPUs and counts the tasks that wait for one. To be run
/// for one task.
#[unsafe(link_section = "iter/task")]
#[unsafe(no_mangle)]
fn survey(_: *mut c_void) -> i32 {
    let Some(control) = control() else {
        return 0;
    };
    let Some(reading) = reading(control) else {
        return 0;
    };
    // SAFETY: a helper without preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let distance = per_cpu_offset(cpu);
    let mut queues = RunQueues {
        base: current().runqueue().address().wrapping_sub(distance),
        waiting: 0,
    };
    // Then it is unknown.
    if distance == 0 {
        reading.waiting = u64::MAX;
        return 0;
    }
    repeat::<CPUS_MAX, _>(config!(cpus), survey_cpu, &mut queues);
    reading.waiting = queues.waiting;
    0
}

/// The run queues (`runqueues` in kernel/sched/core.c).
struct RunQueues {
    /// Per-CPU address.
    base: u64,
    /// Tasks that wait in those surveyed.
    waiting: u64,
}

/// Surveys the run queue of one CPU.
extern "C" fn survey_cpu(cpu: u64, queues: &mut RunQueues) -> i64 {
    let distance = per_cpu_offset(cpu as u32);
    if distance == 0 {
        return 0;
    }
    let queue = queues.base.wrapping_add(distance);
    let member = |offset: u32| queue.wrapping_add(u64::from(offset));
    let runnable = read(member(offset!(rq_nr_running)) as *const u32).unwrap_or(0);
    let task = read(member(offset!(rq_curr)) as *const u64).unwrap_or(0);
    let of_task = |offset: u32| {
        let address = task.wrapping_add(u64::from(offset));
        read(address as *const u32).unwrap_or(0)
    };
    let is_idle = of_task(offset!(task_pid)) == 0;
    queues.waiting += u64::from(runnable.saturating_sub(u32::from(!is_idle)));
    if !is_idle && let Some(process) = process(of_task(offset!(task_tgid))) {
        // It will be listed again when it leaves the CPU, because it can do so before it is visited.
        list(process.pid);
    }
    0
}
