//! Tests that need nothing but a kernel: they run on the one at hand (`cargo xtask test e2e`) and, in virtual machines, on
//! others (`cargo xtask vm`). An emulated CPU is slow and its clock coarse: they count and compare, and expect no time.

mod block;
mod devices;
mod ends;
mod file;
mod histograms;
mod losses;
mod migrations;
mod net;
mod perf;
mod pmu;
mod programs;
mod sched;
mod scopes;
mod syscalls;
mod usage;

/// The program of `workload.rs`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");
