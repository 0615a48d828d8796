//! `profiler report` and `profiler compare`: runs, or two groups of runs, as one HTML file that needs
//! no network and is readable without scripts, as Markdown, and the drawings as files.

mod bands;
mod comparison;
mod devices;
mod heat_maps;
mod html;
mod latencies;
mod markdown;
mod over_time;
mod perfmon;
mod plots;
mod processes;
mod roofline;
mod section;
mod sections;
mod subjects;

use self::section::Section;
pub use self::{
    comparison::{Shown, comparison},
    html::page as html,
    markdown::markdown,
    perfmon::html as perfmon_html,
    section::Picture,
};
use crate::{
    analysis::{
        roofline::Sources,
        stored_run::StoredRun,
        summary::{Summary, Thresholds, summarize},
    },
    charts::{Frame, Layout},
};

/// The report of a run.
pub struct Report {
    summary: Summary,
    sections: Vec<Section>,
    /// What all drawings have in common.
    pub frame: Frame,
    /// What can be selected, with its figures: JSON for scripts.
    subjects: String,
}

impl Report {
    /// Reads a run; with `redact`, without command lines and users. Ceilings of the roofline are from
    /// `sources`.
    pub fn new(run: &StoredRun, thresholds: &Thresholds, sources: &Sources, redact: bool) -> Self {
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
        Self {
            sections,
            frame: Frame {
                span: over_time.span,
                layout: Layout::SCREEN,
                bands: bands::bands(&over_time),
            },
            subjects: subjects::json(&over_time),
            summary,
        }
    }

    /// The plots of perfmon, under its names.
    pub fn like_perfmon(run: &StoredRun, thresholds: &Thresholds, redact: bool) -> Self {
        let mut summary = summarize(run, thresholds);
        if redact {
            summary.redact();
        }
        let (sections, span) = perfmon::sections(run, &summary);
        Self {
            sections,
            frame: Frame {
                span,
                layout: Layout::SCREEN,
                bands: Vec::new(),
            },
            subjects: "{}".to_owned(),
            summary,
        }
    }

    /// All drawings.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        self.sections.iter().flat_map(Section::pictures)
    }
}
