//! The controller of `profiler`: reads every source at each tick and writes Arrow batches as Parquet.
//!
//! Data flows one way: source → batch → journal → Parquet part. See `docs/architecture.md`.

pub mod bpf;
mod cache;
pub mod check;
pub mod cli;
pub mod clock;
pub mod config;
pub mod events;
pub mod failure;
pub mod host;
pub mod job;
pub mod launch;
pub mod ledger;
pub mod log;
pub mod marks;
pub mod perf;
pub mod privileges;
mod process_file;
pub mod reference;
pub mod run;
mod runtime_directory;
pub mod schema;
pub mod sink;
pub mod sources;
mod summary;
pub mod target;
pub mod tasks;
pub mod units;
pub mod verify;
