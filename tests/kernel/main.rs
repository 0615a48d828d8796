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
mod names;
mod net;
mod perf;
mod pmu;
mod process;
mod programs;
mod sched;
mod sleepers;
mod syscalls;
mod targets;
mod two_cpus;
mod usage;

/// Version and patch level of the running kernel: `[6, 12]`.
fn kernel_release() -> [u32; 2] {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().expect("UTF-8");
    let mut numbers = release.split('.').map_while(|number| number.parse().ok());
    let mut next = || numbers.next().expect("a number");
    [next(), next()]
}

/// Path of the program `bin/workload`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");
