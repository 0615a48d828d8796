//! `profiler compare`: real differences are found, equal programs are not said to differ.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use e2e::setting;
use serde_json::Value;
use tempfile::TempDir;

/// Records a program that hashes this many bytes.
fn record(directory: &Path, name: &str, interval: &str, bytes: u64) -> PathBuf {
    let script = format!("head -c {bytes} /dev/zero | sha256sum");
    let status = Command::new(setting("PROFILER_BIN"))
        .args(["run", "-q", "-i", interval, "--run-id", name, "--out"])
        .arg(directory)
        .args(["--source", "process,usage,sched,system,timeline,host"])
        .args(["--", "sh", "-c", &script])
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.expect("it starts").success());
    directory.join(name)
}

fn compare(options: &[&str], a: &[&PathBuf], b: &[&PathBuf]) -> (Option<i32>, String, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("compare")
        .args(options)
        .args(a)
        .arg("--")
        .args(b)
        .output()
        .expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn document(a: &[&PathBuf], b: &[&PathBuf]) -> Value {
    let (code, stdout, stderr) = compare(&["--json"], a, b);
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// A figure of a comparison.
fn figure<'a>(document: &'a Value, name: &str) -> &'a Value {
    let figures = document["figures"].as_array().expect("figures");
    let named = figures.iter().find(|figure| figure["name"] == name);
    named.unwrap_or_else(|| panic!("no {name}: {document}"))
}

const BYTES: u64 = 100_000_000;

#[test]
fn slower_program_is_found() {
    let directory = TempDir::new().expect("a directory");
    let (mut a, mut b) = (Vec::new(), Vec::new());
    // Interleaved, so that a change of the machine affects both.
    for number in 0..10 {
        a.push(record(
            directory.path(),
            &format!("a{number}"),
            "100ms",
            BYTES,
        ));
        b.push(record(
            directory.path(),
            &format!("b{number}"),
            "100ms",
            BYTES * 130 / 100,
        ));
    }
    let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
    let found = document(&a, &b);
    let cpu = figure(&found, "cpu_s");
    assert_eq!(cpu["verdict"], "more", "{cpu}");
    assert_eq!(cpu["runs"], serde_json::json!([10, 10]));
    let interval = &cpu["ratio"]["interval"];
    let (low, high) = (interval[0].as_f64(), interval[1].as_f64());
    assert!(
        low > Some(1.0) && low < Some(1.3) && high > Some(1.2),
        "{cpu}"
    );
    let (code, _, stderr) = compare(&["--fail-on", "cpu_s>+5%"], &a, &b);
    assert_eq!(code, Some(8), "{stderr}");
    assert!(stderr.contains("cpu_s differs by +"), "{stderr}");
    let (code, _, stderr) = compare(&["--fail-on", "cpu_s>+60%"], &a, &b);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let (code, _, stderr) = compare(&["--fail-on", "cpu>+5%"], &a, &b);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("no figure `cpu` in the runs: "), "{stderr}");
    // The commands differ in a number only.
    let processes = found["processes"].as_array().expect("processes");
    let head = processes
        .iter()
        .find(|process| process["name"] == "head -c # /dev/zero");
    assert!(head.is_some(), "{processes:?}");
    let (_, text, _) = compare(&[], &a, &b);
    assert!(text.contains("▲"), "{text}");
}

#[test]
fn equal_programs_do_not_differ() {
    let directory = TempDir::new().expect("a directory");
    let runs: Vec<_> = (0..12)
        .map(|number| record(directory.path(), &format!("r{number}"), "100ms", BYTES / 10))
        .collect();
    // Of all ways to divide the runs into two groups, at most 5 % may look different.
    let mut alarms = 0;
    let mut state = 12_345_u64;
    for _ in 0..100 {
        let mut order: Vec<_> = runs.iter().collect();
        for index in (1..order.len()).rev() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let other = usize::try_from(state >> 33).expect("31 bits") % (index + 1);
            order.swap(index, other);
        }
        let found = document(&order[..6], &order[6..]);
        let figures = found["figures"].as_array().expect("figures").iter();
        let mut primary = figures.filter(|figure| figure["primary"] == true);
        alarms += u32::from(primary.any(|figure| figure["verdict"] != "same"));
    }
    assert!(alarms <= 10, "{alarms} of 100");
}

#[test]
fn differences_of_settings_come_first() {
    let directory = TempDir::new().expect("a directory");
    let a = record(directory.path(), "a", "100ms", BYTES);
    let b = record(directory.path(), "b", "50ms", BYTES);
    let found = document(&[&a], &[&b]);
    assert_eq!(found["within_one_run"], true);
    let machines = found["machines"].as_array().expect("differences");
    let interval = machines
        .iter()
        .find(|difference| difference["what"] == "interval");
    assert_eq!(
        interval.expect("the interval")["a"],
        serde_json::json!(["100.0 ms"])
    );
    assert!(
        machines
            .iter()
            .all(|difference| difference["what"] != "CPU"),
        "{machines:?}"
    );
    let (_, text, _) = compare(&[], &[&a], &[&b]);
    let at = |text: &str, what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(at(&text, "interval") < at(&text, "cpu_s"), "{text}");
    assert!(
        text.contains("One run each: intervals are within the runs."),
        "{text}"
    );
    let missing = directory.path().join("missing");
    let (code, _, stderr) = compare(&[], &[&a], &[&missing]);
    assert_eq!(code, Some(3), "{stderr}");
}
