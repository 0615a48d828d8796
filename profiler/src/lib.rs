//! The controller of `profiler`: reads every source at each tick and writes Arrow batches as Parquet.
//!
//! Data flows one way: source → batch → journal → Parquet part. See `docs/architecture.md`.

pub mod bpf;
pub mod clock;
pub mod host;
pub mod schema;
pub mod sink;
pub mod sources;
pub mod tasks;
