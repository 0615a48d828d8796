//! Scenarios with known truth: stored runs whose rows are given, and what must be concluded from them.
//! The same conclusions about programs that run are in `tests/e2e/scenarios`.

mod compare;
mod exports;
mod sparse;
mod summary;
mod verdict;

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use crate::{
    analysis::{
        stored_run::StoredRun,
        summary::{Summary, Thresholds, summarize},
    },
    import::{Host, Hosts, Origin, Row, write},
    output::dataset::foreign_file::Trust,
    schema::SCHEMA_VERSION,
    support::labels::Labels,
};

/// Start of each run: 2026-01-02T03:04:05Z, µs since 1970-01-01 UTC.
pub const START: i64 = 1_767_323_045_000_000;

/// A run of one node, of which the rows are given. What is not given is null.
pub struct Recording {
    host: Host,
    /// Starts and ends, s; that of the run if there are none.
    sessions: Vec<(f64, Option<f64>)>,
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
        Self {
            host,
            sessions: Vec::new(),
        }
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

    /// A mark of a process at `second`, about the `length` before it, s.
    #[must_use]
    pub fn mark(mut self, pid: u32, second: f64, length: Option<f64>, values: Value) -> Self {
        let mut all = columns(json!({ "pid": pid, "start_ts": START }));
        all.extend(columns(values));
        let us = length.map(|seconds| at(seconds) - START);
        self.host.add("region", at(second), us, all);
        self
    }

    /// Divides the run into sessions with these starts and ends, s. One without an end was killed, and its
    /// rows were recovered.
    #[must_use]
    pub fn sessions(mut self, sessions: &[(f64, Option<f64>)]) -> Self {
        self.sessions = sessions.to_vec();
        self
    }

    /// `run.json` with the sessions.
    fn divided(&self, run: &str) -> Value {
        let session = |&(start, end): &(f64, Option<f64>)| {
            let ns = |second: f64| at(second) * 1000;
            json!({
                "run_id": run,
                "hostname": "node1",
                "state": if end.is_some() { "complete" } else { "recovered" },
                "schema_version": SCHEMA_VERSION,
                "start_ts": ns(start),
                "end_ts": end.map(ns),
                "config": {"interval_ns": 1_000_000_000},
                "target": {"what": format!("`session at {start} s`")},
                "exit_code": end.map(|_| 0),
            })
        };
        let mut all: Vec<Value> = self.sessions.iter().map(session).collect();
        let mut last = all.pop().expect("a session");
        last["earlier"] = all.into();
        last
    }

    /// Writes the run into a directory.
    pub fn store(self, directory: &Path, run: &str) -> StoredRun {
        let path = directory.join(run);
        let divided = (!self.sessions.is_empty()).then(|| self.divided(run));
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
        if let Some(manifest) = divided {
            fs::write(path.join("run.json"), manifest.to_string()).expect("written");
        }
        StoredRun::open(&path, Trust::Own).expect("a run")
    }

    /// The summary of the run.
    pub fn summary(self) -> Summary {
        let directory = tempfile::tempdir().expect("a directory");
        summarize(&self.store(directory.path(), "run"), &Thresholds::default())
    }
}
