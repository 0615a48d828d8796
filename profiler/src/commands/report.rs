//! `profiler report`: a run as one HTML file.

use std::{fs, path::PathBuf};

use clap::{Args, ValueHint};

use super::{print, read_runs};
use crate::{
    analysis::{
        roofline::Sources,
        summary::{Thresholds, ceilings_file},
    },
    failure::{Failure, Reason},
    report,
    run_report::report as html_report,
};

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
    /// File with ceilings of the roofline, for example of the site; those of `profiler ceilings` are
    /// found without it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ceilings: Option<PathBuf>,
    /// File with [report] [default: /etc/profiler.toml]
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
        let site = ceilings_file(self.config.as_deref())?;
        let files = self.ceilings.iter().chain(&site).map(PathBuf::as_path);
        let sources = Sources::read(files)?;
        let run = std::slice::from_ref(&self.run);
        let html = read_runs(run, |run| {
            html_report(run, &thresholds, &sources, self.redact)
        })?
        .concat();
        if self.output.as_os_str() == "-" {
            print(html)?;
            return Ok(0);
        }
        fs::write(&self.output, html).map_err(|error| {
            Failure::new(
                Reason::Output,
                format!("{}: {error}", self.output.display()),
            )
        })?;
        report!("{}", self.output.display());
        Ok(0)
    }
}
