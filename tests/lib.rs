//! What the end-to-end tests share: running the profiler, reading its dataset, reading /proc, and
//! workloads whose true counts are known.

#![expect(
    clippy::missing_panics_doc,
    reason = "whatever is not as it should be fails the test"
)]

pub mod attacker;
pub mod dataset;
pub mod metronome;
pub mod mounts;
pub mod procfs;
pub mod puppet;
pub mod rows;
pub mod runs;
pub mod sysfs;

/// An environment variable that `cargo xtask test` sets.
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use `cargo xtask test e2e`"))
}

/// How many times longer than usual to wait for something: an emulated CPU is slow.
pub fn patience() -> u32 {
    let variable = std::env::var("PROFILER_TEST_PATIENCE").ok();
    variable.map_or(1, |number| number.parse().expect("a number"))
}
