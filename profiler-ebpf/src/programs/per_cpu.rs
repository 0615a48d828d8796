//! Distances between the per-CPU address of a variable and its copies.
//!
//! `/proc/kallsyms` lists `__per_cpu_offset` only with `CONFIG_KALLSYMS_ALL`. The distances between
//! the per-CPU address of a value of a per-CPU map and its copies are the same.

use core::ffi::c_void;

use aya_ebpf::{btf_maps::Array, helpers::generated::bpf_map_lookup_percpu_elem, macros::btf_map};

use super::{
    kernel::{config, number, offset, read},
    scratch::SCRATCH,
};

/// Largest number of possible CPUs whose per-CPU counters are added up.
pub const CPUS_MAX: u32 = 1024;

/// `__per_cpu_offset` of each CPU.
#[btf_map]
static PER_CPU_OFFSET: Array<u64, { CPUS_MAX as usize }> = Array::new();

/// Distance of a CPU's copy from the per-CPU address; 0 if unknown.
#[inline(always)]
pub fn per_cpu_offset(cpu: u32) -> u64 {
    // SAFETY: copied at once.
    PER_CPU_OFFSET
        .get_ptr(cpu)
        .map_or(0, |offset| unsafe { *offset })
}

/// Finds [`per_cpu_offset`] of every CPU, if the kernel can look up the copies.
#[inline(always)]
pub fn find_per_cpu_offsets() {
    if config!(has_percpu_lookup) == 0 || per_cpu_offset(0) != 0 {
        return;
    }
    let map: *const c_void = (&raw const SCRATCH).cast();
    // struct bpf_array (include/linux/bpf.h)
    let Some(address) = number(&raw const map) else {
        return;
    };
    let Some(base) = read((address + u64::from(offset!(array_pptrs))) as *const u64) else {
        return;
    };
    let mut cpu = 0;
    while cpu < CPUS_MAX && cpu < config!(cpus) {
        let key = 0_u32;
        // SAFETY: key and map have the types that the helper expects.
        let value: *const c_void =
            unsafe { bpf_map_lookup_percpu_elem(map.cast_mut(), (&raw const key).cast(), cpu) };
        if value.is_null() {
            return;
        }
        if let (Some(value), Some(offset)) =
            (number(&raw const value), PER_CPU_OFFSET.get_ptr_mut(cpu))
        {
            // SAFETY: an entry of the array, which only `mark` writes.
            unsafe { *offset = value.wrapping_sub(base) };
        }
        cpu += 1;
    }
}
