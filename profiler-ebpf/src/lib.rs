//! What the BPF programs and the controller share: the wire structs, the kernel fields that are read, and (for
//! the BPF target) the programs themselves.
#![cfg_attr(target_arch = "bpf", no_std)]
// The compiler knows atomic read-modify-write of BPF only as inline assembly.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

pub mod offsets;
pub mod per_key;
pub mod wire;

#[cfg(target_arch = "bpf")]
pub mod programs;
