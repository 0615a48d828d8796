//! End-to-end tests: the real kernel, real workloads, real readers. Run by `cargo xtask test e2e`.

mod births;
mod crash;
mod ends;
mod errors;
mod sched;
mod ticks;

/// The program of `workload.rs`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");
