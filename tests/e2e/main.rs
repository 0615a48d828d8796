//! End-to-end tests: the real kernel, real workloads, real readers. Run by `cargo xtask test e2e`.

mod births;
mod cgroup;
mod crash;
mod deploy;
mod disk;
mod ends;
mod errors;
mod fleet;
mod gpu;
mod job_layouts;
mod jobs;
mod namespace;
mod nvidia;
mod oar;
mod perf;
mod psutil;
mod readers;
mod regions;
mod sched;
mod ticks;
mod timeline;
mod usage;

/// The program of `workload.rs`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");
