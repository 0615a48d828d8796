//! Which tasks belong to the target, and how they begin and end to be followed.

use core::ptr;

use super::{
    kernel::{Object, Task, clear, config, io_totals, ktime, offset, read},
    maps::{
        CGROUPS, PROCESSES, ROOTS, TASKS, add, counters, decrement, dropped, namespace, process,
        scratch,
    },
};
use crate::{
    offsets::MISSING,
    wire::{Map, Owner, Process, TaskState, event, scope, state},
};

/// Levels of cgroups that are climbed, and hierarchies that are looked at.
const CGROUP_DEPTH: u32 = 32;
/// `task_struct.exit_state`: `EXIT_DEAD | EXIT_ZOMBIE`.
const EXITED: u32 = 0x30;

/// Who found a task.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Finder {
    /// The fork hook.
    Fork = 1,
    /// The iterator `mark`.
    Mark = 2,
}

/// Whether a task that exists already belongs to the target.
#[inline(always)]
pub fn belongs(task: Task) -> bool {
    match config!(scope) {
        scope::NODE => true,
        scope::CGROUP => in_cgroup(task),
        scope::JOB => is_related(task) || in_cgroup(task),
        _ => is_related(task) && !is_controller(task),
    }
}

/// Whether the task is the controller's: whoever names their own shell by its pid does not mean the profiler.
#[inline(always)]
fn is_controller(task: Task) -> bool {
    namespace().is_some_and(|namespace| namespace.controller == u64::from(task.tgid()))
}

/// Whether the task or its parent is one of a followed process, or its process was named.
#[inline(always)]
fn is_related(task: Task) -> bool {
    process(task.tgid()).is_some() || process(task.parent().tgid()).is_some() || is_root(task)
}

/// Whether the task's process was named by its pid; its start tells it from another that has the pid now.
#[inline(always)]
fn is_root(task: Task) -> bool {
    let leader = task.leader();
    // SAFETY: the value is only read by copy.
    match unsafe { ROOTS.get(&task.visible_pid()) } {
        Some(start) => *start == 0 || *start == leader.start(),
        None => false,
    }
}

/// Whether the task is in one of the cgroups or below one, in any hierarchy (cgroup v1 and v2).
///
/// Walks `task->cgroups->cgrp_links`, which has one entry per hierarchy (kernel/cgroup/cgroup.c).
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
            return below(cgroup);
        }
        node = pointer(node);
        hierarchies += 1;
    }
    false
}

/// Whether `cgroup` or one of its ancestors is one of the target's.
#[inline(always)]
fn below(mut cgroup: Object) -> bool {
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

/// Begins to follow a task of the target. Returns whether it was new.
#[inline(always)]
pub fn follow(task: Task, finder: Finder) -> bool {
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
        // Nobody could tell which process it is.
        if owner.pid == 0 {
            return false;
        }
        let entry = &mut scratch.process;
        fresh_process(entry, task, owner, finder);
        // BPF_NOEXIST: a thread of the process may be found at the same time.
        if PROCESSES.insert(&tgid, &*entry, 1).is_ok() {
            add(&mut counters.live, 1);
        } else if process(tgid).is_none() {
            dropped(Map::Processes);
            return false;
        }
    }

    let entry = &mut scratch.task;
    clear(entry);
    entry.made_by = finder as u32;
    entry.state = current_state(task, finder);
    entry.since = ktime();
    entry.owner = owner;
    entry.runqueue_clock = task.runqueue_clock();
    let Some(stored) = TASKS.insert(task, entry) else {
        dropped(Map::Tasks);
        return false;
    };
    // The other finder may have been first.
    if stored.made_by != finder as u32 {
        return false;
    }
    if let Some(process) = process(tgid) {
        add(&mut process.tasks, 1);
    }
    true
}

/// Stops to follow a task that has left the target.
#[inline(always)]
pub fn forget(task: Task) {
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
fn fresh_process(entry: &mut Process, task: Task, owner: Owner, finder: Finder) {
    clear(entry);
    entry.event = event::EXIT;
    entry.pid = owner.pid;
    entry.start_boottime = owner.start_boottime;
    if finder == Finder::Mark {
        // Threads that ended before they could be followed are in signal_struct (kernel/exit.c, __exit_signal).
        let signal = task.signal();
        let ended = &mut entry.ended;
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
fn current_state(task: Task, finder: Finder) -> u32 {
    if finder == Finder::Fork {
        return state::NEW;
    }
    if task.0.get::<u32>(offset!(task_on_cpu)) != 0 {
        state::RUNNING
    } else if task.0.get::<u32>(offset!(task_on_rq)) != 0 {
        state::QUEUED
    } else {
        asleep(task.0.get(offset!(task_state)))
    }
}

/// State of a task that left the CPU with `prev_state` (include/linux/sched.h).
#[inline(always)]
pub fn asleep(prev_state: u32) -> u32 {
    const TASK_UNINTERRUPTIBLE: u32 = 0x2;
    const TASK_NOLOAD: u32 = 0x400;
    if prev_state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD) == TASK_UNINTERRUPTIBLE {
        state::BLOCKED
    } else {
        state::SLEEPING
    }
}

/// Reference to a task's storage.
pub type Followed = &'static mut TaskState;
