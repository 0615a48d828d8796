//! `profiler report`: a run as one HTML file that needs no network, and is readable without scripts.

mod html;
mod over_time;
mod plots;
mod roofline;
mod sections;

use crate::analysis::{
    roofline::Sources,
    stored_run::StoredRun,
    summary::{Thresholds, summarize},
};

/// The report of a run. Ceilings of its roofline are from `sources`.
pub fn report(run: &StoredRun, thresholds: &Thresholds, sources: &Sources, redact: bool) -> String {
    let mut summary = summarize(run, thresholds);
    if redact {
        summary.redact();
    }
    let over_time = over_time::read(run, &summary, redact);
    let mut sections = sections::sections(&summary, &over_time);
    roofline::insert(
        roofline::section(run, sources, &over_time.span),
        &mut sections,
    );
    html::page(&summary, &sections, &over_time.span)
}
