//! The `profiler` command.
fn main() {}
