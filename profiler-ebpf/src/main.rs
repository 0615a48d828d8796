//! The BPF object: every program of the library, linked for `bpfel-unknown-none`.
#![cfg_attr(target_arch = "bpf", no_std)]
#![cfg_attr(target_arch = "bpf", no_main)]

// Keeps the library's programs in the object.
#[cfg(target_arch = "bpf")]
pub use profiler_ebpf::programs;

/// Some helpers of the kernel are available only to GPL-compatible programs.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
