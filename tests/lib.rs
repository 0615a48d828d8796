//! What the end-to-end tests share: running the profiler, reading its dataset with DuckDB, reading /proc, and
//! workloads whose true counts are known.

#![expect(
    clippy::missing_panics_doc,
    reason = "whatever is not as it should be fails the test"
)]

pub mod dataset;
pub mod procfs;
pub mod puppet;
pub mod runs;

/// An environment variable that `cargo xtask test` sets.
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use `cargo xtask test e2e`"))
}
