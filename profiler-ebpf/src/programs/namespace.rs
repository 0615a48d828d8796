//! The profiler's pid namespace, in which all process ids are reported.

use aya_ebpf::{btf_maps::Array, macros::btf_map};

use super::{
    kernel::{config, number, offset, read},
    maps::current,
};

#[btf_map]
static NAMESPACE: Array<Namespace, 1> = Array::new();

/// The namespace as found by `mark`.
#[repr(C)]
pub struct Namespace {
    /// Address of its `struct pid_namespace`.
    pub address: u64,
    /// Depth below the initial namespace.
    pub level: u64,
    /// Thread group id of the profiler in the initial namespace.
    pub profiler: u64,
}

/// The profiler's pid namespace.
#[inline(always)]
pub fn namespace() -> Option<&'static Namespace> {
    // SAFETY: the one entry always exists.
    NAMESPACE
        .get_ptr(0)
        .and_then(|namespace| unsafe { namespace.as_ref() })
}

/// Finds [`namespace`]. To be called by `mark`, which runs in the context of the profiler.
#[inline(always)]
pub fn find_namespace() {
    let pid = current().0.object(offset!(task_thread_pid));
    let level: u32 = pid.get(offset!(pid_level));
    let upid = u64::from(offset!(pid_numbers)) + u64::from(level) * u64::from(config!(upid_size));
    let Some(pid) = number(&raw const pid.0) else {
        return;
    };
    let address = pid.wrapping_add(upid + u64::from(offset!(upid_ns)));
    if let (Some(address), Some(namespace)) =
        (read(address as *const u64), NAMESPACE.get_ptr_mut(0))
    {
        // SAFETY: an entry of the array, which only `mark` writes.
        unsafe {
            (*namespace).address = address;
            (*namespace).level = u64::from(level);
            (*namespace).profiler = u64::from(current().tgid());
        }
    }
}
