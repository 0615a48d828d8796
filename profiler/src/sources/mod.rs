//! The sources: each turns one reading of the system into batches of its tables.
//!
//! A source knows nothing of outputs, and nothing outside this directory knows a source by name.
//! Each `pub mod` below registers the `SPEC` of that module: the build script makes [`REGISTRY`]
//! from these lines, in their order, which is also the order of the reference.

mod bpf_support;
mod energy_attribution;
mod latency;
mod spec;

pub mod process;
pub mod region;
pub mod sched;
pub mod usage;
pub mod file_io;
pub mod block_io;
pub mod net_io;
pub mod syscalls;
pub mod perf;
pub mod baseline;
pub mod system;
pub mod cpu;
pub mod contention;
pub mod energy;
pub mod gpu;
pub mod disk;
pub mod filesystem;
pub mod netdev;
pub mod fabric;
pub mod host;
pub mod timeline;
pub mod overhead;

use std::sync::LazyLock;

pub use self::{
    bpf_support::{LoadTrial, of_result, trial},
    latency::TABLE as LATENCY,
    spec::{Input, OpenContext, Source, SourceSpec, Stage, Support, TickContext},
};
use crate::schema::DatasetSchema;
pub use crate::schema::View;

/// Every source.
pub static REGISTRY: &[&SourceSpec] = &include!(concat!(env!("OUT_DIR"), "/registry.rs"));

/// Tables and views of all sources.
pub fn dataset_schema() -> &'static DatasetSchema {
    static SCHEMA: LazyLock<DatasetSchema> = LazyLock::new(|| {
        let tables = REGISTRY
            .iter()
            .flat_map(|spec| spec.tables.iter().map(|table| (spec.name, *table)));
        let views = REGISTRY
            .iter()
            .flat_map(|spec| spec.views.iter().copied())
            .collect();
        DatasetSchema::new(tables, views)
    });
    &SCHEMA
}
