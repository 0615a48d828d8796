//! `profiler report` and `profiler compare` of runs that are not as they should be: a clear word,
//! and never a wrong plot.

use std::{fs, path::Path};

use e2e::{dataset::Dataset, runs::Profiler};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::report::{profiler, record};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");

/// The report, and its comparison with itself as text.
fn shown(run: &str) -> (String, String) {
    let html = profiler(&["report", "-o", "-", run]);
    for number in ["NaN", ">inf", "Minf", "Linf", " inf "] {
        assert!(!html.contains(number), "{number}: {html}");
    }
    (html, profiler(&["compare", run, "--", run]))
}

/// Changes the manifest of a run.
fn change(run: &str, change: impl Fn(&mut Value)) {
    let path = Path::new(run).join("run.json");
    let text = fs::read(&path).expect("the manifest");
    let mut manifest: Value = serde_json::from_slice(&text).expect("JSON");
    change(&mut manifest);
    fs::write(&path, manifest.to_string()).expect("written");
}

#[test]
fn other_versions_are_named() {
    let old = format!("{FIXTURES}/version-2/complete");
    let (html, text) = shown(&old);
    assert!(
        html.contains("The run has version 2 of the schema"),
        "{html}"
    );
    assert!(html.contains("<figure id=\"plot-thread-time\">"), "{html}");
    assert!(text.contains("version 2"), "{text}");
    let directory = TempDir::new().expect("a directory");
    let new = record(directory.path(), &[], "sleep 0.3");
    change(&new, |manifest| manifest["schema_version"] = 99.into());
    let (html, _) = shown(&new);
    assert!(
        html.contains("The run has version 99 of the schema"),
        "{html}"
    );
}

#[test]
fn a_run_being_written_is_shown_so_far() {
    let running = Profiler::new()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", "head -c 50M /dev/zero | sha256sum; sleep 600"])
        .start();
    let run = running.run_dir();
    let data = Dataset::new(run.clone());
    // The second process of the pipe has ended, and its rows are there.
    data.wait_for_row("process", "sha256sum has ended", |row| {
        row.text("comm") == Some("sha256sum") && row.i64("end_ts").is_some()
    });
    data.wait_for_samples("timeline", 2);
    let run = run.to_str().expect("UTF-8");
    let (html, text) = shown(run);
    assert!(html.contains("The run has not ended"), "{html}");
    assert!(html.contains("<figure id=\"plot-thread-time\">"), "{html}");
    assert!(html.contains("sha256sum"), "{html}");
    assert!(text.contains("has not ended"), "{text}");
    running.signal(Signal::KILL);
}

/// Half of a file, and no file of another table.
#[test]
fn lost_and_damaged_files_are_named() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], "head -c 50M /dev/zero | sha256sum");
    let data = Dataset::new(run.clone().into());
    let file_of = |table: &str| {
        let files = data.files().into_iter();
        let mut files = files.filter(|file| file.starts_with(data.path().join(table)));
        files.next().expect("a file")
    };
    let damaged = file_of("system");
    let content = fs::read(&damaged).expect("readable");
    fs::write(&damaged, &content[..content.len() / 2]).expect("written");
    fs::remove_file(file_of("usage")).expect("removed");
    let (html, text) = shown(&run);
    let name = damaged
        .file_name()
        .expect("a name")
        .to_str()
        .expect("UTF-8");
    assert!(html.contains(name), "{name}: {html}");
    assert!(text.contains(name), "{name}: {text}");
    // Nothing is drawn without data.
    assert!(!html.contains("<figure id=\"plot-node-cpu\">"), "{html}");
    assert!(html.contains("<figure id=\"plot-thread-time\">"), "{html}");
}

#[test]
fn a_run_without_the_table_of_processes_has_their_times() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &["--source", "sched,usage"], "sleep 0.3");
    let (html, text) = shown(&run);
    for shown in [html, text] {
        assert!(!shown.contains("No process was recorded"), "{shown}");
        assert!(shown.contains("the run has no table process"), "{shown}");
    }
}

#[test]
fn a_run_without_rows_says_so() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], "sleep 0.3");
    for entry in fs::read_dir(&run).expect("a directory").flatten() {
        if entry.path().is_dir() {
            fs::remove_dir_all(entry.path()).expect("removed");
        }
    }
    let (html, text) = shown(&run);
    assert!(html.contains("No process was recorded"), "{html}");
    assert!(!html.contains("<figure"), "{html}");
    assert!(html.contains("No bottleneck found: "), "{html}");
    assert!(text.contains("No process was recorded"), "{text}");
}

/// The second of two nodes has a clock that is an hour ahead.
#[test]
fn clocks_that_differ_are_named() {
    let directory = TempDir::new().expect("a directory");
    for host in ["node1", "node2"] {
        record(
            directory.path(),
            &["--hostname", host],
            "head -c 50M /dev/zero | sha256sum",
        );
    }
    let run = directory.path().join("run");
    let data = Dataset::new(run.clone());
    let ahead = "INTERVAL 1 HOUR";
    for file in data.files() {
        let is_of = file.to_string_lossy().contains("host=node2");
        if !is_of
            || file
                .extension()
                .is_none_or(|extension| extension != "parquet")
        {
            continue;
        }
        let name = file.to_str().expect("UTF-8");
        let source = format!("read_parquet('{name}', hive_partitioning = false)");
        let columns: Vec<(String, String)> = data.rows(&format!(
            "SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {source})"
        ));
        let times = columns.iter().filter(|(_, of)| of.starts_with("TIMESTAMP"));
        let times = times.map(|(column, _)| format!("{column} + {ahead} AS {column}"));
        let times: Vec<_> = times.collect();
        let _: Vec<(u64,)> = data.rows(&format!(
            "COPY (SELECT * REPLACE ({}) FROM {source}) TO '{name}.new' (FORMAT parquet)",
            times.join(", ")
        ));
        fs::rename(format!("{name}.new"), name).expect("renamed");
    }
    let path = run.join("run.node2.json");
    let text = fs::read(&path).expect("the manifest");
    let mut manifest: Value = serde_json::from_slice(&text).expect("JSON");
    let start = manifest["start_ts"].as_u64().expect("a time");
    manifest["start_ts"] = (start + 3_600_000_000_000).into();
    fs::write(&path, manifest.to_string()).expect("written");
    let (html, _) = shown(run.to_str().expect("UTF-8"));
    assert!(
        html.contains("The nodes started within") && html.contains("clocks differ"),
        "{html}"
    );
}
