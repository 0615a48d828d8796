//! Scenarios with known truth: stored runs whose rows are given, and what must be concluded from them.
//! The same conclusions about programs that run are in `tests/e2e/scenarios`.

mod compare;
mod summary;

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};

use crate::{
    analysis::{
        stored_run::StoredRun,
        summary::{Summary, Thresholds, summarize},
    },
    import::{Host, Hosts, Origin, Row, write},
    output::dataset::foreign_file::Trust,
    support::labels::Labels,
};

/// Start of each run: 2026-01-02T03:04:05Z, µs since 1970-01-01 UTC.
pub const START: i64 = 1_767_323_045_000_000;

/// A run of one node, of which the rows are given. What is not given is null.
pub struct Recording {
    host: Host,
}

/// The columns of a JSON object.
fn columns(columns: Value) -> Row {
    match columns {
        Value::Object(columns) => columns,
        other => panic!("{other} is no object"),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "some seconds")]
fn at(second: f64) -> i64 {
    START + (second * 1e6).round() as i64
}

impl Recording {
    /// A run of this length, s.
    pub fn new(seconds: f64) -> Self {
        let mut host = Host {
            first: START,
            ..Host::default()
        };
        host.manifest.target = json!({"what": "`scenario`"});
        host.includes(START, at(seconds));
        Self { host }
    }

    /// A row of the second until `second`.
    #[must_use]
    pub fn row(mut self, table: &'static str, second: f64, values: Value) -> Self {
        self.host
            .add(table, at(second), Some(1_000_000), columns(values));
        self
    }

    /// A process that lived as long as the run.
    #[must_use]
    pub fn process(mut self, pid: u32, cmdline: &str, values: Value) -> Self {
        let mut all = columns(json!({
            "pid": pid,
            "start_ts": START,
            "comm": cmdline.split(' ').next(),
            "cmdline": cmdline,
        }));
        all.extend(columns(values));
        let end = self.host.span.map_or(START, |(_, end)| end);
        self.host.add("process", end, Some(end - START), all);
        self
    }

    /// A row of a process, of the second until `second`.
    #[must_use]
    pub fn of(self, pid: u32, table: &'static str, second: f64, values: Value) -> Self {
        let mut all = columns(json!({ "pid": pid, "start_ts": START }));
        all.extend(columns(values));
        self.row(table, second, Value::Object(all))
    }

    /// Writes the run into a directory.
    pub fn store(self, directory: &Path, run: &str) -> StoredRun {
        let path = directory.join(run);
        let origin = Origin {
            program: "scenario",
            file: Path::new("-"),
            labels: &Labels(BTreeMap::new()),
        };
        write(
            Hosts::from([("node1".to_owned(), self.host)]),
            &path,
            &origin,
        )
        .expect("written");
        StoredRun::open(&path, Trust::Own).expect("a run")
    }

    /// The summary of the run.
    pub fn summary(self) -> Summary {
        let directory = tempfile::tempdir().expect("a directory");
        summarize(&self.store(directory.path(), "run"), &Thresholds::default())
    }
}
