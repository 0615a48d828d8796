//! End-to-end tests: the real kernel, real workloads, real readers. Run by `cargo xtask test e2e`.

mod births;
mod cgroup;
mod command_line;
mod crash;
mod deploy;
mod disk;
mod ends;
mod errors;
mod fleet;
mod front_door;
mod golden;
mod gpu;
mod hostile;
mod job_layouts;
mod jobs;
mod namespace;
mod nvidia;
mod oar;
mod perf;
mod psutil;
mod readers;
mod recipes;
mod regions;
mod retention;
mod runqueue;
mod sched;
mod soak;
mod started;
mod system;
mod ticks;
mod timeline;
mod tools;
mod usage;

/// The program of `workload.rs`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");
