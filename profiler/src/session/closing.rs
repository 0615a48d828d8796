//! The text at the end of a session: what `profiler summary` says about the run, in short.

use std::path::Path;

use crate::{
    analysis::{
        stored_run::StoredRun,
        summary::{Thresholds, closing, summarize},
    },
    output::{
        OutputReport,
        dataset::{Manifest, foreign_file::Trust, manifest::saturating_sum},
    },
    privileges,
    support::log,
};

/// Rows that are read, which takes a second: a longer run would keep its job waiting.
const MOST_ROWS: u64 = 5_000_000;

/// The text about what the outputs have written. `sources` are lines of sources.
pub fn text(outputs: &OutputReport, sources: &str) -> String {
    let run = outputs.run.as_deref().map(of_run).unwrap_or_default();
    format!("{run}{sources}{}", outputs.lines.join("\n"))
}

fn of_run(run: &Path) -> String {
    // Runs can belong to the user of `sudo`.
    let _raised = privileges::raise();
    let stored = match StoredRun::open(run, Trust::Own) {
        Ok(stored) => stored,
        Err(error) => return format!("{}: {error}\n", log::path(run)),
    };
    let sessions = stored.manifests().flat_map(Manifest::sessions);
    let rows = sessions.flat_map(|session| session.tables.values().map(|table| table.rows));
    let rows = saturating_sum(rows);
    if rows > MOST_ROWS {
        return format!("{rows} rows, which `profiler summary` reads\n");
    }
    closing(&summarize(&stored, &Thresholds::default())).text()
}
