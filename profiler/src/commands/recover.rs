//! `profiler recover`: turns the journals of killed profilers into Parquet files.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use super::{TrustOption, find_run::named_below, runs_among};
use crate::{
    failure::{Failure, Reason},
    output::dataset::recover::{Hosts, JournalOutcome, RecoveryReport, recover},
    report,
    sources::dataset_schema,
    support::{
        log::{self, harmless_message},
        units::counted,
    },
};

/// Arguments of `profiler recover`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Run directories
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    run: Vec<PathBuf>,
    #[command(flatten)]
    trust: TrustOption,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a run cannot be read, or a profiler is writing it.
    pub fn run(&self) -> Result<u8, Failure> {
        let mut complete = true;
        for run in runs_among(&self.run) {
            if !run.join("run.json").exists() {
                let message = format!(
                    "cannot recover {}: not a run directory: no run.json",
                    run.display()
                );
                return Err(Failure::new(Reason::Target, message + &named_below(run)));
            }
            let result = recover(run, Hosts::All, dataset_schema(), self.trust.trust())
                .map_err(|error| Failure::new(Reason::Output, error.to_string()))?;
            print(run, &result);
            complete &= result.is_complete();
        }
        Ok(if complete { 0 } else { Reason::Output as u8 })
    }
}

fn print(run: &Path, result: &RecoveryReport) {
    let rows: u64 = result.rows.values().sum();
    report!("{}: {} recovered", run.display(), counted(rows, "row"));
    for (path, outcome) in &result.journals {
        match outcome {
            JournalOutcome::Damaged {
                path: kept,
                rows,
                error,
            } => report!(
                "  {}: damaged after {} ({}); kept as {}",
                log::path(path),
                counted(*rows, "row"),
                harmless_message(error),
                log::path(kept)
            ),
            JournalOutcome::Failed { error } => {
                report!("  {}: {}", log::path(path), harmless_message(error));
            }
            JournalOutcome::InUse => report!("  {}: a profiler is writing it", log::path(path)),
            JournalOutcome::Recovered { .. } | JournalOutcome::Stale | JournalOutcome::Empty => {}
        }
    }
    for error in &result.errors {
        report!("  {}", harmless_message(error));
    }
}
