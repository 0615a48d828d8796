//! Perfetto opens the trace events of an export.

use std::{collections::BTreeMap, path::Path};

use e2e::dataset::{Dataset, script};
use serde_json::Value;
use tempfile::TempDir;

use crate::{export::export, report::record};

type Row = Vec<String>;

/// What the trace processor finds, by query.
fn open(trace: &Path) -> BTreeMap<String, Vec<Row>> {
    let path = trace.to_str().expect("UTF-8");
    let found = script("PROFILER_TEST_BROWSER", "perfetto.py", &[path]);
    serde_json::from_value(found).expect("rows")
}

/// The rows of a query in SQL, as texts.
fn rows(data: &Dataset, sql: &str) -> Vec<Row> {
    let rows: Vec<Vec<Value>> = data.rows(sql);
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    rows.into_iter()
        .map(|row| row.into_iter().map(text).collect())
        .collect()
}

#[test]
fn perfetto_opens_traces() {
    let directory = TempDir::new().expect("a directory");
    let work = "\"$PROFILER\" mark start outer; sleep 0.2 & sleep 0.1; \"$PROFILER\" mark start inner; \
                  head -c 30M /dev/zero | sha256sum; \"$PROFILER\" mark end inner; \
                  \"$PROFILER\" mark gauge level 7 --unit m; \"$PROFILER\" mark gauge level 5 --unit m; \
                  \"$PROFILER\" mark event done; \"$PROFILER\" mark phase late 0.05; \
                  wait; \"$PROFILER\" mark end outer";
    let run = record(directory.path(), &["--threads"], work);
    // As after a run: compressed.
    let trace = directory.path().join("trace.json.gz");
    let (code, stderr) = export(&["chrome-trace", &run, "-o", trace.to_str().expect("UTF-8")]);
    assert_eq!(code, 0, "{stderr}");
    let found = open(&trace);
    let data = Dataset::new(run.into());
    assert_eq!(found["errors"], Vec::<Row>::new());

    let mut processes = found["processes"].clone();
    processes.retain(|row| !row[0].starts_with("node "));
    let names = "SELECT comm, count(*)::VARCHAR FROM process GROUP BY comm ORDER BY comm";
    assert_eq!(processes, rows(&data, names));

    let mut slices = found["slices"].clone();
    slices.retain(|row| !["process", "exit", "loss"].contains(&row[0].as_str()));
    let marks = "SELECT coalesce(kind, op), name, count(*)::VARCHAR, \
                 sum(1000 * (epoch_us(region_end_ts) - epoch_us(region_start_ts)))::BIGINT::VARCHAR \
                 FROM region GROUP BY ALL ORDER BY ALL";
    assert_eq!(slices, rows(&data, marks));
    // `inner` is in `outer`; the phase began before `inner` ended, and has a lane of its own.
    assert_eq!(found["depth"], [["1"]]);
    let lives = found["slices"].iter().filter(|row| row[0] == "process");
    let lives: u64 = lives
        .map(|row| row[2].parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(lives, data.value::<u64>("SELECT count(*) FROM process"));

    let counters: BTreeMap<&str, (u64, f64)> = found["counters"]
        .iter()
        .map(|row| {
            let number = |text: &str| text.parse::<f64>().expect("a number");
            (
                row[0].as_str(),
                (row[1].parse().expect("a number"), number(&row[2])),
            )
        })
        .collect();
    assert_eq!(counters["level m"], (2, 12.0));
    let memory: (u64, f64) =
        data.row("SELECT count(rss), sum(rss)::DOUBLE FROM usage WHERE tid IS NULL");
    assert_eq!(counters["resident memory bytes"], memory);
    // Values are written where they change.
    let waits: (u64, f64) = data.row(
        "SELECT count(*), sum(v)::DOUBLE FROM (SELECT 100 * runqueue_ns / interval_ns AS v, \
         coalesce(lag(v) OVER (PARTITION BY pid, start_ts ORDER BY ts), 0) AS before \
         FROM sched WHERE tid IS NULL) WHERE v <> before",
    );
    let found_waits = counters["run queue %"];
    assert_eq!(found_waits.0, waits.0);
    assert!(
        (found_waits.1 - waits.1).abs() <= 1e-6 * waits.1,
        "{found_waits:?} {waits:?}"
    );
    let exits = found["slices"].iter().filter(|row| row[0] == "exit");
    let exits: Vec<(&str, &str)> = exits
        .map(|row| (row[1].as_str(), row[2].as_str()))
        .collect();
    let ended: u64 = data.value("SELECT count(*) FROM process WHERE end_ts IS NOT NULL");
    assert_eq!(exits, [("exit", ended.to_string().as_str())]);
    let disk: f64 = data.value(
        "SELECT coalesce(sum(s), 0)::DOUBLE FROM (SELECT sum(write_bytes) * 1e9 / max(interval_ns) AS s \
         FROM disk WHERE NOT partition AND kind = 'physical' GROUP BY ts)",
    );
    let written = counters["disk written bytes/s"].1;
    assert!((written - disk).abs() <= 1e-6 * disk, "{written} {disk}");
    let tids = "SELECT DISTINCT 'thread ' || tid FROM usage WHERE tid IS NOT NULL ORDER BY ALL";
    let mut threads = found["threads"].clone();
    threads.sort();
    assert_eq!(threads, rows(&data, tids));
}
