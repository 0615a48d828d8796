//! Settings of a site for reports: `[report]` in the configuration file.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Node;
use crate::{
    config::file::{Configuration, REPORT},
    failure::Failure,
};

/// Limits above which a node of a run has a tag. None has a default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    /// Mean utilization of the node's CPUs, %: tag `high_cpu`.
    pub cpu_percent: Option<f64>,
    /// Peak memory of the target, bytes: tag `high_memory`.
    pub memory_bytes: Option<f64>,
    /// Bytes read from and written to files: tag `high_io`.
    pub disk_bytes: Option<f64>,
    /// CPU time of the target, s: tag `high_cpu_time`.
    pub cpu_seconds: Option<f64>,
}

/// The table `[report]` of the configuration.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Report {
    thresholds: Thresholds,
    /// File with ceilings of the roofline.
    ceilings: Option<PathBuf>,
}

impl Report {
    /// Reads the given file, or those of the system.
    fn read(config: Option<&Path>) -> Result<Self, Failure> {
        Configuration::read(config)?.table(REPORT)
    }
}

/// Checks the table.
///
/// # Errors
///
/// When it has an unknown entry or an invalid value.
pub fn check(configuration: &Configuration) -> Result<(), Failure> {
    configuration.table::<Report>(REPORT).map(drop)
}

/// The file with ceilings that the site names: `ceilings` in `[report]`.
///
/// # Errors
///
/// When a given file cannot be read, or a value is invalid.
pub fn ceilings_file(config: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    Ok(Report::read(config)?.ceilings)
}

impl Thresholds {
    /// Reads the given file, or those of the system.
    ///
    /// # Errors
    ///
    /// When a given file cannot be read, or a value is invalid.
    pub fn read(config: Option<&Path>) -> Result<Self, Failure> {
        Ok(Report::read(config)?.thresholds)
    }

    /// Tags of the thresholds that the node exceeds.
    pub fn exceeded(&self, node: &Node) -> Vec<&'static str> {
        let target = |name| node.target.get(name);
        let files = [target("file_read_bytes"), target("file_write_bytes")];
        let files = files.iter().flatten().copied().reduce(|a, b| a + b);
        [
            (
                "high_cpu",
                self.cpu_percent,
                node.node.get("node_cpu_utilization_percent"),
            ),
            (
                "high_memory",
                self.memory_bytes,
                target("peak_memory_bytes"),
            ),
            ("high_io", self.disk_bytes, files),
            ("high_cpu_time", self.cpu_seconds, target("cpu_s")),
        ]
        .into_iter()
        .filter(|(_, limit, value)| {
            limit
                .zip(*value)
                .is_some_and(|(limit, value)| value >= limit)
        })
        .map(|(tag, ..)| tag)
        .collect()
    }
}
