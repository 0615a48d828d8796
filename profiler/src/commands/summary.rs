//! `profiler summary`: one screen about a run, or sums over many.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;

use super::{TrustOption, find_run::given_or_newest, print, print_json, read_runs};
use crate::{
    analysis::summary::{
        Summary, Thresholds, by_label, by_label_document, declarations, document, keys, page,
        summarize,
    },
    failure::{Failure, Reason},
    support::{log::harmless_message, names},
};

/// Arguments of `profiler summary`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Run directories, or addresses of runs: s3://BUCKET/PREFIX/RUN, https://HOST/PATH/RUN
    /// [default: the newest run in the output directory]
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    runs: Vec<PathBuf>,
    /// Print JSON: all figures of all runs, nodes, jobs, ranks and regions
    #[arg(long)]
    json: bool,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    md: bool,
    /// Aggregate runs by LABEL, user, job or run
    #[arg(long, value_name = "LABEL")]
    by: Option<String>,
    /// File with the table [report.thresholds] [default: the files that `profiler config` reads]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
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
        let thresholds = Thresholds::read(self.config.as_deref())?;
        let runs = given_or_newest(&self.runs)?;
        let summaries = read_runs(&runs, self.trust, |run| summarize(run, &thresholds))?;
        if let Some(key) = &self.by {
            let known = keys(&summaries);
            if !known.contains(&**key) {
                let message = harmless_message(&names::unknown("label", key, known));
                return Err(Failure::new(Reason::Usage, message));
            }
        }
        self.print(&summaries)?;
        Ok(0)
    }

    fn print(&self, summaries: &[Summary]) -> Result<(), Failure> {
        if self.json {
            let runs = match &self.by {
                Some(key) => by_label_document(summaries, key),
                None => summaries.iter().map(document).collect(),
            };
            return print_json(&json!({ "runs": runs, "figures": declarations() }));
        }
        let pages = match &self.by {
            Some(key) => vec![by_label(summaries, key)],
            None => summaries.iter().map(page).collect(),
        };
        let texts = pages.iter().map(|page| {
            if self.md {
                page.markdown()
            } else {
                page.text()
            }
        });
        print(texts.collect::<Vec<_>>().join("\n"))
    }
}
