//! Options of a run. Each is declared once: for the command line, its variable, the configuration
//! file and `run.json`.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::{
    Args, ValueHint,
    builder::{OsStringValueParser, TypedValueParser as _},
};
use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::{
    job,
    output::dataset::files::is_plain_name,
    support::{
        host_name::HostName,
        labels::{self, Labels},
        units,
    },
};

/// The directory of runs, if no option, variable or file sets it.
pub const OUT: &str = "profiles";

/// Where the kernel's file systems are mounted.
const PROCFS: &str = "/proc";
const SYSFS: &str = "/sys";

/// Limits of `--max-entries`.
const MAX_ENTRIES: RangeInclusive<i64> = 1..=1 << 24;

/// Options of `profiler run` other than the target. Serialized, they are the object `config` of
/// `run.json`.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Settings {
    /// With --node: write a separate run for each batch job
    #[arg(long, value_name = "BY")]
    pub split_by: Option<SplitBy>,
    /// With --job: batch scheduler of the job [default: detected from the environment, cgroups,
    /// daemons and commands]
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    pub scheduler: Option<job::Scheduler>,
    /// With --job: how long to wait for the first process of the job [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    #[serde(skip)]
    pub wait: Option<Duration>,
    /// With --job: profile only this step of a Slurm job: 0, 1, …, batch
    #[arg(long, value_name = "ID", value_parser = step)]
    #[serde(skip)]
    pub step: Option<job::Step>,
    /// With --job: end the run when this node has had no work of the job for this time
    /// [default: 5s if the profiler is part of the job]
    #[arg(long, alias = "linger", value_name = "TIME", value_parser = units::duration)]
    #[serde(rename = "idle_timeout_ns", serialize_with = "optional_nanoseconds")]
    pub idle_timeout: Option<Duration>,
    /// End the run when this file no longer contains INPROGRESS; a batch script writes it
    /// [default with --job: .ipc-ID in the working directory]
    #[arg(long, alias = "ipc-file", value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub stop_file: Option<PathBuf>,

    /// Time between samples, 1ms to 1h; a number without a unit is in seconds
    #[arg(
        short,
        long,
        env = "PROFILER_INTERVAL",
        value_parser = units::interval,
        default_value_if("like", "perfmon", "30s"),
        default_value = "1s"
    )]
    #[serde(rename = "interval_ns", serialize_with = "nanoseconds")]
    pub interval: Duration,
    /// Stop profiling after this time: 30s, 10m, 2h; if a command is still running, wait for it
    #[arg(short, long, env = "PROFILER_DURATION", value_parser = units::positive)]
    #[serde(rename = "duration_ns", serialize_with = "optional_nanoseconds")]
    pub duration: Option<Duration>,
    /// Directory for runs; each run creates its own directory in it
    #[arg(
        short,
        long,
        env = "PROFILER_OUT",
        value_hint = ValueHint::DirPath,
        default_value = OUT
    )]
    pub out: PathBuf,
    /// Name of the run and of its directory [default: time, node and process id]
    ///
    /// Several nodes can write into one run of the same name. A finished run is continued.
    #[arg(
        long,
        env = "PROFILER_RUN_ID",
        value_name = "NAME",
        value_parser = directory_name
    )]
    #[serde(skip)]
    pub run_id: Option<String>,
    /// Exit with 0 instead of 5 if the run already has a profiler on this node
    #[arg(long)]
    #[serde(skip)]
    pub once: bool,
    /// Label of the run, such as env=prod; repeatable, or a list: env=prod,campaign=7
    ///
    /// Labels are stored in run.json, in table `run` and in the metadata of every file. Labels in
    /// the variable PROFILER_LABELS (a list) and the configuration file (labels = { env = "prod" })
    /// are added.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    #[serde(serialize_with = "labels::as_one")]
    pub labels: Vec<Labels>,
    /// Sources to collect from: a list, or +name,-name to change the default (`profiler check`)
    ///
    /// `sched,usage` collects from these two only; `+syscalls,-gpu` adds one to the default and
    /// removes another. NAME=METHOD selects a collection method: `+file_io=syscalls`.
    #[arg(
        long,
        env = "PROFILER_SOURCE",
        value_name = "NAME,…",
        allow_hyphen_values = true
    )]
    #[serde(skip)]
    pub source: Option<String>,
    /// Groups of hardware events to count, as listed by `profiler events`; +NAME and -NAME change
    /// the default [default: HW,HW_CACHE,FLOPS,MEM,L2,L3,LLC, as far as this CPU has them]
    #[arg(
        long,
        env = "PROFILER_GROUPS",
        value_name = "NAME,…",
        allow_hyphen_values = true
    )]
    #[serde(skip)]
    pub groups: Option<String>,
    /// Hardware events in the syntax of perf: cycles, r1c7, cpu/event=0xc7,umask=0x1,name=X/
    ///
    /// Events in braces, {a,b}, are counted simultaneously. The suffix :u counts in user space
    /// only, :k in the kernel only. Without --groups, no other events are counted.
    #[arg(long, env = "PROFILER_EVENTS", value_name = "EVENT,…")]
    #[serde(skip)]
    pub events: Option<String>,
    /// Directory of event tables (*.toml), added to the built-in ones or replacing those of the
    /// same name
    #[arg(
        long,
        value_name = "DIR",
        env = "PROFILER_PERFEVENTS",
        value_hint = ValueHint::DirPath
    )]
    pub perfevents: Option<PathBuf>,
    /// Entries per BPF map of I/O counters; raise it if `overhead.dropped` is above 0
    /// [default: twice kernel.pid_max, from 32768 to 262144]
    #[arg(
        long,
        env = "PROFILER_MAX_ENTRIES",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(MAX_ENTRIES)
    )]
    pub max_entries: Option<u32>,
    /// Entries of one BPF map (of EVENTS: bytes), to test a map that is full
    #[arg(long, value_name = "MAP=N", value_parser = map_entries, hide = true)]
    #[serde(skip)]
    pub map_entries: Vec<(String, u32)>,
    /// Add rows for each thread, with a `tid`; the rows of processes already include them
    #[arg(long)]
    pub threads: bool,
    /// Leave out the rows of a process that sleeps, but for one a minute [default: on with --node]
    ///
    /// In tables `usage` and `sched`. The next row of the process covers the time without rows. Reports,
    /// exports and the views usage_filled and sched_filled have a row at every sample. Processes that
    /// are read from /proc, threads (--threads) and, with --split-by job, processes of jobs have all
    /// rows.
    #[arg(long, env = "PROFILER_SPARSE", value_name = "on|off")]
    #[serde(skip)]
    pub sparse: Option<Switch>,
    /// Time between Parquet files; rows in between are kept in a journal, which survives a kill
    #[arg(
        long,
        env = "PROFILER_CHECKPOINT",
        value_parser = units::positive,
        default_value = "60s"
    )]
    #[serde(serialize_with = "readable")]
    pub checkpoint: Duration,
    /// Make every sample survive a power failure, not only every checkpoint
    #[arg(long)]
    pub sync: bool,
    /// Exit with 6 if a requested source is not available
    #[arg(long)]
    pub strict: bool,
    /// Report errors only
    #[arg(short, long, overrides_with = "verbose")]
    #[serde(skip)]
    pub quiet: bool,
    /// Report details, each line with time, level, host and module
    #[arg(short, long, overrides_with = "quiet")]
    #[serde(skip)]
    pub verbose: bool,
    /// Append messages to this file instead of stderr: {host} becomes the name of the node
    ///
    /// Without {host}, the name of the node goes before the extension: run.log becomes
    /// run.node1.log, so that several nodes can share a directory.
    #[arg(long, env = "PROFILER_LOG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[serde(skip)]
    pub log: Option<PathBuf>,
    /// Remove the oldest finished runs in --out until this much space is free: 500M, 20G
    ///
    /// Options --keep-free, --max-age and --max-size apply to runs of the same user, at the start and
    /// every 5 minutes.
    #[arg(long, env = "PROFILER_KEEP_FREE", value_name = "SIZE", value_parser = units::size)]
    pub keep_free: Option<u64>,
    /// Remove finished runs in --out that ended longer ago than this: 12h, 30d
    #[arg(long, env = "PROFILER_MAX_AGE", value_name = "TIME", value_parser = units::positive)]
    #[serde(rename = "max_age_ns", serialize_with = "optional_nanoseconds")]
    pub max_age: Option<Duration>,
    /// Remove the oldest finished runs in --out while all runs together exceed this size: 2T
    #[arg(long, env = "PROFILER_MAX_SIZE", value_name = "SIZE", value_parser = units::size)]
    pub max_size: Option<u64>,
    /// Socket of `profiler serve`, the service for unprivileged users; empty to disable it
    #[arg(
        long,
        env = "PROFILER_SERVICE",
        value_name = "PATH",
        // A PathBuf could not be empty.
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        default_value = crate::service::SOCKET,
        value_hint = ValueHint::FilePath
    )]
    #[serde(skip)]
    pub service: PathBuf,
    /// Read options from this TOML file [default: /etc/profiler.toml and /etc/profiler.d/*.toml]
    ///
    /// Each line sets an option from --interval to --service, except --run-id and --once; its name
    /// has `_` for `-`: interval = "100ms", max_entries = 65536, threads = true. The command line
    /// and the PROFILER_ variables take precedence over the file.
    #[arg(long, env = "PROFILER_CONFIG", value_hint = ValueHint::FilePath)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Name of this node in the dataset [default: the system's hostname]
    #[arg(long, env = "PROFILER_HOSTNAME")]
    #[serde(skip)]
    pub hostname: Option<HostName>,
    /// Where procfs is mounted
    #[arg(long, default_value = PROCFS, hide = true)]
    #[serde(skip)]
    pub procfs: PathBuf,
    /// Where sysfs is mounted
    #[arg(long, default_value = SYSFS, hide = true)]
    #[serde(skip)]
    pub sysfs: PathBuf,
}

impl Settings {
    /// Options that belong to one invocation; a configuration file cannot set them.
    pub(super) const NOT_IN_FILE: [&str; 13] = [
        "split_by",
        "scheduler",
        "wait",
        "step",
        "idle_timeout",
        "stop_file",
        "run_id",
        "once",
        "map_entries",
        "config",
        "hostname",
        "procfs",
        "sysfs",
    ];

    /// Whether procfs and sysfs are those of the running kernel.
    pub fn has_system_mounts(&self) -> bool {
        self.procfs.as_os_str() == PROCFS && self.sysfs.as_os_str() == SYSFS
    }
}

/// Value of an option that has another default with some targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// Unit that `--split-by` splits a run by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SplitBy {
    /// Batch jobs
    Job,
}

/// Why an option has no valid value.
#[derive(Clone, Copy, Debug, Error)]
enum ValueError {
    #[error("cannot be the name of a directory")]
    DirectoryName,
    #[error("expected a BPF map and a number up to {MAX_MAP_ENTRIES}, as in PROCESSES=4")]
    MapEntries,
}

/// Limit of `--map-entries`: the option is for tests, and kernel memory is shared.
const MAX_MAP_ENTRIES: u32 = 4096;

fn map_entries(text: &str) -> Result<(String, u32), ValueError> {
    let (map, number) = text.split_once('=').ok_or(ValueError::MapEntries)?;
    match number.parse() {
        Ok(number @ 1..=MAX_MAP_ENTRIES) => Ok((map.to_owned(), number)),
        _ => Err(ValueError::MapEntries),
    }
}

fn step(text: &str) -> Result<job::Step, job::IdError> {
    job::Step::try_from(text.to_owned())
}

fn directory_name(text: &str) -> Result<String, ValueError> {
    if text.starts_with('.') || !is_plain_name(text) {
        return Err(ValueError::DirectoryName);
    }
    Ok(text.to_owned())
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn nanoseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    ns(*duration).serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde passes the field by reference")]
fn optional_nanoseconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(ns).serialize(serializer)
}

fn readable<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    units::format_ns(ns(*duration)).serialize(serializer)
}
