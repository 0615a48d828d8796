//! The command line.

use std::{
    ffi::OsString,
    io::{self, Write as _},
};

use clap::{
    CommandFactory, FromArgMatches as _, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    commands::{
        self, ceilings, check, compact, compare, config, events, export, help, import, man, mark,
        recover, report, run, schema, serve, status, summary, upload, verify,
    },
    config::{Config, file},
    failure::{Failure, Reason},
    support::{log, names},
};

/// Variable with labels, which are added to those of the command line.
const LABELS: &str = "PROFILER_LABELS";

/// Version and build; the hash of the sources of the BPF programs is that in docs/overhead.md.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit    ",
    env!("PROFILER_COMMIT"),
    "\nprograms  ",
    env!("PROFILER_PROGRAMS"),
    "\nfeatures  ",
    env!("PROFILER_FEATURES"),
    "\ntarget    ",
    env!("PROFILER_TARGET"),
);

const AFTER_HELP: &str = "\
Exit codes: 0 done or the command's own, 2 usage, 3 target, 4 privilege,
5 output, 6 --strict, 7 verify, 8 compare --fail-on,
9 too few runs for compare --fail-on.";

/// Shows where the time, bytes, FLOPs and energy of a command, job or node go
///
/// The profiler follows processes in the kernel with eBPF and writes Parquet files, which DuckDB
/// and pandas open directly.
#[derive(Debug, Parser)]
#[command(name = "profiler", version, long_version = LONG_VERSION, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile a target until it ends, for --duration, or until Ctrl-C
    Run(Box<run::Arguments>),
    /// Show which sources work here, and how to enable the others
    Check(check::Arguments),
    /// Print the settings of this node and their origin, or check them
    ///
    /// Reads /etc/profiler.toml, then /etc/profiler.d/*.toml in order of name. Entries of a later
    /// file replace those of an earlier one; its tables are merged key by key. An invalid entry is
    /// reported with its file and line, and the exit code is 2.
    Config(config::Arguments),
    /// List the hardware events of a CPU: groups, metrics and codes
    Events(events::Arguments),
    /// Recover the rows of a killed profiler
    ///
    /// After a kill or a power failure, the last samples are in journals (_part-*.arrows). This
    /// command converts them to Parquet files at once; otherwise the next run with the same --out
    /// does.
    Recover(recover::Arguments),
    /// Check runs for missing or damaged data
    ///
    /// Checks hosts, tables, Parquet files, samples and clocks. Reads all data and changes nothing.
    /// The exit code is 7 if there are problems, otherwise 0.
    Verify(verify::Arguments),
    /// Merge the Parquet files of finished runs into a few large ones
    ///
    /// The rows of all finished runs in DATASET go to DATASET/compacted, one directory per table
    /// and day, sorted by host, process and time. The runs keep their metadata and are read as
    /// before. Other runs and directories are listed and left unchanged. The command can be
    /// interrupted at any time and repeated.
    Compact(compact::Arguments),
    /// Copy finished runs to S3 or an S3-compatible server
    ///
    /// For example `profiler upload profiles --to s3://bucket/profiles`. Files that are already
    /// stored are skipped, and run.json, which completes a run, is sent last: to resume an
    /// interrupted upload, repeat the command. The server verifies checksums. Region, server and
    /// credentials are set as for the AWS tools: AWS_REGION, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_PROFILE, ~/.aws. Local files are kept.
    Upload(upload::Arguments),
    /// Show on one screen where the time, bytes and energy of a run went
    Summary(summary::Arguments),
    /// Write reports of runs: offline HTML, PDF, Markdown, plots
    Report(report::Arguments),
    /// Compare two groups of runs, with significance tests
    ///
    /// For example `profiler compare old-* -- new-*`. A confidence interval needs 4 runs on each side;
    /// record at least 5 to find significant differences. Single runs are compared by their samples.
    Compare(compare::Arguments),
    /// Convert runs to other formats: CSV, JSON, Feather, Perfetto
    ///
    /// For example `profiler export csv RUN -o tables`, or
    /// `profiler export feather RUN --table usage -o usage.feather`. Files are written under
    /// temporary names and renamed together. The Python package converts runs to ORC, HDF5 and
    /// pickle.
    Export(export::Arguments),
    /// Convert files of perfmon, Flowcept or perf.py to a run
    ///
    /// For example `profiler import perfmon JOB_DIRECTORY -o profiles/old`. Values missing from the
    /// files are null. Counters are differences between two samples.
    Import(import::Arguments),
    /// Measure peak FLOP/s and bandwidths of this machine, for rooflines
    ///
    /// Runs loops with a known amount of work for each instruction set and each memory level, first
    /// on one CPU, then on all: about a minute on an idle node. No other command measures ceilings,
    /// so no job pays for it.
    Ceilings(ceilings::Arguments),
    /// Mark a region, an event or a value of the calling process
    ///
    /// Without a profiler, nothing is sent and the exit code is 0.
    Mark(Box<mark::Arguments>),
    /// Run the profiling service for unprivileged users of this node
    ///
    /// Their `profiler run` finds the service without an option.
    Serve(serve::Arguments),
    /// Show the running profilers and services of this node
    ///
    /// Shows target, samples, cost, losses and disk space. Root sees all of them; other users see
    /// services, their own profilers, and those whose status they can read. A socket without a
    /// service is named. The exit code is 3 if none is running.
    Status(status::Arguments),
    /// Print all tables and columns with types, units and descriptions
    Schema(schema::Arguments),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page, or write all of them
    ///
    /// For example `profiler man run | man -l -`.
    Man(man::Arguments),
}

impl Command {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn run(self) -> Result<u8, Failure> {
        match self {
            Self::Run(arguments) => arguments.run(reread),
            Self::Check(arguments) => arguments.run(),
            Self::Config(arguments) => arguments.run(),
            Self::Events(arguments) => arguments.run(),
            Self::Recover(arguments) => arguments.run(),
            Self::Verify(arguments) => arguments.run(),
            Self::Compact(arguments) => arguments.run(),
            Self::Upload(arguments) => arguments.run(),
            Self::Summary(arguments) => arguments.run(),
            Self::Report(arguments) => arguments.run(),
            Self::Compare(arguments) => arguments.run(),
            Self::Export(arguments) => arguments.run(),
            Self::Import(arguments) => arguments.run(),
            Self::Ceilings(arguments) => arguments.run(),
            Self::Mark(arguments) => arguments.run(),
            Self::Schema(arguments) => arguments.run(),
            Self::Serve(arguments) => arguments.run(),
            Self::Status(arguments) => arguments.run(),
            Self::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "profiler", &mut script);
                commands::print_content(&script)?;
                Ok(0)
            }
            Self::Man(arguments) => arguments.run(Cli::command()),
        }
    }
}

/// Why the command line cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The words themselves, or a request for help.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The configuration file of `run`.
    #[error(transparent)]
    File(#[from] Failure),
}

impl Cli {
    /// Parses words, the name of the program first. Options of `run` that are not among them are
    /// taken from the configuration file.
    ///
    /// # Errors
    ///
    /// When the words or the file are invalid.
    pub fn read(mut words: Vec<OsString>) -> Result<Self, ParseError> {
        let mut matches = help::grouped(Self::command()).try_get_matches_from(&words)?;
        if let Some(run) = matches.subcommand_matches("run") {
            let mut more = file::arguments(run)?;
            if let Some(labels) = std::env::var_os(LABELS).filter(|labels| !labels.is_empty()) {
                more.extend(["--label".into(), labels]);
            }
            if !more.is_empty() {
                // After `profiler run`, so that the command line has precedence.
                words.splice(2..2, more);
                matches = Self::command().try_get_matches_from(words)?;
            }
        }
        Ok(Self::from_arg_matches_mut(&mut matches)?)
    }
}

/// Reads the settings of `run` again.
///
/// # Errors
///
/// When the configuration file is invalid.
fn reread() -> Result<Config, Failure> {
    match Cli::read(std::env::args_os().collect()) {
        Ok(Cli {
            command: Command::Run(arguments),
        }) => arguments.into_config(),
        Ok(_) => Err(Failure::internal("another subcommand")),
        Err(ParseError::File(failure)) => Err(failure),
        Err(ParseError::CommandLine(error)) => Err(Failure::new(Reason::Usage, error.to_string())),
    }
}

/// Parses the command line. An invalid one is reported and ends the program.
///
/// # Errors
///
/// When the configuration file is invalid.
pub fn parse() -> Result<Cli, Failure> {
    let words: Vec<_> = std::env::args_os().collect();
    Cli::read(words.clone()).map_err(|error| match error {
        ParseError::CommandLine(error) => exit(with_hint(error, &words[1..])),
        ParseError::File(failure) => failure,
    })
}

/// Reports an error of the command line, or shows the help. Words can be names that others chose.
fn exit(mut error: clap::Error) -> ! {
    let given = [
        ContextKind::InvalidArg,
        ContextKind::InvalidValue,
        ContextKind::InvalidSubcommand,
    ];
    for kind in given {
        if let Some(ContextValue::String(word)) = error.get(kind) {
            let word = ContextValue::String(log::harmless(word));
            error.insert(kind, word);
        }
    }
    let text = error.to_string();
    let shown = log::lines(&text);
    if shown == text {
        // With colors.
        error.exit();
    }
    let _ = io::stderr().write_all(shown.as_bytes());
    std::process::exit(error.exit_code())
}

/// Replaces clap's suggestion for an unknown argument of `run`.
fn with_hint(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(unknown)) if error.kind() == ErrorKind::UnknownArgument => {
            unknown.clone()
        }
        _ => return error,
    };
    if words.first().is_none_or(|first| first != "run") {
        return error;
    }
    let hint = if unknown.starts_with('-') {
        similar_option(&unknown).map(|name| format!("did you mean {name}?"))
    } else {
        let place = words.iter().position(|word| *word == *unknown);
        place.map(|place| {
            let text: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            format!(
                "put `--` before the command: profiler {} -- {}",
                text[..place].join(" "),
                text[place..].join(" ")
            )
        })
    };
    if let Some(hint) = hint {
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![hint.into()]),
        );
    }
    error
}

/// The option of `run` that is most similar to a mistyped one.
fn similar_option(unknown: &str) -> Option<String> {
    let command = Cli::command();
    let options = command.find_subcommand("run").into_iter();
    let names = options
        .flat_map(clap::Command::get_arguments)
        .filter_map(|option| option.get_long())
        .map(|name| format!("--{name}"));
    let names: Vec<String> = names.collect();
    let given = unknown.split('=').next().unwrap_or(unknown);
    names::similar(given, names.iter().map(String::as_str)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::statistics::{ALPHA, least_measurements};

    fn read(words: &[&str]) -> Result<Cli, ParseError> {
        let words = ["profiler"].iter().chain(words).map(OsString::from);
        Cli::read(words.collect())
    }

    fn config(options: &[&str]) -> Result<Config, Reason> {
        let Command::Run(run) = read(&[&["run"], options].concat()).expect("valid").command else {
            panic!("{options:?}");
        };
        run.into_config().map_err(|error| error.reason)
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn help_pages(command: &mut clap::Command, pages: &mut Vec<String>) {
        pages.push(command.render_long_help().to_string());
        for below in command.get_subcommands_mut() {
            help_pages(below, pages);
        }
    }

    #[test]
    fn help_fits_100_columns() {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut pages = Vec::new();
        help_pages(&mut command, &mut pages);
        assert!(pages.len() > 12, "{} pages", pages.len());
        for line in pages.iter().flat_map(|page| page.lines()) {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn numbers_of_runs_in_the_help_are_those_of_the_tests() {
        let mut command = Cli::command();
        let compare = command.find_subcommand_mut("compare").expect("compare");
        let help = compare.render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let least = least_measurements(ALPHA);
        let needs = format!("A confidence interval needs {least} runs on each side");
        assert!(help.contains(&needs), "{help}");
        // Of the primary figures, which are tested together.
        let for_several = least_measurements(ALPHA / 5.0);
        assert!(
            help.contains(&format!("at least {for_several} ")),
            "{for_several}: {help}"
        );
    }

    #[test]
    fn near_misses_have_hints() {
        let shown = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let Err(ParseError::CommandLine(error)) = read(&words) else {
                panic!("a valid command line: {line}");
            };
            let words: Vec<_> = words.into_iter().map(OsString::from).collect();
            with_hint(error, &words).to_string()
        };
        for (line, hint) in [
            (
                "run -i 1s python3 x.py",
                "tip: put `--` before the command: profiler run -i 1s -- python3 x.py",
            ),
            ("run --pdi 1", "tip: did you mean --pid?"),
            ("run --otu=x --node", "tip: did you mean --out?"),
            ("run --node --intreval 1s", "tip: did you mean --interval?"),
        ] {
            let shown = shown(line);
            assert!(shown.contains(hint), "{line}: {shown}");
            assert!(!shown.contains("as a value"), "{line}: {shown}");
        }
        let unlike = shown("run --zzzzzzzzz 1");
        assert!(!unlike.contains("did you mean"), "{unlike}");
    }

    #[test]
    fn exactly_one_target() {
        let parse = |options: &[&str]| read(&[&["run"], options].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--node", "--pid", "1"]).is_err());
        assert!(parse(&["--pid", "1", "--pid", "2"]).is_ok());
        assert!(parse(&["--pid", "0"]).is_err());
        assert!(parse(&["--", "sleep", "-x", "1"]).is_ok());
        assert!(parse(&["--node", "-i", "999us"]).is_err());
        assert!(parse(&["--node", "--source", "-usage"]).is_ok());
        assert!(parse(&["--node", "--run-id", "../x"]).is_err());
    }

    #[test]
    fn options_of_one_target_are_refused_for_others() {
        for (options, target) in [
            (["--split-by", "job"], ["--node"].as_slice()),
            (["--scheduler", "slurm"], &["--job", "1"]),
            (["--wait", "1s"], &["--job", "1"]),
        ] {
            assert!(config(&[target, &options].concat()).is_ok(), "{options:?}");
            for other in [&["--pid", "1"][..], &["--cgroup", "/"]] {
                let refused = config(&[other, &options].concat()).err();
                assert_eq!(refused, Some(Reason::Usage), "{options:?} {other:?}");
            }
        }
    }

    #[test]
    fn hidden_aliases_of_options() {
        let settings = |options: &[&str]| {
            let target: &[&str] = &["--job", "1"];
            config(&[target, options].concat()).expect("valid").settings
        };
        let old = settings(&["--linger", "7s", "--ipc-file", "done"]);
        let new = settings(&["--idle-timeout", "7s", "--stop-file", "done"]);
        for settings in [old, new] {
            assert_eq!(
                settings.idle_timeout,
                Some(std::time::Duration::from_secs(7))
            );
            assert_eq!(settings.stop_file, Some("done".into()));
        }
        let mut pages = Vec::new();
        help_pages(&mut Cli::command(), &mut pages);
        assert!(!pages.concat().contains("--linger"));
    }

    #[test]
    fn settings_from_the_file() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("profiler.toml");
        std::fs::write(&path, "interval = '100ms'\nsource = '-usage'\nsync = true")
            .expect("written");
        let path = path.to_str().expect("UTF-8");
        let config = config(&[
            "--config",
            path,
            "-o",
            "x",
            "--",
            "sleep",
            "--interval",
            "1",
        ]);
        let config = config.expect("valid");
        let json = config.to_json();
        for (name, value) in [
            ("interval_ns", serde_json::json!(100_000_000)),
            ("out", "x".into()),
            ("sync", true.into()),
            ("threads", false.into()),
            ("checkpoint", "60.00 s".into()),
            ("duration_ns", serde_json::Value::Null),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        assert!(!config.sources.has("usage") && config.sources.has("sched"));
    }
}
