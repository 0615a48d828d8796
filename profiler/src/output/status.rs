//! The status of a session as an output: it passes all rows on.

use serde_json::Value;

use super::{
    Output, OutputReport, Reading, SessionEnd,
    retention::Retention,
    status_file::{Status, StatusFile},
};
use crate::{
    schema::Batch,
    support::self_metrics::{Component, SelfMetrics},
    warning,
};

/// Least time between two updates of the file, ns.
const PERIOD: u64 = 1_000_000_000;

/// Keeps the status file of a session.
pub struct StatusOutput {
    file: Option<StatusFile>,
    status: Status,
    retention: Option<Retention>,
    /// Time of the last update, `CLOCK_MONOTONIC` in ns.
    written: u64,
    /// Parquet files so far.
    files: u64,
}

impl StatusOutput {
    /// Creates the file. Without it, the session is not listed by `profiler status`.
    pub fn start(status: Status, retention: Option<Retention>) -> Self {
        let file = StatusFile::create(&status).unwrap_or_else(|error| {
            warning!("profiler: no status for `profiler status`: {error}");
            None
        });
        Self {
            file,
            status,
            retention,
            written: 0,
            files: 0,
        }
    }
}

impl Output for StatusOutput {
    fn reconfigured(&mut self, config: &Value) {
        self.status.interval_ns = config["interval_ns"].as_u64();
    }

    fn update_self_metrics(&mut self, self_metrics: &mut SelfMetrics) {
        let own = self_metrics.account(Component::Profiler, "profiler");
        self.status.samples = own.runs;
        if std::mem::replace(&mut self.files, self_metrics.files) != self_metrics.files {
            self.status.file_ts = self.status.sample_ts;
        }
    }

    fn write(&mut self, reading: &Reading<'_>, batches: Vec<Batch>) -> Vec<Batch> {
        self.status.sample_ts = Some(reading.ts.ns());
        if let Some(file) = &self.file
            && reading.monotonic_ns.saturating_sub(self.written) >= PERIOD
        {
            self.written = reading.monotonic_ns;
            self.status.losses = (reading.losses)();
            self.status.disk = self.retention.as_ref().and_then(Retention::disk);
            // The next update tries again.
            let _ = file.write(&self.status);
        }
        batches
    }

    fn finish(self: Box<Self>, _end: &mut SessionEnd) -> OutputReport {
        OutputReport::default()
    }
}
