//! Shared by the end-to-end tests: runs of the profiler, readers of its dataset and of `/proc`,
//! workloads with known counts.

#![expect(
    clippy::missing_panics_doc,
    reason = "a failed assertion is the purpose of these functions"
)]

pub mod attacker;
pub mod cpus;
pub mod dataset;
pub mod delays;
pub mod hidden_time;
pub mod histogram;
pub mod mounts;
pub mod page;
pub mod procfs;
pub mod progress;
pub mod rows;
pub mod runs;
pub mod service_client;
pub mod stall_detector;
pub mod sysfs;
pub mod workload_driver;
pub mod writer;

/// Value of an environment variable set by `cargo xtask test`.
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use `cargo xtask test e2e`"))
}

/// Factor for all timeouts, because an emulated CPU is slow.
pub fn timeout_factor() -> u32 {
    let variable = std::env::var("PROFILER_TEST_TIMEOUT_FACTOR").ok();
    variable.map_or(1, |number| number.parse().expect("a number"))
}
