//! Recordings without the rows of sleeping processes.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::START;
use crate::{
    analysis::{
        rows::{numbers, processes, times},
        stored_run::StoredRun,
    },
    import::{Row, batches},
    output::dataset::{DatasetOptions, DatasetWriter, Manifest, foreign_file::Trust},
    sources::dataset_schema,
};

/// Time after this number of ms.
fn at(ms: i64) -> i64 {
    START + ms * 1000
}

fn row(columns: Value, ms: i64) -> Row {
    let Value::Object(mut row) = columns else {
        panic!("{columns} is no object");
    };
    row.insert("ts".to_owned(), at(ms).into());
    row
}

/// A run with samples at each second until 10, these rows: pid, second, ms, `rss`, and these ends of
/// processes, ms.
fn run(rows: &[(u32, i64, u64, u64)], ends: &[(u32, i64)], sparse: bool) -> (TempDir, StoredRun) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut tables: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for second in 1..=10 {
        let interval = json!({ "interval_ns": 1_000_000_000 });
        tables
            .entry("system")
            .or_default()
            .push(row(interval, second * 1000));
    }
    for &(pid, second, ms, rss) in rows {
        let key = json!({
            "pid": pid, "start_ts": START, "interval_ns": ms * 1_000_000,
        });
        let of = |columns: Value| {
            let mut row = row(columns, second * 1000);
            row.extend(key.as_object().expect("an object").clone());
            row
        };
        let usage = json!({ "rss": rss, "pss": rss / 2, "user_ns": 7, "state": "S" });
        tables.entry("usage").or_default().push(of(usage));
        let sched = json!({ "sleep_ns": ms * 1_000_000 - 7, "oncpu_ns": 7 });
        tables.entry("sched").or_default().push(of(sched));
    }
    for &(pid, end) in ends {
        let process = json!({ "pid": pid, "start_ts": START, "end_ts": at(end) });
        tables
            .entry("process")
            .or_default()
            .push(row(process, 10_000));
    }
    let manifest = Manifest::new("run", "node1", (START - 1_000_000) * 1000);
    let writer = DatasetWriter::start(DatasetOptions {
        manifest: Some(manifest.expect("a manifest")),
        schema: dataset_schema(),
        all_nullable: true,
        sparse,
        ..DatasetOptions::new(directory.path().join("run"), "node1", "run")
    });
    let writer = writer.expect("a writer");
    writer.write(batches(tables).expect("rows"));
    writer.finish().expect("written");
    let run = StoredRun::open(&directory.path().join("run"), Trust::Own);
    (directory, run.expect("a run"))
}

/// The values of a column by pid and second, with the seconds that they cover.
fn values(run: &StoredRun, table: &str, column: &str) -> BTreeMap<(u32, i64), (f64, f64)> {
    let mut found = BTreeMap::new();
    let read = run.read(table, &run.hosts[0], &[column], |batch| {
        let values = numbers(batch, column)
            .into_iter()
            .zip(numbers(batch, "interval_ns"));
        let keys = processes(batch).into_iter().zip(times(batch, "ts"));
        for ((process, ts), (value, interval)) in keys.zip(values) {
            let second = (ts.expect("a time") - START) / 1_000_000;
            let key = (process.expect("a process").0, second);
            assert!(
                found.insert(key, (value, interval / 1e9)).is_none(),
                "{key:?}"
            );
        }
    });
    read.expect("it is read");
    found
}

fn of(all: &BTreeMap<(u32, i64), (f64, f64)>, pid: u32) -> Vec<(i64, f64, f64)> {
    let of = all.iter().filter(|((of, _), _)| *of == pid);
    of.map(|((_, second), (value, seconds))| (*second, *value, *seconds))
        .collect()
}

/// One process changes once and is there until the run is killed; one ends.
const ROWS: [(u32, i64, u64, u64); 4] = [
    (1, 1, 1000, 10),
    (2, 1, 1000, 30),
    (2, 4, 2500, 0),
    (1, 6, 5000, 20),
];

fn seconds(all: &BTreeMap<(u32, i64), (f64, f64)>, pid: u32) -> Vec<i64> {
    of(all, pid).iter().map(|row| row.0).collect()
}

#[test]
fn sleeping_processes_have_a_row_at_each_sample() {
    let (_directory, run) = run(&ROWS, &[(2, 3500)], true);
    let rss = values(&run, "usage", "rss");
    let first: Vec<_> = (1..6).map(|second| (second, 10.0, 1.0)).collect();
    let then: Vec<_> = (6..=10).map(|second| (second, 20.0, 1.0)).collect();
    assert_eq!(of(&rss, 1), [first, then].concat());
    let ended = [
        (1, 30.0, 1.0),
        (2, 30.0, 1.0),
        (3, 30.0, 1.0),
        (4, 0.0, 0.5),
    ];
    assert_eq!(of(&rss, 2), ended);
    let known = values(&run, "usage", "pss");
    let known: Vec<_> = of(&known, 1)
        .into_iter()
        .filter(|(_, pss, _)| !pss.is_nan())
        .collect();
    assert_eq!(known, [(1, 5.0, 1.0), (6, 10.0, 1.0)]);
    let sum = |table, column| -> Option<f64> {
        let all = of(&values(&run, table, column), 1);
        all.iter()
            .filter(|(second, ..)| *second <= 6)
            .map(|(_, value, _)| *value)
            .reduce(|sum, value| sum + value)
    };
    assert_eq!(sum("usage", "user_ns"), Some(14.0));
    assert_eq!(sum("sched", "sleep_ns"), Some(6e9 - 14.0));
}

#[test]
fn part_of_a_run_has_the_same_rows() {
    let (_directory, run) = run(&ROWS, &[(2, 3500)], true);
    let mut all = values(&run, "usage", "rss");
    all.retain(|(_, second), _| (3..=7).contains(second));
    let part = run.between(at(2000), at(7000));
    assert_eq!(values(&part, "usage", "rss"), all);
}

#[test]
fn full_recordings_remain_as_they_are() {
    let (_directory, run) = run(&ROWS, &[(2, 3500)], false);
    assert_eq!(values(&run, "usage", "rss").len(), ROWS.len());
}

/// A row that does not reach back to the one before it shows that rows are lost.
#[test]
fn lost_rows_are_not_filled() {
    let rows = [
        (1, 1, 1000, 10),
        // Until 5, rows are lost.
        (1, 6, 1000, 20),
        (1, 8, 2000, 20),
        // The last rows are lost, and with them the end.
        (2, 1, 1000, 30),
    ];
    let (_directory, run) = run(&rows, &[(2, 9500)], true);
    let rss = values(&run, "usage", "rss");
    assert_eq!(seconds(&rss, 1), [1, 6, 7, 8, 9, 10]);
    let covered: Vec<f64> = of(&rss, 1).iter().map(|row| row.2).collect();
    assert_eq!(covered, [1.0; 6]);
    assert_eq!(seconds(&rss, 2), [1]);
    let part = values(&run.between(at(2000), at(9000)), "usage", "rss");
    assert_eq!(seconds(&part, 1), [6, 7, 8, 9]);
}

/// A process that is about to end is not in the reading before its end.
#[test]
fn ended_processes_have_their_time_in_their_last_row() {
    let rows = [(1, 1, 1000, 10), (1, 3, 600, 0)];
    let (_directory, run) = run(&rows, &[(1, 1600)], true);
    let rss = values(&run, "usage", "rss");
    assert_eq!(of(&rss, 1), [(1, 10.0, 1.0), (3, 0.0, 0.6)]);
}

#[test]
fn processes_are_unknown_between_sessions() {
    let (_directory, mut run) = run(
        &[(1, 1, 1000, 10), (3, 1, 1000, 30), (1, 7, 1000, 10)],
        &[],
        true,
    );
    let hosts = std::sync::Arc::get_mut(&mut run.hosts).expect("the only one");
    let manifest = hosts[0].manifest.as_mut().expect("a manifest");
    manifest.earlier = vec![manifest.clone()];
    manifest.start_ts = at(4500) * 1000;
    let rss = values(&run, "usage", "rss");
    assert_eq!(seconds(&rss, 1), [1, 2, 3, 4, 7, 8, 9, 10]);
    assert_eq!(seconds(&rss, 3), [1, 2, 3, 4]);
}
