//! Scenarios with known truth, with programs that run. Those with stored runs are in
//! `profiler/src/scenarios`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    WORKLOAD,
    compare::{compare, document},
    report::profiler,
};

/// Records a command as a run of this name.
fn record(directory: &Path, run: &str, command: &[&str]) -> PathBuf {
    let out = directory.to_str().expect("UTF-8");
    let options = [
        "run", "-q", "-i", "100ms", "--run-id", run, "--out", out, "--",
    ];
    profiler(&[&options, command].concat());
    directory.join(run)
}

fn named<'a>(list: &'a Value, end: &str) -> &'a Value {
    let mut rows = list.as_array().expect("rows").iter();
    let is_named = |row: &&Value| row["name"].as_str().is_some_and(|name| name.ends_with(end));
    rows.find(is_named)
        .unwrap_or_else(|| panic!("no {end}: {list}"))
}

/// A program uses 30 % more CPU time by its own clock, beside many commands of a millisecond.
#[test]
fn the_command_that_causes_a_difference_is_found() {
    let directory = TempDir::new().expect("a directory");
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for number in 0..5 {
        for (runs, side, time) in [(&mut a, "a", "400"), (&mut b, "b", "520")] {
            let script = format!(
                "for tool in readlink dirname basename realpath; do
                     for word in q w e r; do $tool /$word >/dev/null 2>&1; done
                 done; {WORKLOAD} cpu {time} solve; true"
            );
            let run = format!("{side}{number}");
            runs.push(record(directory.path(), &run, &["sh", "-c", &script]));
        }
    }
    let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
    let found = document(&a, &b);
    for (list, name) in [("figures", "cpu_s"), ("processes", "solve")] {
        let row = named(&found[list], name);
        assert_eq!(row["verdict"], "more", "{row}");
        let ratio = row["ratio"]["value"].as_f64().expect("a ratio");
        assert!((1.2..1.4).contains(&ratio), "{row}");
    }
    let processes = found["processes"].as_array().expect("rows");
    assert!(processes.len() > 16, "{found}");
    let (code, _, stderr) = compare(&["--fail-on", "cpu_s>+5%"], &a[..1], &b[..1]);
    assert_eq!(code, Some(9), "{stderr}");
    assert!(
        stderr.contains("cannot be judged with 1 and 1 runs"),
        "{stderr}"
    );
}

/// A run is continued after a pause: it is as long as its sessions.
#[test]
fn pauses_between_sessions_do_not_count() {
    let directory = TempDir::new().expect("a directory");
    let command = [WORKLOAD, "cpu", "300"];
    record(directory.path(), "run", &command);
    // Longer than both sessions together, so that a sum over it differs whatever else is running.
    std::thread::sleep(std::time::Duration::from_secs(6));
    let run = record(directory.path(), "run", &command);
    let run = run.to_str().expect("UTF-8");
    let found: Value = serde_json::from_str(&profiler(&["summary", "--json", run])).expect("JSON");
    let found = &found["runs"][0];
    let sessions = found["sessions"].as_array().expect("sessions");
    assert_eq!(sessions.len(), 2, "{found}");
    let sum = |name: &str| -> f64 {
        let of = |session: &Value| session[name].as_f64().expect("a number");
        sessions.iter().map(of).sum()
    };
    let of = |value: &Value| value.as_f64().expect("a number");
    assert!(
        (sum("seconds") - of(&found["seconds"])).abs() < 1e-6,
        "{found}"
    );
    assert!(
        (sum("cpu_s") - of(&found["total"]["cpu_s"])).abs() < 1e-6,
        "{found}"
    );
    assert!(sum("cpu_s") > 0.6, "{found}");
    let text = profiler(&["summary", run]);
    assert!(text.contains(" in 2 sessions within "), "{text}");
}
