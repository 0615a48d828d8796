//! The command line; turned into plain settings at once.

use std::{
    ffi::OsString,
    mem::take,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{
    ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueHint,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    commands::mark::Arguments,
    config::{Config, File, Target, select_sources},
    failure::{Failure, Reason},
    job,
    output::dataset::files::is_plain_name,
    perf::Selection,
    privileges,
    session::retention::Limits,
    support::units,
};

/// Where the kernel's file systems are mounted.
const PROCFS: &str = "/proc";
const SYSFS: &str = "/sys";

/// What `--max-entries` can be.
const MAX_ENTRIES: RangeInclusive<i64> = 1..=1 << 24;

/// Where did the time go? For a process tree, a batch job, a cgroup or the whole node.
///
/// Follows processes in the kernel with eBPF and writes Parquet that DuckDB and pandas open directly.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Begin with `profiler check`, then `profiler run -- COMMAND` or `profiler run --pid PID`.\nExit codes: 0 done or the command's own, 2 usage, 3 target, 4 privilege, 5 output, 6 --strict, 7 verify."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile a target until it ends, --duration is over, or Ctrl-C
    Run(Box<Run>),
    /// Show which sources work on this machine, why others do not, and what would enable them
    Check {
        /// Machine-readable
        #[arg(long)]
        json: bool,
    },
    /// List what the hardware counters of a CPU can tell: groups, metrics, events and their codes
    Events {
        /// Of this microarchitecture instead of this machine's
        #[arg(long, value_name = "ID", conflicts_with = "cpus")]
        cpu: Option<String>,
        /// Only the microarchitectures that are known, with their groups
        #[arg(long)]
        cpus: bool,
        /// Open every group of this machine, and tell which can be counted
        #[arg(long, conflicts_with_all = ["cpu", "cpus", "json"])]
        validate: bool,
        /// Directory of tables (*.toml) that are added, or take the place of those with the same name
        #[arg(long, value_name = "DIR", env = "PROFILER_PERFEVENTS", value_hint = ValueHint::DirPath)]
        perfevents: Option<PathBuf>,
        /// Machine-readable
        #[arg(long, conflicts_with = "cpus")]
        json: bool,
    },
    /// Turn what a killed profiler left behind into Parquet
    ///
    /// A run that ended by kill -9 or a power cut keeps its last ticks in journals (_part-*.arrows). The next run
    /// with the same --out recovers them by itself; this does it now.
    Recover {
        /// Directories of runs
        #[arg(required = true, value_hint = ValueHint::DirPath)]
        run: Vec<PathBuf>,
    },
    /// Check that runs are whole: every host, table, part and tick; clocks; what was left behind
    ///
    /// Reads everything and changes nothing. Exit code 0 if all is well, 7 if not.
    Verify {
        /// Directories of runs
        #[arg(required = true, value_hint = ValueHint::DirPath)]
        run: Vec<PathBuf>,
        /// Machine-readable
        #[arg(long)]
        json: bool,
    },
    /// Mark a region, an event or a value of the process that calls, for the profiler that profiles it
    ///
    /// Does nothing, and does not fail, where nobody profiles.
    Mark(Box<Arguments>),
    /// Print every table and column with type, unit and meaning
    Schema {
        /// As the reference in docs/metrics.md
        #[arg(long)]
        markdown: bool,
        /// Machine-readable
        #[arg(long, conflicts_with = "markdown")]
        json: bool,
    },
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

/// Arguments of `profiler run`.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("target").required(true).multiple(false),
    after_help = "Examples:\n  profiler run --pid 4711                  a process and all its descendants, until they end\n  profiler run -i 100ms -- mpirun ./solver  a command from its first instruction\n  profiler run --job 4711                   a batch job on this node, until it is over\n  profiler run --node -d 60s                everything, for a minute\n\nThen: cd profiles/<run> && duckdb -init views.sql"
)]
pub struct Run {
    /// Profile this process and all its descendants, whoever owns them; repeatable
    #[arg(long, value_name = "PID", group = "target", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,
    /// Profile the members of this cgroup (v1 or v2) and of those below it
    #[arg(long, value_name = "PATH", group = "target", value_hint = ValueHint::DirPath)]
    cgroup: Option<PathBuf>,
    /// Profile the processes of this batch job on this node; of the job that the environment names, when ID is left out
    #[arg(long, value_name = "ID", group = "target", num_args = 0..=1, default_missing_value = "")]
    job: Option<String>,
    /// Profile every process of this node
    #[arg(long, group = "target")]
    node: bool,
    /// Start this command (after `--`) and profile it until it ends; its exit code becomes ours, and the first
    /// Ctrl-C goes to it
    #[arg(last = true, group = "target", value_name = "COMMAND")]
    command: Vec<OsString>,

    /// With --node: a run of its own for each batch job, with the rows of its processes
    #[arg(long, value_name = "BY")]
    split_by: Option<SplitBy>,
    /// What runs the job [default: found out from the environment, the cgroups, daemons, commands]
    #[arg(long, value_name = "NAME")]
    scheduler: Option<job::Scheduler>,
    /// How long to wait for the first process of the job [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    wait: Option<Duration>,
    /// End when this file no longer reads INPROGRESS; a batch script writes it
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    ipc_file: Option<PathBuf>,

    /// Time between ticks, 10ms to 1h; a plain number is seconds [default: 1s]
    #[arg(short, long, env = "PROFILER_INTERVAL", value_parser = units::interval)]
    interval: Option<Duration>,
    /// Stop after this time; a command is then waited for
    #[arg(short, long, env = "PROFILER_DURATION", value_parser = units::positive)]
    duration: Option<Duration>,
    /// Directory in which each run gets a directory of its own [default: profiles]
    #[arg(short, long, env = "PROFILER_OUT", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
    /// Name of the run, for several nodes that write into one; a run that has ended is continued
    /// [default: time, node and process]
    #[arg(long = "run-id", env = "PROFILER_RUN_ID", value_name = "NAME")]
    shared: Option<String>,
    /// End with 0, not an error, when this node already has a profiler of the run
    #[arg(long)]
    once: bool,
    /// Sources to read: names (see `profiler check`), or +name,-name to change the default
    ///
    /// Some sources can work in several ways; name=way chooses one: file_io=syscalls.
    #[arg(
        long,
        env = "PROFILER_SOURCE",
        value_name = "NAME,…",
        allow_hyphen_values = true
    )]
    source: Option<String>,
    /// Groups of hardware events to count: names (see `profiler events`)
    /// [default: HW,HW_CACHE,FLOPS,MEM,L2,L3, as far as this CPU has them]
    #[arg(long, env = "PROFILER_GROUPS", value_name = "NAME,…")]
    groups: Option<String>,
    /// Events to count by hand, as perf takes them: cycles, r1c7, cpu/event=0xc7,umask=0x1,name=X/
    ///
    /// {a,b} counts several at the same time, :u or :k only in user space or the kernel. Without --groups, only these
    /// events are counted.
    #[arg(long, env = "PROFILER_EVENTS", value_name = "EVENT,…")]
    events: Option<String>,
    /// Directory of tables (*.toml) of events that are added, or take the place of those with the same name
    #[arg(long, value_name = "DIR", env = "PROFILER_PERFEVENTS", value_hint = ValueHint::DirPath)]
    perfevents: Option<PathBuf>,
    /// Entries of each BPF map of I/O flows [default: twice the processes that the kernel allows, 32768 to 262144]
    #[arg(long, env = "PROFILER_MAX_ENTRIES", value_name = "N", value_parser = clap::value_parser!(u32).range(MAX_ENTRIES))]
    max_entries: Option<u32>,
    /// Entries of a BPF map, to try what happens when it is full; of EVENTS, bytes
    #[arg(long, value_name = "MAP=N", value_parser = map_entries, hide = true)]
    map_entries: Vec<(String, u32)>,
    /// Add rows for each thread: those with a `tid`, not to be added to those of the process
    #[arg(long)]
    threads: bool,
    /// Time between Parquet parts; in between, ticks are kept in a journal [default: 60s]
    #[arg(long, env = "PROFILER_CHECKPOINT", value_parser = units::positive)]
    checkpoint: Option<Duration>,
    /// Make every tick survive a power cut, not only every checkpoint
    #[arg(long)]
    sync: bool,
    /// Fail when a source that was asked for is not available
    #[arg(long)]
    strict: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
    /// Append to this file what would go to stderr; {host}, or else the end of the name, becomes the node's
    #[arg(long, env = "PROFILER_LOG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    log: Option<PathBuf>,
    /// Remove the oldest finished runs in --out until so much of its file system is free: 500M, 20G
    ///
    /// Applies to runs of the same user, at the start and every 5 minutes.
    #[arg(long, env = "PROFILER_KEEP_FREE", value_name = "SIZE", value_parser = units::size)]
    keep_free: Option<u64>,
    /// Remove finished runs in --out that ended longer ago: 12h, 30d
    #[arg(long, env = "PROFILER_MAX_AGE", value_name = "TIME", value_parser = units::positive)]
    max_age: Option<Duration>,
    /// Remove the oldest finished runs in --out while all runs together take more
    #[arg(long, env = "PROFILER_MAX_SIZE", value_name = "SIZE", value_parser = units::size)]
    max_size: Option<u64>,
    /// Read settings from this TOML file: interval, duration, out, source, groups, events, perfevents,
    /// max_entries, threads, checkpoint, sync, strict, quiet, log,
    /// keep_free, max_age, max_size [default: /etc/profiler.toml if it exists]
    #[arg(long, env = "PROFILER_CONFIG", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Name of this node in the dataset [default: the system's]
    #[arg(long, env = "PROFILER_HOSTNAME")]
    hostname: Option<String>,
    /// Where procfs is mounted
    #[arg(long, default_value = PROCFS, hide = true)]
    procfs: PathBuf,
    /// Where sysfs is mounted
    #[arg(long, default_value = SYSFS, hide = true)]
    sysfs: PathBuf,
}

impl Run {
    /// Options that only one target has; clap does not ask for what another target excludes.
    fn check(&self) -> Result<(), Failure> {
        let options = [
            ("--split-by", self.split_by.is_some(), "--node", self.node),
            (
                "--scheduler",
                self.scheduler.is_some(),
                "--job",
                self.job.is_some(),
            ),
            ("--wait", self.wait.is_some(), "--job", self.job.is_some()),
        ];
        for (option, given, target, is_target) in options {
            if given && !is_target {
                let message = format!("{option} goes with {target} only");
                return Err(Failure::new(Reason::Usage, message));
            }
        }
        Ok(())
    }

    /// Adds the settings of the file and the defaults.
    ///
    /// # Errors
    ///
    /// When the file or the list of sources is wrong.
    pub fn into_config(mut self) -> Result<Config, Failure> {
        self.check()?;
        if privileges::is_secure_execution()
            && (self.procfs != Path::new(PROCFS) || self.sysfs != Path::new(SYSFS))
        {
            let message = "--procfs and --sysfs are refused with file capabilities: run with sudo";
            return Err(Failure::new(Reason::Usage, message));
        }
        let file = File::read(self.config.as_deref())?;
        let target = self.target();
        let plain = |option, name: Option<String>| match name {
            Some(name) if name.starts_with('.') || !is_plain_name(&name) => {
                let message = format!("{option} {name}: not a name for a directory");
                Err(Failure::new(Reason::Usage, message))
            }
            name => Ok(name),
        };
        let hostname = plain("--hostname", self.hostname)?;
        let run_id = plain("--run-id", self.shared)?;
        let setting = |name, given: Option<Duration>, text: Option<&String>, parse| match given {
            Some(given) => Ok(Some(given)),
            None => File::parse(name, text, parse),
        };
        let max_entries = file.max_entries;
        if max_entries.is_some_and(|entries| !MAX_ENTRIES.contains(&entries.into())) {
            let message = "setting `max_entries`: a number from 1 to 16777216";
            return Err(Failure::new(Reason::Usage, message));
        }
        let size = |name, given: Option<u64>, text: Option<&String>| match given {
            Some(given) => Ok(Some(given)),
            None => File::parse(name, text, units::size),
        };
        Ok(Config {
            target,
            interval: setting(
                "interval",
                self.interval,
                file.interval.as_ref(),
                units::interval,
            )?
            .unwrap_or(Duration::from_secs(1)),
            duration: setting(
                "duration",
                self.duration,
                file.duration.as_ref(),
                units::positive,
            )?,
            ipc_file: self.ipc_file,
            out: self.out.or(file.out).unwrap_or_else(|| "profiles".into()),
            sources: select_sources(self.source.or(file.source).as_deref())?,
            perf: Selection::new(
                self.groups.or(file.groups).as_deref(),
                self.events.or(file.events).as_deref(),
                self.perfevents.or(file.perfevents),
            )?,
            max_entries: self.max_entries.or(max_entries),
            map_entries: self.map_entries,
            threads: self.threads || file.threads.unwrap_or(false),
            checkpoint: setting(
                "checkpoint",
                self.checkpoint,
                file.checkpoint.as_ref(),
                units::positive,
            )?
            .unwrap_or(Duration::from_secs(60)),
            sync: self.sync || file.sync.unwrap_or(false),
            strict: self.strict || file.strict.unwrap_or(false),
            quiet: self.quiet || file.quiet.unwrap_or(false),
            procfs: self.procfs,
            sysfs: self.sysfs,
            hostname,
            run_id,
            once: self.once,
            split_by_job: self.split_by.is_some(),
            log: self.log.or(file.log),
            retention: Limits {
                keep_free: size("keep_free", self.keep_free, file.keep_free.as_ref())?,
                max_age: setting(
                    "max_age",
                    self.max_age,
                    file.max_age.as_ref(),
                    units::positive,
                )?,
                max_size: size("max_size", self.max_size, file.max_size.as_ref())?,
            },
        })
    }

    fn target(&mut self) -> Target {
        if !self.command.is_empty() {
            Target::Command(take(&mut self.command))
        } else if let Some(path) = self.cgroup.take() {
            Target::Cgroup(path)
        } else if let Some(id) = self.job.take() {
            Target::Job(job::Request {
                id: Some(id).filter(|id| !id.is_empty()),
                scheduler: self.scheduler,
                wait: self.wait.unwrap_or(Duration::from_secs(60)),
            })
        } else if self.node {
            Target::Node
        } else {
            Target::Pids(take(&mut self.pid))
        }
    }
}

/// The command line. An error ends the program, with what may have been meant.
pub fn parse() -> Cli {
    let error = match Cli::try_parse() {
        Ok(cli) => return cli,
        Err(error) => error,
    };
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    with_hint(error, &words).exit()
}

/// Adds what may have been meant, where clap offers to pass an option to the command, or nothing.
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
        let command = Cli::command();
        let options = command.find_subcommand("run").into_iter();
        let names = options
            .flat_map(clap::Command::get_arguments)
            .filter_map(|option| option.get_long())
            .map(|name| format!("--{name}"));
        let given = unknown.split('=').next().unwrap_or(&unknown);
        // Two swapped letters are as close as a wrong one.
        names
            .map(|name| (strsim::damerau_levenshtein(&name, given), name))
            .min()
            .filter(|(distance, _)| *distance <= 2)
            .map(|(_, name)| format!("did you mean {name}?"))
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

/// What `--split-by` divides a run by.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SplitBy {
    /// Batch jobs
    Job,
}

/// Writes a completion script to stdout.
pub fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(
        shell,
        &mut Cli::command(),
        "profiler",
        &mut std::io::stdout(),
    );
}

/// Writes the manual page to stdout.
///
/// # Errors
///
/// When stdout cannot be written.
pub fn man() -> std::io::Result<()> {
    clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())
}

/// `MAP=N`. Kernel memory is not for everybody to take: no map gets larger than it is.
fn map_entries(text: &str) -> Result<(String, u32), String> {
    const MOST: u32 = 4096;
    let wrong = || format!("a BPF map and a number up to {MOST}, as in PROCESSES=4");
    let (map, number) = text.split_once('=').ok_or_else(wrong)?;
    let number = number.parse().ok().filter(|n| (1..=MOST).contains(n));
    Ok((map.to_owned(), number.ok_or_else(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn near_misses_have_hints() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let all = [OsString::from("profiler")]
                .into_iter()
                .chain(words.clone());
            let error = Cli::try_parse_from(all).expect_err("a wrong command line");
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
            let said = said(line);
            assert!(said.contains(hint), "{line}: {said}");
            assert!(!said.contains("as a value"), "{line}: {said}");
        }
        let unlike = said("run --zzzzzzzzz 1");
        assert!(!unlike.contains("did you mean"), "{unlike}");
    }

    #[test]
    fn exactly_one_target() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["profiler", "run"], args].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--node", "--pid", "1"]).is_err());
        assert!(parse(&["--pid", "1", "--pid", "2"]).is_ok());
        assert!(parse(&["--pid", "0"]).is_err());
        assert!(parse(&["--", "sleep", "-x", "1"]).is_ok());
        assert!(parse(&["--node", "-i", "9ms"]).is_err());
        assert!(parse(&["--node", "--source", "-usage"]).is_ok());
    }

    #[test]
    fn a_file_has_the_limits_of_the_command_line() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("profiler.toml");
        for (entries, is_accepted) in [(0, false), (1, true), (1 << 24, true), (1 << 25, false)] {
            std::fs::write(&path, format!("max_entries = {entries}")).expect("written");
            let words = ["profiler", "run", "--node", "--config"].map(OsString::from);
            let words = words.into_iter().chain([path.clone().into()]);
            let Command::Run(run) = Cli::try_parse_from(words).expect("parsed").command else {
                panic!("another command");
            };
            assert_eq!(run.into_config().is_ok(), is_accepted, "{entries}");
        }
    }

    #[test]
    fn what_only_one_target_has() {
        let config = |args: &[&str]| {
            let parsed =
                Cli::try_parse_from([&["profiler", "run"], args].concat()).expect("parsed");
            let Command::Run(run) = parsed.command else {
                panic!("{args:?}");
            };
            run.into_config().map(|_| ()).map_err(|error| error.reason)
        };
        for (options, target) in [
            (["--split-by", "job"], ["--node"].as_slice()),
            (["--scheduler", "slurm"], &["--job", "1"]),
            (["--wait", "1s"], &["--job", "1"]),
        ] {
            assert_eq!(config(&[target, &options].concat()), Ok(()), "{options:?}");
            for other in [&["--pid", "1"][..], &["--cgroup", "/"]] {
                let refused = config(&[other, &options].concat());
                assert_eq!(refused, Err(Reason::Usage), "{options:?} {other:?}");
            }
        }
    }
}
