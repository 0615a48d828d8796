//! `profiler compare`: two groups of runs.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use super::{TrustOption, own_file, print, print_json, read_run, write};
use crate::{
    analysis::{
        compare::{Judgement, Measured, Threshold, compare, document, judge, page},
        stored_run::StoredRun,
        summary::{Thresholds, summarize},
    },
    download::Run,
    failure::{Failure, Reason},
    report,
    run_report::{Shown, comparison as html_comparison},
    support::log::harmless_message,
    warning,
};

/// Arguments of `profiler compare`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Runs of side A: directories, or addresses such as s3://BUCKET/PREFIX/RUN
    #[arg(required = true, value_name = "A", value_hint = ValueHint::DirPath)]
    before: Vec<PathBuf>,
    /// Runs of side B, after `--`
    #[arg(required = true, last = true, value_name = "B", value_hint = ValueHint::DirPath)]
    after: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    md: bool,
    /// Write HTML to this file instead; `-` for stdout
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["json", "md"])]
    output: Option<PathBuf>,
    /// Replace an existing file that is not a report
    #[arg(long, requires = "output")]
    force: bool,
    /// Exit with 8 if a figure differs significantly by more than THRESHOLD, such as 'cpu_s>+5%';
    /// with 9 if there are too few runs to tell
    #[arg(long, value_name = "THRESHOLD")]
    fail_on: Vec<Threshold>,
    #[command(flatten)]
    trust: TrustOption,
}

fn measured(runs: &[Run]) -> Result<Vec<Measured>, Failure> {
    let measured = |run: &StoredRun| Measured::new(run, summarize(run, &Thresholds::default()));
    runs.iter().map(|run| read_run(run, measured)).collect()
}

/// The run of a side that is shown over time.
fn shown(runs: &[Run], measured: &[Measured]) -> Result<Shown, Failure> {
    let median = Measured::median(measured);
    read_run(&runs[median], |run| {
        Shown::read(run, &measured[median].summary)
    })
}

fn label(paths: &[PathBuf]) -> String {
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned()
    };
    match paths {
        [] => String::new(),
        [only] => name(only),
        [first, .., last] => format!("{} … {}", name(first), name(last)),
    }
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a run cannot be read, or has no such figure.
    pub fn run(&self) -> Result<u8, Failure> {
        let is_option = |path: &&PathBuf| path.as_os_str().as_encoded_bytes().starts_with(b"-");
        if let Some(option) = self.after.iter().find(is_option) {
            let message = format!("{}: options come before `--`", option.display());
            return Err(Failure::new(Reason::Usage, message));
        }
        if let Some(output) = &self.output {
            own_file::check(output, self.force)?;
        }
        let [before, after] = [
            self.trust.resolve_all(&self.before)?,
            self.trust.resolve_all(&self.after)?,
        ];
        for run in before.iter().chain(&after) {
            for problem in &run.problems {
                warning!(
                    "profiler: {}: {}",
                    run.name.display(),
                    harmless_message(problem)
                );
            }
        }
        let sides = [measured(&before)?, measured(&after)?];
        let labels = [label(&self.before), label(&self.after)];
        let [a, b] = sides.each_ref().map(|runs| runs.iter().collect::<Vec<_>>());
        let comparison = compare(labels, [&a, &b]);
        // Before anything is written: an unknown figure is an error of the command line.
        let judgements = judge(&self.fail_on, &comparison);
        let judgements = judgements.map_err(|why| Failure::new(Reason::Usage, why))?;
        if let Some(output) = &self.output {
            let shown = [shown(&before, &sides[0])?, shown(&after, &sides[1])?];
            write(output, html_comparison(&comparison, &shown).as_bytes())?;
        } else if self.json {
            print_json(&document(&comparison))?;
        } else {
            let page = page(&comparison);
            print(if self.md {
                page.markdown()
            } else {
                page.text()
            })?;
        }
        let (mut has_failed, mut is_unknown) = (false, false);
        for judgement in judgements {
            match judgement {
                Judgement::Within => {}
                Judgement::Exceeded(why) => {
                    report!("profiler: {why}");
                    has_failed = true;
                }
                Judgement::Unknown(why) => {
                    warning!("profiler: {why}");
                    is_unknown = true;
                }
            }
        }
        Ok(if has_failed {
            Reason::Difference as u8
        } else if is_unknown {
            Reason::Undecided as u8
        } else {
            0
        })
    }
}
