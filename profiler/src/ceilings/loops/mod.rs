//! Loops with a known number of floating-point operations and bytes.
//!
//! `profiler ceilings` measures the CPU with them, and the test program `workload-flops` compiles the
//! same files (`#[path]`) to check counters: they use nothing of the rest of the crate, so that the
//! program is small.

#[cfg(target_arch = "aarch64")]
#[path = "arm.rs"]
mod instructions;
pub mod kernel;
mod triad;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod instructions;

pub use self::{kernel::Kernel, triad::Triad};

/// Kernels on registers that this machine supports.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    let kernels = instructions::all().into_iter();
    kernels.filter(|kernel| (kernel.is_supported)())
}
