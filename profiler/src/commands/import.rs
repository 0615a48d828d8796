//! `profiler import`: files of other programs as runs.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use crate::{
    failure::Failure,
    import::{Origin, flowcept, perfmon, write},
    report,
    support::labels::Labels,
};

/// Arguments of `profiler import`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Format
    format: Format,
    /// File, or job directory of perfmon
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Directory of the run; it must not exist
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    output: PathBuf,
    /// Label of the run; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<Labels>,
}

/// Formats.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// JSON files of SKA SDP's perfmon (`metrics/`)
    Perfmon,
    /// JSON lines of Flowcept
    Flowcept,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the files cannot be read, or the run not be written.
    pub fn run(&self) -> Result<u8, Failure> {
        let (program, hosts) = match self.format {
            Format::Perfmon => ("perfmon", perfmon::hosts(&self.path)?),
            Format::Flowcept => ("flowcept", flowcept::hosts(&self.path)?),
        };
        let mut labels = Labels::default();
        for label in &self.labels {
            labels.0.extend(label.0.clone());
        }
        let origin = Origin {
            program,
            file: &self.path,
            labels: &labels,
        };
        write(hosts, &self.output, &origin)?;
        let run = self.output.display();
        report!("run {run}\n    profiler summary {run}");
        Ok(0)
    }
}
