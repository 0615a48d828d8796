//! `profiler run`: profiles a target.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, FromArgMatches as _, ValueHint};

use super::at_end::AtEnd;
use crate::{
    config::{Config, Reread, Settings, Target},
    failure::{Failure, Reason},
    job, privileges, session,
    support::log::harmless,
};

/// Time that `--wait` has without a value.
pub const WAIT: Duration = Duration::from_secs(60);

const USAGE: &str =
    "profiler run [OPTIONS] <--pid <PID>|--cgroup <PATH>|--job [<ID>]|--node|-- COMMAND…>";

const EXAMPLES: &str = "\
Examples:
  profiler run --pid 4711                   a process and its descendants, until they end
  profiler run -i 100ms -- mpirun ./solver  a command, from its first instruction
  profiler run --job 4711                   a batch job on this node, until it ends
  profiler run --node -d 60s                the whole node, for a minute

Then: profiler summary profiles/<run>, or cd profiles/<run> && duckdb -init views.sql";

/// Arguments of `profiler run`.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("target").multiple(false),
    group = ArgGroup::new("processes")
        .args(["pid", "cgroup", "job", "node", "command", "like"])
        .required(true)
        .multiple(true),
    override_usage = USAGE,
    after_help = EXAMPLES
)]
pub struct Arguments {
    /// Profile this process and its descendants, regardless of their user; repeatable
    #[arg(
        long,
        value_name = "PID",
        group = "target",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pid: Vec<u32>,
    /// Profile the members of this cgroup (v1 or v2) and of the cgroups below it
    ///
    /// PATH is absolute or relative to a cgroup mount: system.slice/nginx.service.
    #[arg(long, value_name = "PATH", group = "target", value_hint = ValueHint::DirPath)]
    cgroup: Option<PathBuf>,
    /// Profile the processes of this batch job on this node; without ID, of the job in the
    /// environment
    #[arg(
        long,
        value_name = "ID",
        group = "target",
        num_args = 0..=1,
        default_missing_value = ""
    )]
    job: Option<String>,
    /// Profile every process of this node
    #[arg(long, group = "target")]
    node: bool,
    /// Start this command (after `--`) and profile it until it ends
    ///
    /// The profiler exits with the exit code of the command. Signals are passed on to the command;
    /// a second Ctrl-C ends only the profiling.
    #[arg(last = true, group = "target", value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    settings: Settings,
    // Last, because its heading is that of all options after it.
    #[command(flatten)]
    at_end: AtEnd,
}

/// The settings that these options make.
///
/// # Errors
///
/// When an option is invalid.
pub fn settings(options: Vec<OsString>) -> Result<Settings, Failure> {
    let usage = |error: clap::Error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        Failure::new(Reason::Usage, line.trim_start_matches("error: "))
    };
    let command = Settings::augment_args(clap::Command::new("request").no_binary_name(true));
    let matches = command.try_get_matches_from(options).map_err(usage)?;
    Settings::from_arg_matches(&matches).map_err(usage)
}

impl Arguments {
    /// Runs the subcommand and returns the exit code. `reread` serves to reload the configuration.
    ///
    /// # Errors
    ///
    /// When the configuration is invalid, or the session fails.
    pub fn run(self, reread: Reread) -> Result<u8, Failure> {
        let command_line = std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        let at_end = self.at_end.clone();
        at_end.check(&self.settings)?;
        let config = self.into_config()?;
        let ended = session::run(&config, command_line, Some(reread))?;
        let is_written = ended
            .run
            .is_none_or(|run| at_end.write(&run, &config.settings));
        Ok(match ended.exit_code {
            0 if !is_written => Reason::Output as u8,
            code => code,
        })
    }

    /// Validates the arguments.
    ///
    /// # Errors
    ///
    /// When an option does not fit the target, or a list names something unknown.
    pub fn into_config(self) -> Result<Config, Failure> {
        self.check()?;
        let settings = &self.settings;
        let target = if !self.command.is_empty() {
            Target::Command(self.command)
        } else if let Some(path) = self.cgroup {
            Target::Cgroup(path)
        } else if self.node {
            Target::Node
        } else if !self.pid.is_empty() {
            Target::Pids(self.pid)
        } else {
            Target::Job(job::Request {
                id: job_id(self.job.unwrap_or_default())?,
                scheduler: settings.scheduler,
                step: settings.step.clone(),
                wait: settings.wait.unwrap_or(WAIT),
            })
        };
        let mut config = Config::new(target, self.settings)?;
        if self.at_end.is_like_perfmon() {
            config.perf = config.perf.like_perfmon();
        }
        config.continues_after_run = self.at_end.has_any();
        Ok(config)
    }

    /// Checks options that only one target has. clap does not report a missing requirement that
    /// conflicts with the given target.
    fn check(&self) -> Result<(), Failure> {
        let settings = &self.settings;
        // Like perfmon, which has no other target, a run without one is of the job.
        let others = self.node || self.cgroup.is_some();
        let is_job = !others && self.pid.is_empty() && self.command.is_empty();
        let (node, job) = (self.node, is_job);
        let options = [
            ("--split-by", settings.split_by.is_some(), "--node", node),
            ("--scheduler", settings.scheduler.is_some(), "--job", job),
            ("--wait", settings.wait.is_some(), "--job", job),
            ("--step", settings.step.is_some(), "--job", job),
            (
                "--idle-timeout",
                settings.idle_timeout.is_some(),
                "--job",
                job,
            ),
        ];
        for (option, given, target, is_target) in options {
            if given && !is_target {
                let message = format!("{option} requires {target}");
                return Err(Failure::new(Reason::Usage, message));
            }
        }
        if privileges::is_secure_execution() && !settings.has_system_mounts() {
            let message = "--procfs and --sysfs are refused with file capabilities: run with sudo";
            return Err(Failure::new(Reason::Usage, message));
        }
        Ok(())
    }
}

/// The job of `--job`; `None`: that of this process.
fn job_id(text: String) -> Result<Option<job::JobId>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let shown = harmless(&text);
    let id = job::JobId::try_from(text);
    id.map(Some)
        .map_err(|error| Failure::new(Reason::Usage, format!("--job {shown}: {error}")))
}
