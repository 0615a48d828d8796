//! `profiler export`: stored runs as files of other formats.

use std::{
    env,
    fmt::Display,
    fs::File,
    io::{self, BufWriter, Seek as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum, ValueHint};
use flate2::{Compression, write::GzEncoder};

use super::{ClaimOption, TrustOption, open_run, quietly};
use crate::{
    analysis::{
        roofline::Sources,
        stored_run::StoredRun,
        summary::{Summary, Thresholds, document, summarize},
    },
    export::{
        Selection, chrome_trace,
        files::{Destination, Files, create_directory},
        flowcept, mlflow, perfmon, perfpy, prov, pytyche,
        selection::Moment,
        series::Series,
        tables,
    },
    failure::{Failure, Reason},
    report,
    run_report::{Report, html},
    schema::Table,
    sources::dataset_schema,
    support::{
        log::harmless_message,
        names,
        units::{counted, positive},
    },
};

/// Arguments of `profiler export`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Format
    format: Format,
    /// Run directories, or addresses of runs: s3://BUCKET/PREFIX/RUN, https://HOST/PATH/RUN
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    runs: Vec<PathBuf>,
    /// File to write, or directory; `-` for stdout
    ///
    /// The single file of `chrome-trace`, `flowcept`, `perfpy` or `prov` is compressed if its name ends
    /// in .gz.
    ///
    /// For `mlflow`, URI of the server [default: $MLFLOW_TRACKING_URI].
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,
    /// Export only this table, as one file; otherwise all tables, in a directory
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Downsample formats with samples: counters are summed, gauges time-averaged
    #[arg(long, value_name = "TIME", value_parser = positive)]
    every: Option<Duration>,
    /// Export only rows after this time: since the start of the run (`90s`), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    from: Option<Moment>,
    /// Export only rows before this time
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    to: Option<Moment>,
    /// Export only rows within the time of regions of this name, on their node
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Export only processes of this batch job
    #[arg(long, value_name = "ID")]
    jobid: Option<String>,
    /// In `csv`, prefix text that a spreadsheet could take for a formula with an apostrophe
    #[arg(long)]
    spreadsheet_safe: bool,
    /// Replace existing files
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    trust: TrustOption,
    #[command(flatten)]
    claim: ClaimOption,
    // Last, because its heading is that of all options after it.
    #[command(flatten)]
    mlflow: MlflowOptions,
}

/// Where a run goes on an MLflow server.
#[derive(Args, Debug)]
#[command(next_help_heading = "MLflow")]
struct MlflowOptions {
    /// Log to this run of the server; otherwise a new run is created
    #[arg(long, env = "MLFLOW_RUN_ID", value_name = "ID")]
    mlflow_run: Option<String>,
    /// Experiment of the new run; created if it does not exist
    #[arg(
        long,
        env = "MLFLOW_EXPERIMENT_NAME",
        value_name = "NAME",
        default_value = "Default"
    )]
    experiment: String,
    /// Prefix of the names of parameters and of node metrics
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    prefix: String,
    /// Do not store the report, the summary and the reports of perf.py
    #[arg(long)]
    no_artifacts: bool,
}

/// Formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
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
    /// Metrics, parameters, tags and a report on an MLflow server; credentials as for MLflow's
    /// client
    Mlflow,
    /// Files of SKA SDP's perfmon in a directory: metrics as JSON and data frames, node information
    Perfmon,
    /// Trace events for Perfetto: processes, regions and counters over time
    ChromeTrace,
    /// Records of Flowcept: the workflow and its tasks with telemetry, one JSON object per line
    Flowcept,
    /// Reports of perf.py for each node in one JSON file; names of the nodes in `nodes.json`
    Perfpy,
    /// Provenance of regions, their inputs and outputs, as W3C PROV-JSON
    Prov,
    /// Files of pytyche in a directory: GPUs and CPUs as CSV, their summary, run log
    Pytyche,
}

impl Format {
    /// As on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Where a run's files in this format go, below its exports: a directory for formats with several
    /// files.
    pub(super) fn place(self) -> String {
        match (self, self.file()) {
            (Self::Perfpy, _) | (_, None) => format!("{}/", self.name()),
            (_, Some(_)) => String::new(),
        }
    }

    /// Name of the file in a directory, for formats of other programs with one file.
    fn file(self) -> Option<&'static str> {
        match self {
            Self::ChromeTrace => Some("chrome-trace.json.gz"),
            Self::Flowcept => Some("flowcept.jsonl"),
            Self::Perfpy => Some("perf.json"),
            Self::Prov => Some("prov.json"),
            _ => None,
        }
    }

    fn of_tables(self) -> Option<tables::Format> {
        Some(match self {
            Self::Csv => tables::Format::Csv,
            Self::Json => tables::Format::Json,
            Self::Ndjson => tables::Format::Ndjson,
            Self::Feather => tables::Format::Feather,
            Self::Parquet => tables::Format::Parquet,
            Self::ChromeTrace
            | Self::Flowcept
            | Self::Mlflow
            | Self::Perfmon
            | Self::Perfpy
            | Self::Prov
            | Self::Pytyche => {
                return None;
            }
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
        let of_mlflow = !self.mlflow.prefix.is_empty() || self.mlflow.no_artifacts;
        if of_mlflow && self.format != Format::Mlflow {
            let message = "--prefix and --no-artifacts are for mlflow";
            return Err(Failure::new(Reason::Usage, message));
        }
        if self.spreadsheet_safe && self.format != Format::Csv {
            let message = "--spreadsheet-safe is for csv";
            return Err(Failure::new(Reason::Usage, message));
        }
        if self.claim.is_taken()? {
            return Ok(0);
        }
        let resolved = self.trust.resolve_all(&self.runs)?;
        let runs: Result<Vec<_>, _> = resolved.iter().map(open_run).collect();
        let runs = runs?;
        self.selection().check(&runs)?;
        let mut files = Files::new(self.force);
        let format = match self.format.of_tables() {
            Some(_) if self.spreadsheet_safe => Some(tables::Format::SpreadsheetCsv),
            format => format,
        };
        let mut problems = quietly(|| match format {
            Some(format) => self.write_tables(&runs, format, &mut files),
            None if self.format == Format::Mlflow => self.log_runs(&runs),
            None => self.write_run(&runs, &mut files),
        })?;
        problems.extend(runs.iter().flat_map(StoredRun::missing_rows).cloned());
        problems.extend(resolved.into_iter().flat_map(|run| run.problems));
        problems.sort_unstable();
        problems.dedup();
        let paths = files.commit()?;
        if paths.len() > 2 {
            let count = counted(paths.len() as u64, "file");
            report!("{count} in {}", self.output()?.display());
        } else {
            for path in &paths {
                report!("{}", path.display());
            }
        }
        if problems.is_empty() {
            return Ok(0);
        }
        for problem in &problems {
            report!("profiler: {}", harmless_message(problem));
        }
        let message = "rows of these files are missing in the export";
        Err(Failure::new(Reason::Output, message))
    }

    fn output(&self) -> Result<&Path, Failure> {
        let missing = || Failure::new(Reason::Usage, "add -o PATH: where the export goes");
        self.output.as_deref().ok_or_else(missing)
    }

    /// Logs runs on an MLflow server.
    fn log_runs(&self, runs: &[StoredRun]) -> Result<Vec<String>, Failure> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let given = self
            .output
            .as_ref()
            .map(|output| output.to_string_lossy().into_owned());
        let server = given
            .or_else(|| variable("MLFLOW_TRACKING_URI"))
            .ok_or_else(|| {
                let message = "add -o URI, or set MLFLOW_TRACKING_URI: the server";
                Failure::new(Reason::Usage, message)
            })?;
        let options = &self.mlflow;
        if self.table.is_some() {
            return Err(of_tables("--table"));
        }
        let [from, to] = [self.from, self.to].map(|moment| moment.is_some());
        if from || to || self.region.is_some() || self.jobid.is_some() {
            let message = "mlflow takes whole runs: no --from, --to, --region or --jobid";
            return Err(Failure::new(Reason::Usage, message));
        }
        if options.mlflow_run.is_some() && runs.len() > 1 {
            let message = "--mlflow-run takes one run; without it, each gets a run of its own";
            return Err(Failure::new(Reason::Usage, message));
        }
        let client = mlflow::Client::new(&server, variable)?;
        let target = mlflow::Target {
            client: &client,
            run: options.mlflow_run.as_deref(),
            experiment: &options.experiment,
            prefix: &options.prefix,
            replaces: self.force,
        };
        let mut problems = Vec::new();
        for run in runs {
            let series = Series {
                run,
                selection: &Selection::default(),
                every: self.every,
            };
            let summary = summarize(run, &Thresholds::default());
            let artifacts = if options.no_artifacts {
                Vec::new()
            } else {
                artifacts(&series, &summary)?
            };
            let logged = mlflow::write(&series, &summary, &target, artifacts)?;
            report!("{}: run {}", client.server(), logged.id);
            problems.extend(logged.failures);
            problems.extend(summary.problems);
        }
        problems.sort_unstable();
        problems.dedup();
        Ok(problems)
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
    fn write_run(&self, runs: &[StoredRun], files: &mut Files) -> Result<Vec<String>, Failure> {
        let [run] = runs else {
            let message = "this format has one run; export each to a file of its own";
            return Err(Failure::new(Reason::Usage, message));
        };
        if self.table.is_some() {
            return Err(of_tables("--table"));
        }
        let has_samples = !matches!(self.format, Format::Flowcept | Format::Prov);
        if self.every.is_some() && !has_samples {
            return Err(no_samples());
        }
        let series = Series {
            run,
            selection: &self.selection(),
            every: self.every,
        };
        let output = self.output()?;
        let several = match self.format {
            Format::Perfmon | Format::Pytyche => Some("-o DIRECTORY"),
            Format::Perfpy => Some("-o FILE, beside which nodes.json is written"),
            _ => None,
        };
        if let (Some(remedy), "-") = (several, output.as_os_str().to_str().unwrap_or_default()) {
            let message = format!("this format has several files: use {remedy}");
            return Err(Failure::new(Reason::Usage, message));
        }
        match self.format {
            Format::Perfmon => return perfmon::write(&series, files, output),
            Format::Pytyche => return pytyche::write(&series, files, output),
            _ => {}
        }
        let output = match self.format.file() {
            Some(name) if is_directory(output) => {
                create_directory(output)?;
                output.join(name)
            }
            _ => output.to_owned(),
        };
        let destination = Destination::of(&output);
        let directory = destination.directory();
        let write = |output: &mut dyn io::Write| match self.format {
            Format::ChromeTrace => chrome_trace::write(&series, output),
            Format::Flowcept => flowcept::write(&series, &directory, output),
            Format::Prov => prov::write(&series, &directory, output),
            _ => perfpy::write(&series, output),
        };
        let is_compressed = output
            .extension()
            .is_some_and(|extension| extension == "gz");
        let problems = files.write(&destination, |output| {
            if !is_compressed {
                return write(output);
            }
            let mut compressed = GzEncoder::new(output, Compression::default());
            let problems = write(&mut compressed)?;
            compressed.finish().map_err(output_failure)?;
            Ok(problems)
        })?;
        if let (Format::Perfpy, Destination::File(path)) = (self.format, &destination) {
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
            return Err(no_samples());
        }
        let output = self.output()?;
        let selection = self.selection();
        let mut write = |table: &Table, path: &Path| {
            files.write(&Destination::of(path), |output| {
                tables::write(runs, table, &selection, format, output)
            })
        };
        if let Some(name) = &self.table {
            let table = dataset_schema().table(name).ok_or_else(|| {
                let known = dataset_schema().tables().map(|table| table.name);
                Failure::new(Reason::Usage, names::unknown("table", name, known))
            })?;
            return write(table, output);
        }
        if output.as_os_str() == "-" {
            let message = "the standard output takes one table: add --table NAME";
            return Err(Failure::new(Reason::Usage, message));
        }
        create_directory(output)?;
        let mut problems: Vec<String> = Vec::new();
        for table in dataset_schema().tables() {
            let hosts = || runs.iter().flat_map(|run| run.hosts.iter());
            if hosts().any(|host| host.tables.contains(table.name)) {
                let name = format!("{}.{}", table.name, format.extension());
                problems.extend(write(table, &output.join(name))?);
            }
        }
        Ok(problems)
    }
}

/// What an MLflow server stores besides: the report and the summary, without command lines and users,
/// because others can read them, and the reports of perf.py.
fn artifacts(series: &Series<'_>, summary: &Summary) -> Result<Vec<(&'static str, File)>, Failure> {
    let report = Report::new(
        series.run,
        &Thresholds::default(),
        &Sources::read(std::iter::empty())?,
        true,
    );
    let mut redacted = summary.clone();
    redacted.redact();
    let texts = [
        ("report.html", html(&[report])),
        ("summary.json", format!("{:#}\n", document(&redacted))),
        ("nodes.json", format!("{:#}\n", perfpy::nodes(series.run))),
    ];
    let mut artifacts = Vec::new();
    for (name, text) in texts {
        let mut file = tempfile::tempfile().map_err(output_failure)?;
        file.write_all(text.as_bytes()).map_err(output_failure)?;
        artifacts.push((name, file));
    }
    let mut reports = BufWriter::new(tempfile::tempfile().map_err(output_failure)?);
    // Files that cannot be read are reported by those who log their metrics.
    perfpy::write(series, &mut reports)?;
    let reports = reports.into_inner().map_err(output_failure)?;
    artifacts.push(("perf.json", reports));
    for (_, file) in &mut artifacts {
        file.rewind().map_err(output_failure)?;
    }
    Ok(artifacts)
}

/// Whether a path is to be a directory, or is one.
fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}

fn output_failure(error: impl Display) -> Failure {
    Failure::new(Reason::Output, error.to_string())
}

fn of_tables(option: &str) -> Failure {
    Failure::new(Reason::Usage, format!("{option} is for formats of tables"))
}

fn no_samples() -> Failure {
    Failure::new(Reason::Usage, "--every is for formats with samples")
}
