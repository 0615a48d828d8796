//! `profiler export`: stored runs as files of other formats.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum, ValueHint};

use super::{open_runs, quietly};
use crate::{
    analysis::stored_run::StoredRun,
    export::{
        Selection,
        files::{Destination, Files, create_directory},
        perfmon, perfpy, pytyche,
        selection::Moment,
        series::Series,
        tables,
    },
    failure::{Failure, Reason},
    report,
    schema::Table,
    sources::dataset_schema,
    support::units::{counted, positive},
};

/// Arguments of `profiler export`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Format
    format: Format,
    /// Run directories
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    runs: Vec<PathBuf>,
    /// File to write, or directory if the format has several; `-` for the standard output
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    output: PathBuf,
    /// Only this table, as one file; otherwise all tables, in a directory
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Time between samples, of formats with samples: increases are added up, other values averaged
    #[arg(long, value_name = "TIME", value_parser = positive)]
    every: Option<Duration>,
    /// Only rows after this time: since the start of the run (`90s`), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    from: Option<Moment>,
    /// Only rows before this time
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    to: Option<Moment>,
    /// Only rows at the time of regions of this name, on their node
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Only processes of this batch job
    #[arg(long, value_name = "ID")]
    jobid: Option<String>,
    /// Replace existing files
    #[arg(long)]
    force: bool,
}

/// Formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables as CSV
    Csv,
    /// Tables as JSON, an array of objects
    Json,
    /// Tables as JSON, one object per line
    Ndjson,
    /// Tables as Feather (Arrow IPC)
    Feather,
    /// Tables as Parquet, one file for all parts and nodes
    Parquet,
    /// Files of SKA SDP's perfmon in a directory: metrics as JSON and data frames, facts of the nodes
    Perfmon,
    /// Reports of perf.py for each node, as one JSON file, with the names of the nodes in `nodes.json`
    Perfpy,
    /// Files of pytyche in a directory: GPUs and CPUs as CSV, their summary, the log of the run
    Pytyche,
}

impl Format {
    fn of_tables(self) -> Option<tables::Format> {
        Some(match self {
            Self::Csv => tables::Format::Csv,
            Self::Json => tables::Format::Json,
            Self::Ndjson => tables::Format::Ndjson,
            Self::Feather => tables::Format::Feather,
            Self::Parquet => tables::Format::Parquet,
            Self::Perfmon | Self::Perfpy | Self::Pytyche => return None,
        })
    }
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a run cannot be read completely, or a file not be written.
    pub fn run(&self) -> Result<u8, Failure> {
        let runs = open_runs(&self.runs)?;
        let mut files = Files::new(self.force);
        let problems = quietly(|| match self.format.of_tables() {
            Some(format) => self.write_tables(&runs, format, &mut files),
            None => self.write_samples(&runs, &mut files),
        })?;
        let paths = files.commit()?;
        if paths.len() > 2 {
            let count = counted(paths.len() as u64, "file");
            report!("{count} in {}", self.output.display());
        } else {
            for path in &paths {
                report!("{}", path.display());
            }
        }
        if problems.is_empty() {
            return Ok(0);
        }
        for problem in &problems {
            report!("profiler: {problem}");
        }
        let message = "rows of these files are missing in the export";
        Err(Failure::new(Reason::Output, message))
    }

    fn selection(&self) -> Selection {
        Selection {
            from: self.from,
            to: self.to,
            region: self.region.clone(),
            job: self.jobid.clone(),
        }
    }

    /// Formats of other programs, which know one run.
    fn write_samples(&self, runs: &[StoredRun], files: &mut Files) -> Result<Vec<String>, Failure> {
        let [run] = runs else {
            let message = "this format has one run; export each to a file of its own";
            return Err(Failure::new(Reason::Usage, message));
        };
        if self.table.is_some() {
            let message = "--table is for formats of tables";
            return Err(Failure::new(Reason::Usage, message));
        }
        let series = Series {
            run,
            selection: &self.selection(),
            every: self.every,
        };
        match self.format {
            Format::Perfmon => return perfmon::write(&series, files, &self.output),
            Format::Pytyche => return pytyche::write(&series, files, &self.output),
            _ => {}
        }
        let destination = Destination::of(&self.output);
        let problems = files.write(&destination, |output| perfpy::write(&series, output))?;
        if let Destination::File(path) = &destination {
            let nodes = Destination::File(path.with_file_name("nodes.json"));
            files.write(&nodes, |output| {
                writeln!(output, "{:#}", perfpy::nodes(run))
                    .map_err(|error| Failure::new(Reason::Output, error.to_string()))
            })?;
        }
        Ok(problems)
    }

    fn write_tables(
        &self,
        runs: &[StoredRun],
        format: tables::Format,
        files: &mut Files,
    ) -> Result<Vec<String>, Failure> {
        if self.every.is_some() {
            let message = "--every is for formats with samples";
            return Err(Failure::new(Reason::Usage, message));
        }
        let selection = self.selection();
        let mut write = |table: &Table, path: &Path| {
            files.write(&Destination::of(path), |output| {
                tables::write(runs, table, &selection, format, output)
            })
        };
        if let Some(name) = &self.table {
            let table = dataset_schema().table(name).ok_or_else(|| {
                let names = dataset_schema().tables().map(|table| table.name);
                let names: Vec<_> = names.collect();
                let message = format!("no table {name}, but: {}", names.join(", "));
                Failure::new(Reason::Usage, message)
            })?;
            return write(table, &self.output);
        }
        if self.output.as_os_str() == "-" {
            let message = "the standard output takes one table: add --table NAME";
            return Err(Failure::new(Reason::Usage, message));
        }
        create_directory(&self.output)?;
        let mut problems: Vec<String> = Vec::new();
        for table in dataset_schema().tables() {
            let hosts = || runs.iter().flat_map(|run| run.hosts.iter());
            if hosts().any(|host| host.tables.contains(table.name)) {
                let name = format!("{}.{}", table.name, format.extension());
                problems.extend(write(table, &self.output.join(name))?);
            }
        }
        Ok(problems)
    }
}
