//! Tests that need only a kernel. They run on this machine (`cargo xtask test e2e`) and on other
//! kernels in virtual machines (`cargo xtask vm`). An emulated CPU is slow and its clock is coarse:
//! these tests compare counts and assume no speed.

mod block;
mod changed_counters;
mod devices;
mod file;
mod histograms;
mod hotplug;
mod losses;
mod migrations;
mod net;
mod perf;
mod pmu;
mod process;
mod programs;
mod sched;
mod sleepers;
mod syscalls;
mod targets;
mod usage;

/// Path of the program `bin/workload`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");
