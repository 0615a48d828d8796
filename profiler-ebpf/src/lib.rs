//! The BPF programs, and the declarations that they share with the profiler.
//!
//! Both sides compile the same definitions. Structs that cross the border are `repr(C)` and have no
//! padding, which is asserted. Times are ns of `CLOCK_MONOTONIC` unless a field names another
//! clock.
#![warn(missing_docs)]
#![cfg_attr(target_arch = "bpf", no_std)]
// Atomic read-modify-write instructions of BPF exist only as inline assembly.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[macro_use]
mod declare;

pub mod config;
pub mod event;
pub mod histogram;
pub mod maps;
pub mod names;
pub mod offsets;
pub mod per_key;
pub mod record;

#[cfg(target_arch = "bpf")]
pub mod programs;
