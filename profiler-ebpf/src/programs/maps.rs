//! Access to the maps that all programs use.

use aya_ebpf::helpers::generated::bpf_get_current_task_btf;

use super::{
    atomic::add,
    kernel::{Object, Task},
};
use crate::{
    config::Control,
    event::ProcessEntry,
    maps::{Bounded, CONTROL, COUNTERS, PROCESSES, ProgramCounters},
};

/// State of the run.
#[inline(always)]
pub fn control() -> Option<&'static Control> {
    // SAFETY: the one entry always exists.
    CONTROL
        .get_ptr(0)
        .and_then(|control| unsafe { control.as_ref() })
}

/// Counts of the programs about themselves.
#[inline(always)]
pub fn counters() -> Option<&'static mut ProgramCounters> {
    // SAFETY: the one entry always exists; it is only added to atomically.
    COUNTERS
        .get_ptr_mut(0)
        .and_then(|counters| unsafe { counters.as_mut() })
}

/// The running task.
#[inline(always)]
pub fn current() -> Task {
    // SAFETY: a helper without preconditions.
    Task(Object(
        unsafe { bpf_get_current_task_btf() }.cast_const().cast(),
    ))
}

/// A followed process.
#[inline(always)]
pub fn process(tgid: u32) -> Option<&'static mut ProcessEntry> {
    // SAFETY: freed by the kernel only after the program has ended. Counters that several CPUs
    // write are only added to atomically.
    PROCESSES
        .get_ptr_mut(&tgid)
        .and_then(|process| unsafe { process.as_mut() })
}

/// Counts an entry for which a map has no space.
#[inline(always)]
pub fn count_drop<M: Bounded>() {
    count_drops::<M>(1);
}

/// Counts operations for which a map has no space.
#[inline(always)]
pub fn count_drops<M: Bounded>(operations: u64) {
    if let Some(counters) = counters() {
        add(&mut counters.dropped[M::INDEX], operations);
    }
}
