//! What `profiler run` writes after a run: exports and a report.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use clap::{Args, ValueHint};

use super::{
    export::Format,
    own_file,
    report::{self, Like},
};
use crate::{
    analysis::stored_run::StoredRun,
    config::Settings,
    export::{files::directory_of, perfmon},
    failure::{Failure, Reason},
    output::dataset::{foreign_file::Trust, listing::EXPORTS, manifest::State},
    privileges, report,
    support::{invoking_user, log},
    warning,
};

/// Options of `profiler run` that concern the time after the run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "After the run")]
pub struct AtEnd {
    /// Convert the run to these formats of `profiler export`, in its directory `exports`
    ///
    /// The last of several nodes converts their run. `mlflow` logs it on $MLFLOW_TRACKING_URI.
    #[arg(
        long,
        value_name = "FORMAT,…",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    export: Vec<Format>,
    /// Write a report of the run: FILE.html, FILE.md, or FILE.pdf, which needs Chromium or Chrome
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Replace another program: profile as it does, and write its files and plots
    ///
    /// perfmon: a sample every 30 s, its groups of hardware events, and the batch job of the
    /// environment, if no other target is given. Its files, plots and job report are in
    /// `exports/perfmon` of the run; the report is a PDF file if Chromium or Chrome is installed.
    #[arg(long, value_name = "PROGRAM")]
    like: Option<Like>,
}

/// A subcommand that writes files of a run.
struct Step {
    /// What it writes.
    name: String,
    words: Vec<OsString>,
}

impl AtEnd {
    /// Whether the target, the interval and the events are those of perfmon by default.
    pub fn is_like_perfmon(&self) -> bool {
        matches!(self.like, Some(Like::Perfmon))
    }

    /// Whether anything is written after the run.
    pub fn has_any(&self) -> bool {
        !self.export.is_empty() || self.report.is_some() || self.like.is_some()
    }

    /// Finds out what would fail at the end.
    ///
    /// # Errors
    ///
    /// When a file exists or cannot be written, or no server of MLflow is set.
    pub fn check(&self, settings: &Settings) -> Result<(), Failure> {
        let usage = |message: &str| Err(Failure::new(Reason::Usage, message));
        if self.has_any() && settings.split_by.is_some() {
            return usage("--export, --report and --like write files of one run: omit --split-by");
        }
        let server = env::var_os("MLFLOW_TRACKING_URI").filter(|uri| !uri.is_empty());
        if self.export.contains(&Format::Mlflow) && server.is_none() {
            return usage("--export mlflow: set MLFLOW_TRACKING_URI to the server");
        }
        if let Some(path) = &self.report {
            match report_option(path) {
                None => return usage("--report: the name of the file ends in .html, .pdf or .md"),
                Some("--pdf") if !report::has_browser() => {
                    return usage("--report: a PDF file needs Chromium or Chrome in PATH");
                }
                Some(_) => {}
            }
            if !directory_of(path).is_dir() {
                let message = format!("--report {}: no such directory", path.display());
                return Err(Failure::new(Reason::Output, message));
            }
            own_file::check(path, false)?;
        }
        Ok(())
    }

    /// Writes the exports and the report of a run, each in a process of its own: as the user who owns
    /// the run, and with the memory that it needs. Returns whether all were written.
    pub fn write(&self, run: &Path, settings: &Settings) -> bool {
        if !self.has_any() {
            return true;
        }
        let opened = {
            // Runs can belong to the user of `sudo`.
            let _raised = privileges::raise();
            StoredRun::open(run, Trust::Own)
        };
        let stored = match opened {
            Ok(stored) => stored,
            Err(error) => {
                warning!("profiler: {}: {error}", log::path(run));
                return false;
            }
        };
        let others = unfinished(&stored);
        if let Some(first) = others.first() {
            let more = match others.len() {
                1 => "its profiler".to_owned(),
                count => format!("the last of {count} profilers"),
            };
            if !settings.quiet {
                report!("{first} is still being profiled: {more} writes exports and report");
            }
            return true;
        }
        // In an argument, a name that begins with a hyphen is no option.
        let absolute = std::path::absolute(run);
        let run = match &absolute {
            Ok(absolute) if run.as_os_str().as_encoded_bytes().starts_with(b"-") => absolute,
            _ => run,
        };
        let mut steps = self.steps(run, &perfmon::job(&stored));
        if stored.hosts.len() > 1 {
            let end = stored.manifests().filter_map(|manifest| manifest.end_ts);
            let end = end.max().unwrap_or_default();
            for Step { name, words } in &mut steps {
                let claim = run.join(EXPORTS).join(format!(".{name}-{end}"));
                words.extend(["--claim".into(), claim.into()]);
            }
        }
        drop(stored);
        // Each of them, whatever happens to the others.
        let written = steps.iter().filter(|step| is_written(step, settings.quiet));
        written.count() == steps.len()
    }

    /// The subcommands that write the files of a run.
    fn steps(&self, run: &Path, job: &str) -> Vec<Step> {
        let exports = run.join(EXPORTS);
        let mut formats = self.export.clone();
        if self.is_like_perfmon() {
            formats.push(Format::Perfmon);
        }
        let mut steps = Vec::new();
        for (number, format) in formats.iter().enumerate() {
            if formats[..number].contains(format) {
                continue;
            }
            let name = format.name();
            let mut words = vec!["export".into(), OsString::from(&name), run.into()];
            words.push("--force".into());
            if *format != Format::Mlflow {
                words.extend(["-o".into(), exports.join(format.place()).into()]);
            }
            steps.push(Step { name, words });
        }
        if self.is_like_perfmon() {
            let directory = exports.join(Format::Perfmon.place());
            let name = format!("job-report-{}", job.replace('/', "_"));
            let mut words = ["report", "--like", "perfmon", "--force", "--png"]
                .map(OsString::from)
                .to_vec();
            words.extend([directory.join("plots").into(), "-o".into()]);
            words.push(directory.join(format!("{name}.html")).into());
            if report::has_browser() {
                let file = directory.join(format!("{name}.pdf"));
                words.extend(["--pdf".into(), file.into()]);
            }
            words.push(run.into());
            steps.push(Step { name, words });
        }
        if let Some(path) = &self.report
            && let Some(option) = report_option(path)
        {
            let mut output = OsString::from(format!("{option}="));
            output.push(path);
            steps.push(Step {
                name: "report".to_owned(),
                words: vec!["report".into(), output, run.into()],
            });
        }
        steps
    }
}

/// The option of `profiler report` for a file of this name.
fn report_option(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "html" | "htm" => Some("--output"),
        "pdf" => Some("--pdf"),
        "md" => Some("--md"),
        _ => None,
    }
}

/// Nodes whose part of the run goes on.
fn unfinished(run: &StoredRun) -> Vec<String> {
    run.manifests()
        .filter(|manifest| {
            manifest.state == State::Running && manifest.process.is_alive_here() != Some(false)
        })
        .map(|manifest| log::harmless(&manifest.hostname))
        .collect()
}

/// Runs a subcommand and reports its messages; whether it succeeds.
fn is_written(Step { words, .. }: &Step, quiet: bool) -> bool {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    if let Some((uid, gid)) = invoking_user::sudo_ids() {
        command.uid(uid).gid(gid);
    }
    let what = words[0].to_string_lossy();
    let started = {
        // To become the user of `sudo`.
        let _raised = privileges::raise();
        command.spawn()
    };
    let output = match started.and_then(Child::wait_with_output) {
        Ok(output) => output,
        Err(error) => {
            warning!("profiler: cannot start `profiler {what}`: {error}");
            return false;
        }
    };
    let is_written = output.status.success();
    let messages = String::from_utf8_lossy(&output.stderr);
    if !is_written || !quiet {
        log::report_lines(module_path!(), messages.trim_end());
    }
    if !is_written && output.stderr.is_empty() {
        warning!("profiler: `profiler {what}`: {}", output.status);
    }
    is_written
}
