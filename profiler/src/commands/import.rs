//! `profiler import`: files of other programs as runs.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use crate::{
    failure::{Failure, Reason},
    import::{Origin, flowcept, perfmon, perfpy, write},
    report,
    support::{labels::Labels, units},
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
    /// perfpy: CPUs of each node, to convert its percentages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// perfpy: memory of each node, to convert its percentages: 256G
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    memory: Option<u64>,
    /// Label of the run; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<Labels>,
}

/// Formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// JSON files of SKA SDP's perfmon (`metrics/`)
    Perfmon,
    /// JSON lines of Flowcept
    Flowcept,
    /// Reports of perf.py, as it saves them in one JSON file
    Perfpy,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the files cannot be read, or the run not be written.
    pub fn run(&self) -> Result<u8, Failure> {
        if self.format != Format::Perfpy && (self.cpus.is_some() || self.memory.is_some()) {
            let message = "--cpus and --memory are for perfpy";
            return Err(Failure::new(Reason::Usage, message));
        }
        let nodes = perfpy::Nodes {
            cpus: self.cpus,
            memory: self.memory,
        };
        let (program, hosts) = match self.format {
            Format::Perfmon => ("perfmon", perfmon::hosts(&self.path)?),
            Format::Flowcept => ("flowcept", flowcept::hosts(&self.path)?),
            Format::Perfpy => ("perf.py", perfpy::hosts(&self.path, nodes)?),
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
