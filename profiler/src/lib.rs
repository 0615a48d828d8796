//! The controller of `profiler`: reads every source at each tick and writes Arrow batches as Parquet.
//!
//! Data flows one way: source → batch → journal → Parquet part. See `docs/architecture.md`.

pub mod bpf;
pub mod cli;
pub mod commands;
pub mod config;
pub mod failure;
pub mod host;
pub mod job;
pub mod marks;
pub mod output;
pub mod perf;
pub mod privileges;
pub mod procfs;
pub mod schema;
pub mod session;
pub mod sources;
pub mod support;
pub mod tasks;
