//! The profiler process: reads all sources at each sample and hands Arrow batches to the
//! outputs. `docs/architecture.md` describes the modules.

pub mod analysis;
#[cfg(test)]
mod architecture;
pub mod bpf;
pub mod ceilings;
pub mod charts;
pub mod cli;
pub mod commands;
pub mod config;
pub mod download;
pub mod export;
pub mod failure;
pub mod host;
pub mod import;
pub mod job;
pub mod marks;
pub mod object_store;
pub mod output;
pub mod perf;
pub mod privileges;
pub mod procfs;
pub mod run_report;
#[cfg(test)]
mod scenarios;
pub mod schema;
pub mod service;
pub mod session;
pub mod sources;
pub mod support;
pub mod tasks;
