//! `profiler verify`: checks that a run is complete. Reads all data once and changes nothing.

mod clocks;
mod columns;
mod compacted;
mod directories;
mod files;
mod hosts;
#[cfg(test)]
mod tests;
mod text;
mod ticks;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use clap::{Args, ValueHint};
use serde::Serialize;

use self::{clocks::Clock, files::Contents, ticks::Ticks};
use super::{
    TrustOption, find_run::given_or_newest, no_run, print, print_json, quietly, runs_among,
};
use crate::{
    failure::{Failure, Reason, os_error::without_code},
    output::dataset::{
        files::Directory,
        foreign_file::Trust,
        manifest::{Manifest, State},
    },
    schema::run::RUN,
};

/// Arguments of `profiler verify`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Run directories, the directory `compacted`, or addresses: s3://BUCKET/PREFIX/RUN,
    /// https://HOST/PATH/RUN [default: the newest run in the output directory]
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    run: Vec<PathBuf>,
    /// Print JSON: one report per run
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: TrustOption,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a run cannot be read.
    pub fn run(&self) -> Result<u8, Failure> {
        let runs = given_or_newest(&self.run)?;
        let reports = runs_among(&runs).map(|run| verify_at(run, self.trust));
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        if self.json {
            print_json(&reports)?;
        } else {
            for report in &reports {
                print(report.text())?;
            }
        }
        let ok = reports.iter().all(|report| report.ok);
        Ok(if ok { 0 } else { Reason::VerifyFailed as u8 })
    }
}

/// Result for a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Directory of the run.
    pub path: PathBuf,
    /// Name of the run in the `run.json` of the first host.
    pub run_id: Option<String>,
    /// Whether there are no problems.
    pub ok: bool,
    /// Hosts with a `run.json` or rows.
    pub hosts: BTreeMap<String, HostReport>,
    /// Tables with rows or journals.
    pub tables: BTreeMap<String, TableReport>,
    /// Time between the first and the last start of a host, ns, each by its own clock.
    pub starts_within_ns: Option<u64>,
    /// Time between the first and the last end of a host, ns, each by its own clock.
    pub ends_within_ns: Option<u64>,
    /// Missing, damaged or contradictory data.
    pub problems: Vec<String>,
    /// Findings that are not problems.
    pub notes: Vec<String>,
}

/// Result for one host.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    /// State of the last session; `None` without `run.json`.
    pub state: Option<State>,
    /// Whether its profiler is running; `None` if unknown on this machine.
    pub alive: Option<bool>,
    /// Start of the first session, RFC 3339.
    pub start: Option<String>,
    /// End of the last session, RFC 3339.
    pub end: Option<String>,
    /// Number of sessions.
    pub sessions: usize,
    /// Rows in Parquet files.
    pub rows: u64,
    /// Number of Parquet files.
    pub parts: u64,
    /// Rows that are only in journals.
    pub in_journals: u64,
    /// Ticks of all sessions.
    pub samples: Ticks,
    /// The clock, compared with that of the first host.
    pub clock: Clock,
    /// Rows per table.
    pub tables: BTreeMap<String, u64>,
}

/// Result for one table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableReport {
    /// Number of hosts with rows.
    pub hosts: u64,
    /// Rows in Parquet files.
    pub rows: u64,
    /// Number of Parquet files.
    pub parts: u64,
    /// Size of Parquet files and journals in bytes.
    pub bytes: u64,
}

/// Checks a run in a directory or on a server.
fn verify_at(name: &Path, trust: TrustOption) -> Result<Report, Failure> {
    let run = trust.resolve(name)?;
    let report = quietly(|| verify(&run.directory, run.trust));
    let mut report = report.map_err(|error| no_run(&run, &error))?;
    report.path = run.name;
    report.problems.splice(0..0, run.problems);
    report.ok = report.problems.is_empty();
    Ok(report)
}

/// Checks the run in `path`, or the compacted files of many runs.
///
/// # Errors
///
/// When the directory cannot be read, or is not a run.
pub fn verify(path: &Path, trust: Trust) -> io::Result<Report> {
    if let Some(dataset) = compacted::dataset(path) {
        return compacted::verify(path, &dataset, trust);
    }
    let run = Directory::open(path, None)?.trusting(trust);
    let mut report = Report {
        path: path.to_owned(),
        ..Report::default()
    };
    let (manifests, tables, compacted) = report.overview(&run)?;
    report.run_id = manifests
        .values()
        .map(|manifest| manifest.run_id.clone())
        .find(|id| !id.is_empty());
    let contents = report.read(&run, &tables, &compacted);
    let (run_table, contents) = contents
        .into_iter()
        .partition(|((table, _), _)| table == RUN.name);
    report.run_table(&manifests, &run_table);
    report.columns(&contents);
    report.hosts(&manifests, &contents);
    report.sums(&manifests, &contents);
    report.ok = report.problems.is_empty();
    Ok(report)
}

/// Table and host of every directory with rows.
type Directories = Vec<(String, String)>;

/// Content of each table and host.
type All = BTreeMap<(String, String), Contents>;

impl Report {
    fn problem(&mut self, text: impl Into<String>) {
        let text: String = text.into();
        self.problems.push(without_code(&text).into_owned());
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    fn sums(&mut self, manifests: &BTreeMap<String, Manifest>, all: &All) {
        for ((table, _), contents) in all {
            let sum = self.tables.entry(table.clone()).or_default();
            sum.hosts += 1;
            sum.rows += contents.rows;
            sum.parts += contents.parts;
            sum.bytes += contents.bytes;
        }
        let within = |times: Vec<i64>| Some(times.iter().max()?.abs_diff(*times.iter().min()?));
        let starts = manifests.values().filter_map(|m| m.sessions().next());
        self.starts_within_ns = within(starts.map(|first| first.start_ts).collect());
        self.ends_within_ns = within(manifests.values().filter_map(|m| m.end_ts).collect());
    }
}
