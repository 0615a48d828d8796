//! Runs that version 2 of the schema has written: timestamps in ns, dictionaries, no column `run`.

use std::{fs, path::Path, process::Command};

use e2e::{dataset::Dataset, setting};
use serde_json::Value;
use tempfile::TempDir;

/// A copy of a run in `tests/fixtures/version-2`, whose profiler was a process of this machine.
fn copy(name: &str) -> (TempDir, Dataset) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/version-2")
        .join(name);
    let directory = TempDir::new().expect("a directory");
    let status = Command::new("cp")
        .arg("-r")
        .arg(from)
        .arg(directory.path())
        .status();
    assert!(status.expect("cp starts").success());
    let data = Dataset::new(directory.path().join(name));
    let mut manifest = data.manifest();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    manifest["process"]["boot_id"] = boot.trim().into();
    fs::write(data.path().join("run.json"), manifest.to_string()).expect("written");
    (directory, data)
}

fn profiler(command: &str, data: &Dataset) -> (i32, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg(command)
        .arg(data.path())
        .output();
    let output = output.expect("it starts");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().expect("a code"), text)
}

#[test]
fn complete_run_is_verified() {
    let (_directory, data) = copy("complete");
    let (code, text) = profiler("verify", &data);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn killed_run_is_recovered_and_its_views_work() {
    let (_directory, data) = copy("killed");
    let (code, text) = profiler("recover", &data);
    assert_eq!(code, 0, "{text}");
    assert_eq!(data.manifest()["state"], "recovered");
    let (rows, types): (u64, String) =
        data.row("SELECT count(*), any_value(typeof(ts)) FROM process_usage");
    assert!(rows >= 5, "{rows}");
    assert_eq!(types, "TIMESTAMP WITH TIME ZONE");
    let runs: Vec<(String,)> = data.rows("SELECT DISTINCT run FROM process_usage");
    assert_eq!(runs, [("killed".to_owned(),)]);
    let sleeps: u64 = data.value("SELECT count(*) FROM process_tree WHERE comm = 'sleep'");
    assert_eq!(sleeps, 1);
    let state: Value = data.value("SELECT state FROM run");
    assert_eq!(state, "recovered");
}
