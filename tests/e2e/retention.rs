//! Removal of old runs, and of nothing else, from the output directory.

use std::{
    fs,
    os::unix::fs::{chown, symlink},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use e2e::{
    attacker::UID,
    runs::{Profiler, Running, wait_until},
};
use serde_json::json;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// Creates a complete run of `bytes` bytes that ended `hours` hours ago.
pub fn finished(out: &Path, name: &str, hours: i64, bytes: usize) {
    run(out, name, "complete", hours, bytes);
}

fn run(out: &Path, name: &str, state: &str, hours: i64, bytes: usize) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let now = i64::try_from(now.as_nanos()).expect("before 2262");
    let end = now - hours * 3_600_000_000_000;
    let table = out.join(name).join("usage/host=elsewhere");
    fs::create_dir_all(&table).expect("made");
    fs::write(table.join("part-00000.parquet"), vec![7; bytes]).expect("written");
    let manifest = json!({
        "run_id": name,
        "hostname": "elsewhere",
        "state": state,
        "start_ts": end - 1,
        "end_ts": (state == "complete").then_some(end),
    });
    fs::write(out.join(name).join("run.json"), manifest.to_string()).expect("written");
}

fn profiler(out: &Path, limits: &[&str]) -> Running {
    Profiler::writing_to(out)
        .args(["--source", "system", "--node", "--run-id", "now"])
        .args(limits)
        .start()
}

/// The entries of the directory other than the descriptions, and the run of the present profiler.
fn names(out: &Path) -> Vec<String> {
    let entries = fs::read_dir(out).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names
        .map(|name| name.into_string().expect("UTF-8"))
        .filter(|name| !["now", "schema.json", "README.md"].contains(&&name[..]))
        // They are being written.
        .filter(|name| name.strip_suffix(".tmp").is_none())
        .collect();
    names.sort();
    names
}

fn run_completes(running: Running) -> String {
    let finished = running.interrupt();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    finished.stderr
}

#[test]
fn old_runs_are_removed() {
    let directory = TempDir::new().expect("a directory");
    let out = directory.path();
    finished(out, "a", 49, MIB);
    finished(out, "b", 47, MIB);
    let running = profiler(out, &["--max-age", "2d"]);
    wait_until("the old run is removed", || names(out) == ["b"]);
    let stderr = run_completes(running);
    assert!(stderr.contains("removed run a (1.0 MiB)"), "{stderr}");
}

#[test]
fn oldest_runs_are_removed_until_the_rest_fits() {
    let directory = TempDir::new().expect("a directory");
    let out = directory.path();
    for (name, hours) in [("a", 2), ("b", 4), ("c", 1), ("d", 3)] {
        finished(out, name, hours, 4 * MIB);
    }
    // Each run is slightly larger than 4 MiB; two and the present run fit into the limit.
    let running = profiler(out, &["--max-size", "11M"]);
    wait_until("two runs are removed", || names(out) == ["a", "c"]);
    run_completes(running);
}

#[test]
fn only_finished_runs_of_the_same_user_are_removed() {
    let directory = TempDir::new().expect("a directory");
    let (out, elsewhere) = (
        directory.path().join("out"),
        directory.path().join("elsewhere"),
    );
    fs::create_dir(&out).expect("made");
    finished(&elsewhere, "linked", 99, MIB);
    fs::write(elsewhere.join("file"), "kept").expect("written");
    finished(&out, "finished", 99, MIB);
    // The target of a link in a run is kept.
    symlink(&elsewhere, out.join("finished/link")).expect("made");
    symlink(elsewhere.join("linked"), out.join("link")).expect("made");
    run(&out, "unfinished", "running", 99, MIB);
    finished(&out, "foreign", 99, MIB);
    chown(out.join("foreign"), Some(UID), Some(UID)).expect("root gives files away");
    fs::create_dir(out.join("no-run")).expect("made");
    fs::write(out.join("file"), "kept").expect("written");
    // The remains of an interrupted removal.
    fs::create_dir(out.join(".removed-old")).expect("made");
    let mut running = profiler(&out, &["--keep-free", "1000000T"]);
    running.wait_until_reported("--keep-free: no finished run is left to remove");
    let kept = ["file", "foreign", "link", "no-run", "unfinished"];
    assert_eq!(names(&out), kept);
    let parts = ["foreign", "unfinished", "link"].map(|run| out.join(run));
    for run in parts {
        let part = run.join("usage/host=elsewhere/part-00000.parquet");
        assert_eq!(fs::metadata(part).expect("kept").len(), MIB as u64);
    }
    assert_eq!(fs::read(elsewhere.join("file")).expect("kept"), b"kept");
    run_completes(running);
    assert!(out.join("now/run.json").exists());
}

#[test]
fn run_being_written_is_kept() {
    let directory = TempDir::new().expect("a directory");
    let out = directory.path();
    let first = Profiler::writing_to(out)
        .args(["--source", "system", "--node", "--run-id", "first"])
        .start();
    finished(out, "old", 1, MIB);
    let running = profiler(out, &["--max-size", "1"]);
    wait_until("the old run is removed", || names(out) == ["first"]);
    run_completes(running);
    run_completes(first);
    assert!(out.join("first/run.json").exists());
    // The run is complete now.
    let running = profiler(out, &["--max-size", "1"]);
    wait_until("the run is removed", || names(out).is_empty());
    run_completes(running);
}
