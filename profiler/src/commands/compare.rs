//! `profiler compare`: two groups of runs.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use super::{print, print_json, read_runs, write};
use crate::{
    analysis::{
        compare::{Measured, Threshold, compare, document, page},
        summary::{Thresholds, summarize},
    },
    failure::{Failure, Reason},
    report,
    run_report::{Shown, comparison as html_comparison},
};

/// Arguments of `profiler compare`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Run directories of side A
    #[arg(required = true, value_name = "A", value_hint = ValueHint::DirPath)]
    before: Vec<PathBuf>,
    /// Run directories of side B, after `--`
    #[arg(required = true, last = true, value_name = "B", value_hint = ValueHint::DirPath)]
    after: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    md: bool,
    /// Write HTML to this file instead; `-` for the standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["json", "md"])]
    output: Option<PathBuf>,
    /// Exit with 8 if a figure differs significantly by more than this, such as 'cpu_s>+5%'
    #[arg(long, value_name = "THRESHOLD")]
    fail_on: Vec<Threshold>,
}

fn measured(paths: &[PathBuf]) -> Result<Vec<Measured>, Failure> {
    read_runs(paths, |run| {
        Measured::new(run, summarize(run, &Thresholds::default()))
    })
}

/// The run of a side that is shown over time.
fn shown(paths: &[PathBuf], runs: &[Measured]) -> Result<Shown, Failure> {
    let median = Measured::median(runs);
    let path = std::slice::from_ref(&paths[median]);
    let mut shown = read_runs(path, |run| Shown::read(run, &runs[median].summary))?;
    Ok(shown.remove(0))
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
        let sides = [measured(&self.before)?, measured(&self.after)?];
        let labels = [label(&self.before), label(&self.after)];
        let [a, b] = sides.each_ref().map(|runs| runs.iter().collect::<Vec<_>>());
        let comparison = compare(labels, [&a, &b]);
        if let Some(output) = &self.output {
            let shown = [
                shown(&self.before, &sides[0])?,
                shown(&self.after, &sides[1])?,
            ];
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
        let mut has_failed = false;
        for threshold in &self.fail_on {
            let exceeded = threshold.exceeded(&comparison);
            let exceeded = exceeded.map_err(|why| Failure::new(Reason::Usage, why))?;
            if let Some(why) = exceeded {
                report!("profiler: {why}");
                has_failed = true;
            }
        }
        Ok(if has_failed {
            Reason::Difference as u8
        } else {
            0
        })
    }
}
