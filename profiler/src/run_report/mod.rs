//! `profiler report` and `profiler compare`: a run, or two groups of runs, as one HTML file that needs
//! no network, and is readable without scripts.

mod comparison;
mod html;
mod over_time;
mod plots;
mod sections;

pub use self::comparison::{Shown, comparison};
use crate::analysis::{
    stored_run::StoredRun,
    summary::{Thresholds, summarize},
};

/// The report of a run.
pub fn report(run: &StoredRun, thresholds: &Thresholds, redact: bool) -> String {
    let mut summary = summarize(run, thresholds);
    if redact {
        summary.redact();
    }
    let over_time = over_time::read(run, &summary, redact);
    let sections = sections::sections(&summary, &over_time);
    html::page(&html::Frame::of_run(&summary, &over_time.span), &sections)
}
