//! The table `run`: the content of `run.json` that accounting over many runs needs, as Parquet.

use std::io;

use serde_json::Value;

use super::{
    files::{self, Directory},
    manifest::{Manifest, State, saturating_sum},
    metadata::with_metadata,
    parquet_file::{self, Encoder},
};
use crate::schema::{
    Batch, Label, TableBuilder, Timestamp,
    run::{RUN, RunKey, RunRow},
};

/// Writes the rows of all sessions of a host.
///
/// # Errors
///
/// When the file cannot be written; the old one remains.
pub fn write(run: &Directory, manifest: &Manifest) -> io::Result<()> {
    let mut rows = TableBuilder::new(&RUN);
    for session in manifest.sessions() {
        rows.push(key(session), row(session));
    }
    let mut batches = Vec::new();
    rows.finish(&mut batches);
    let batches: Vec<_> = batches.into_iter().map(|Batch { rows, .. }| rows).collect();
    let mut file = Encoder::new(with_metadata(
        &RUN,
        &RUN.schema(),
        &manifest.run_id,
        &manifest.hostname,
        &manifest.labels,
        false,
    ))?;
    file.encode(&batches)?;
    let bytes = file.finish()?;
    let directory = run
        .claim(RUN.name)?
        .claim(&files::host_directory(&manifest.hostname))?;
    directory.replace(&parquet_file::name(0), &manifest.hostname, &bytes)
}

fn key(session: &Manifest) -> RunKey {
    RunKey {
        start_ts: Timestamp::from_ns(session.start_ts),
        end_ts: session.end_ts.map(Timestamp::from_ns),
    }
}

fn row(session: &Manifest) -> RunRow {
    let tables = || session.tables.values();
    let text = |value: &Value| value.as_str().map(label);
    let job = &session.target["job"];
    let what = session.target["what"].as_str();
    let has_ended = session.state != State::Running;
    let missed = session.losses.iter().filter(|loss| loss.what == "samples");
    let missed = missed.map(|loss| loss.count);
    RunRow {
        state: session.state.name().into(),
        exit_code: session.exit_code.map(i32::from),
        uid: session.uid,
        user: (!session.user.is_empty()).then(|| label(&session.user)),
        scheduler: text(&job["scheduler"]),
        job_id: text(&job["id"]),
        labels: (!session.labels.is_empty()).then(|| json(&session.labels)),
        target: what.unwrap_or_default().to_owned(),
        command: quoted(&session.command),
        version: label(&session.version),
        kernel: label(&session.kernel),
        interval_ns: session.config["interval_ns"].as_u64(),
        samples: session.samples.filter(|_| has_ended),
        missed_samples: has_ended.then(|| saturating_sum(missed)),
        rows: has_ended.then(|| saturating_sum(tables().map(|table| table.rows))),
        lost_rows: has_ended.then(|| saturating_sum(tables().map(|table| table.dropped))),
        losses: (!session.losses.is_empty()).then(|| json(&session.losses)),
    }
}

fn label(text: &str) -> Label {
    Label::from(text.to_owned())
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The file is not trusted; arguments cannot have NULs.
fn quoted(command: &[String]) -> String {
    shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default()
}
