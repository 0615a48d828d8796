//! The dataset as an output: the last one of the chain, which takes all rows.

use std::{fmt::Write as _, os::fd::OwnedFd, path::Path};

use serde_json::Value;

use super::{DatasetOptions, DatasetWriter, FinishError, OutputError, WriteSummary};
use crate::{
    output::{Output, OutputReport, Reading, SessionEnd},
    schema::Batch,
    support::{
        log,
        self_metrics::{Component, SelfMetrics},
    },
    warning,
};

/// The dataset of a session.
pub struct Dataset {
    writer: DatasetWriter,
    /// Whether other sessions or hosts can write the same run.
    is_shared: bool,
}

impl Dataset {
    /// Creates the run directory, or continues the run, and starts the writer.
    ///
    /// # Errors
    ///
    /// When nothing can be stored there.
    pub fn open(options: DatasetOptions, is_shared: bool) -> Result<Self, OutputError> {
        Ok(Self {
            writer: DatasetWriter::start(options)?,
            is_shared,
        })
    }

    /// The run directory, held open.
    pub fn directory(&self) -> Option<OwnedFd> {
        self.writer.directory()
    }

    /// Earlier sessions of this host in the run.
    pub fn earlier_sessions(&self) -> usize {
        let mut sessions = 0;
        self.writer
            .describe(|manifest| sessions = manifest.earlier.len());
        sessions
    }
}

/// The losses of a writer, in one line.
fn losses(result: &Result<WriteSummary, FinishError>, run_dir: &Path) -> Option<String> {
    let summary = match result {
        Ok(summary) if summary.is_complete() => return None,
        Ok(summary) => summary,
        Err(error) => return Some(error.to_string()),
    };
    let (dropped, journal) = summary.losses();
    let mut lost = format!("{dropped} rows lost");
    if journal != 0 {
        let _ = write!(
            lost,
            ", {journal} only in the journal: run `profiler recover {}` when there is space",
            run_dir.display()
        );
    }
    if let Some(error) = &summary.last_error {
        let _ = write!(lost, " ({error})");
    }
    Some(lost)
}

impl Output for Dataset {
    fn command_created(&mut self, pid: u32) {
        self.writer
            .describe(|manifest| manifest.target["pids"] = serde_json::json!([pid]));
    }

    fn reconfigured(&mut self, config: &Value) {
        self.writer
            .describe(|manifest| manifest.reconfigure(config));
    }

    fn write(&mut self, _reading: &Reading<'_>, batches: Vec<Batch>) -> Vec<Batch> {
        self.writer.write(batches);
        Vec::new()
    }

    fn update_self_metrics(&mut self, self_metrics: &mut SelfMetrics) {
        let stats = self.writer.stats();
        self_metrics.files = stats.parts;
        let metrics = self_metrics.account(Component::Sink, "parquet");
        metrics.runs = Some(stats.ticks);
        metrics.run_ns = Some(stats.write_ns);
        metrics.rows = Some(stats.rows);
        metrics.dropped = Some(stats.dropped);
        metrics.errors = Some(stats.errors);
        if let Some(error) = stats.last_error {
            warning!("profiler: output: {error}");
        }
    }

    fn finish(self: Box<Self>, end: &mut SessionEnd) -> OutputReport {
        self.writer.describe(|manifest| {
            manifest.losses.extend(end.losses.iter().cloned());
            manifest.set_end(end.ts.ns());
            manifest.exit_code = end.exit_code;
            manifest.clock.end = Some(end.clock);
            manifest.refused_claims.clone_from(&end.refused_claims);
        });
        let run_dir = self.writer.run_dir().to_owned();
        let result = self.writer.finish();
        if let Ok(summary) = &result
            && summary.is_complete()
            && let Some(error) = &summary.unreported
        {
            warning!("profiler: output: {error}");
        }
        let run = log::path(&run_dir);
        OutputReport {
            lines: vec![format!(
                "dataset    {run}\n           profiler summary {run}"
            )],
            lost: losses(&result, &run_dir).into_iter().collect(),
            run: Some(run_dir),
        }
    }

    fn discard(self: Box<Self>) {
        let run_dir = self.writer.run_dir().to_owned();
        let _ = self.writer.finish();
        // A shared run can have the data of others.
        if !self.is_shared {
            let _ = std::fs::remove_dir_all(run_dir);
        }
    }
}
