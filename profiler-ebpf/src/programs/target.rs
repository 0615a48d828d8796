//! Membership of tasks in the target, and the start and end of following them.

use core::ptr;

use super::{
    atomic::{add, decrement},
    kernel::{Object, Task, clear, config, io_totals, ktime, offset, read},
    maps::{count_drop, counters, current, process},
    namespace::namespace,
    net::messages,
    scratch::scratch,
    task_storage::TaskState,
};
use crate::{
    config::scope,
    event::{self, ProcessEntry},
    maps::{CGROUPS, MESSAGES, PROCESSES, Processes, ROOTS, TASKS, Tasks},
    offsets::MISSING,
    per_key::Owner,
    record::state,
};

/// Limit of the levels of cgroups, and of hierarchies, that are searched.
const CGROUP_DEPTH: u32 = 32;
/// `task_struct.exit_state`: `EXIT_DEAD | EXIT_ZOMBIE`.
const EXITED: u32 = 0x30;

/// Which program found a task first.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FoundBy {
    /// The hook of its creation.
    Fork = 1,
    /// The iterator `mark`.
    Mark = 2,
}

/// Whether an existing task belongs to the target.
#[inline(always)]
pub fn in_target(task: Task) -> bool {
    match config!(scope) {
        scope::NODE => true,
        scope::CGROUP => in_cgroup(task),
        scope::JOB => is_related(task) || in_cgroup(task),
        _ => is_related(task) && !is_profiler(task),
    }
}

/// Whether the task is part of the profiler, which is excluded from the target if the target is
/// the shell from which it was started.
#[inline(always)]
fn is_profiler(task: Task) -> bool {
    namespace().is_some_and(|namespace| namespace.profiler == u64::from(task.tgid()))
}

/// Whether the process of the task, or its parent, is followed, or was named by its pid.
#[inline(always)]
fn is_related(task: Task) -> bool {
    process(task.tgid()).is_some() || process(task.parent().tgid()).is_some() || is_root(task)
}

/// Whether the process of the task was named by its pid. The start identifies it if the pid was
/// reused.
#[inline(always)]
fn is_root(task: Task) -> bool {
    let leader = task.leader();
    // SAFETY: copied at once.
    match unsafe { ROOTS.get(&task.visible_pid()) } {
        Some(start) => *start == 0 || *start == leader.start(),
        None => false,
    }
}

/// Whether the task is in a cgroup of the target, or in one below it (cgroup v1 and v2).
///
/// Walks `task->cgroups->cgrp_links`, which has one entry for each hierarchy
/// (kernel/cgroup/cgroup.c).
#[inline(always)]
pub fn in_cgroup(task: Task) -> bool {
    if offset!(css_set_cgrp_links) == MISSING {
        return false;
    }
    let css_set = task.0.object(offset!(task_cgroups));
    let head = at(css_set, offset!(css_set_cgrp_links));
    let mut node = pointer(head);
    let mut hierarchies = 0;
    while hierarchies < CGROUP_DEPTH && !node.is_null() && node != head {
        // container_of
        let link = Object(node.0.wrapping_sub(offset!(link_cgrp_link) as usize));
        let cgroup = pointer(at(link, offset!(link_cgrp)));
        let root = pointer(at(cgroup, offset!(cgroup_root)));
        let hierarchy = read(at(root, offset!(cgroup_root_hierarchy_id)).0.cast::<u32>());
        if hierarchy == Some(config!(cgroup_hierarchy)) {
            return is_in_target(cgroup);
        }
        node = pointer(node);
        hierarchies += 1;
    }
    false
}

/// Whether `cgroup` or one of its ancestors is a cgroup of the target.
#[inline(always)]
fn is_in_target(mut cgroup: Object) -> bool {
    let mut level = 0;
    while level < CGROUP_DEPTH && !cgroup.is_null() {
        let node = pointer(at(cgroup, offset!(cgroup_kn)));
        if let Some(id) = read(at(node, offset!(kernfs_node_id)).0.cast::<u64>())
            && CGROUPS.get_ptr(&id).is_some()
        {
            return true;
        }
        cgroup = pointer(at(cgroup, offset!(cgroup_parent)));
        level += 1;
    }
    false
}

#[inline(always)]
fn at(object: Object, offset: u32) -> Object {
    Object(object.0.wrapping_add(offset as usize))
}

#[inline(always)]
fn pointer(address: Object) -> Object {
    Object(read(address.0.cast::<*const u8>()).unwrap_or(ptr::null()))
}

/// Starts to follow a task of the target. Returns whether it was not followed yet.
#[inline(always)]
pub fn follow(task: Task, found_by: FoundBy) -> bool {
    if TASKS.get(task).is_some() {
        return false;
    }
    let (Some(counters), Some(scratch)) = (counters(), scratch()) else {
        return false;
    };
    let exit_state: u32 = task.0.get(offset!(task_exit_state));
    if exit_state & EXITED != 0 {
        return false;
    }

    let tgid = task.tgid();
    let owner = Owner {
        start_boottime: task.leader().start(),
        pid: task.visible_pid(),
        tid: task.visible_tid(),
    };
    if process(tgid).is_none() {
        // Outside the profiler's pid namespace, the process has no id to report.
        if owner.pid == 0 {
            return false;
        }
        let entry = &mut scratch.process;
        init_process(entry, task, owner, found_by);
        // BPF_NOEXIST: another thread of the process can be found at the same time.
        if PROCESSES.insert(&tgid, &*entry, 1).is_ok() {
            add(&mut counters.live, 1);
        } else if process(tgid).is_none() {
            count_drop::<Processes>();
            return false;
        }
    }

    let entry = &mut scratch.task;
    clear(entry);
    entry.found_by = found_by as u32;
    let asleep_in_queue = found_by == FoundBy::Mark && is_asleep_in_queue(task);
    entry.state = current_state(task, found_by, asleep_in_queue);
    entry.owner = owner;
    entry.run_delay = task.0.get_or_zero(offset!(task_run_delay));
    entry.asleep_in_queue = u32::from(asleep_in_queue);
    if config!(wakeups) != 0 {
        entry.since = ktime();
        entry.runqueue_clock = task.time_updated();
    } else {
        entry.since = current().runqueue_clock();
    }
    let Some(stored) = TASKS.insert(task, entry) else {
        count_drop::<Tasks>();
        return false;
    };
    // The other program can have found the task at the same time.
    if stored.found_by != found_by as u32 {
        return false;
    }
    if let Some(process) = process(tgid) {
        add(&mut process.tasks, 1);
    }
    true
}

/// Stops following a task that has left the target.
#[inline(always)]
pub fn unfollow(task: Task) {
    messages::report_of(task);
    MESSAGES.delete(task);
    TASKS.delete(task);
    let tgid = task.tgid();
    if let Some(process) = process(tgid)
        && decrement(&mut process.tasks) == 0
    {
        let _ = PROCESSES.remove(&tgid);
        if let Some(counters) = counters() {
            decrement(&mut counters.live);
        }
    }
}

#[inline(always)]
fn init_process(entry: &mut ProcessEntry, task: Task, owner: Owner, found_by: FoundBy) {
    clear(entry);
    entry.kind = event::EXIT;
    entry.pid = owner.pid;
    entry.start_boottime = owner.start_boottime;
    if found_by == FoundBy::Mark {
        // signal_struct contains the threads that have ended before (kernel/exit.c, __exit_signal).
        let signal = task.signal();
        let ended = &mut entry.ended.totals;
        ended.utime = signal.get(offset!(signal_utime));
        ended.stime = signal.get(offset!(signal_stime));
        ended.oncpu = signal.get(offset!(signal_sum_sched_runtime));
        ended.nvcsw = signal.get(offset!(signal_nvcsw));
        ended.nivcsw = signal.get(offset!(signal_nivcsw));
        ended.min_flt = signal.get(offset!(signal_min_flt));
        ended.maj_flt = signal.get(offset!(signal_maj_flt));
        io_totals(signal, offset!(signal_ioac), ended);
    }
}

#[inline(always)]
fn current_state(task: Task, found_by: FoundBy, asleep_in_queue: bool) -> u32 {
    if found_by == FoundBy::Fork {
        return state::NEW;
    }
    if task.0.get::<u32>(offset!(task_on_cpu)) != 0 {
        state::RUNNING
    } else if is_queued(task) && !asleep_in_queue {
        state::QUEUED
    } else {
        sleep_state(task.0.get(offset!(task_state)))
    }
}

/// Whether a task that is not on a CPU waits for one, as the scheduler accounts it.
#[inline(always)]
pub fn is_queued(task: Task) -> bool {
    if offset!(task_last_queued) == MISSING {
        task.0.get::<u32>(offset!(task_on_rq)) != 0
    } else {
        task.0.get::<u64>(offset!(task_last_queued)) != 0
    }
}

/// Whether the scheduler accounts a wait although the task sleeps: it was moved to another CPU before
/// it had left the run queue (see `sched_migrate`).
#[inline(always)]
fn is_asleep_in_queue(task: Task) -> bool {
    const TASK_WAKING: u32 = 0x200;
    let state: u32 = task.0.get(offset!(task_state));
    let is_in_queue = task.0.get::<u32>(offset!(task_on_rq)) != 0;
    let is_delayed = task.0.get_or_zero::<u8>(offset!(task_sched_delayed)) != 0;
    state & !TASK_WAKING != 0
        && task.0.get_or_zero::<u64>(offset!(task_last_queued)) != 0
        && (is_delayed || !is_in_queue)
}

/// State of a task that left the CPU with this `task_struct.__state` (include/linux/sched.h).
#[inline(always)]
pub fn sleep_state(prev_state: u32) -> u32 {
    const TASK_UNINTERRUPTIBLE: u32 = 0x2;
    const TASK_NOLOAD: u32 = 0x400;
    if prev_state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD) == TASK_UNINTERRUPTIBLE {
        state::BLOCKED
    } else {
        state::SLEEPING
    }
}

/// Storage of a followed task.
pub type Followed = &'static mut TaskState;
