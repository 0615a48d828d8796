//! `profiler report`: a run as one HTML file.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::{read_runs, write_html};
use crate::{analysis::summary::Thresholds, failure::Failure, run_report::report as html_report};

/// Arguments of `profiler report`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Run directory
    #[arg(value_hint = ValueHint::DirPath)]
    run: PathBuf,
    /// File to write; `-` for the standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Leave out command lines and users
    #[arg(long)]
    redact: bool,
    /// File with [report.thresholds] [default: /etc/profiler.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the run cannot be read, or the file not be written.
    pub fn run(&self) -> Result<u8, Failure> {
        let thresholds = Thresholds::read(self.config.as_deref())?;
        let run = std::slice::from_ref(&self.run);
        let html = read_runs(run, |run| html_report(run, &thresholds, self.redact))?.concat();
        write_html(&self.output, &html)?;
        Ok(0)
    }
}
