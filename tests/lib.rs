//! What the end-to-end tests share: running the profiler, reading its dataset with DuckDB, reading /proc, and
//! workloads whose true counts are known.

pub mod dataset;
pub mod procfs;
pub mod puppet;
pub mod runs;

/// An environment variable that `cargo xtask test` sets.
///
/// # Panics
///
/// When it is missing: a test that cannot run fails.
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use `cargo xtask test e2e`"))
}
