//! Why threads wait for CPUs: the target itself (`verdict.rs`), a quota, or other processes.

use std::fs;

use e2e::{dataset::Dataset, runs::ProcessGroup};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cgroup::Group,
    report::{profiler, record},
};

/// Uses a second of CPU time on CPU 0 with the highest priority of normal processes.
const BURN: &str = "renice -n -20 $$ >/dev/null; \
                    taskset -c 0 sh -c 'ulimit -t 1; while :; do :; done' 2>/dev/null";

/// Asserts that one of the three causes bounds the run, and returns the sentence about it. On a busy
/// machine, other processes are a cause as well.
#[track_caller]
fn assert_cause(run: &str, expected: &str) -> String {
    let found = Dataset::new(run.into()).findings();
    let named = |name: &str| found.iter().find(|finding| finding["name"] == name);
    for cause in ["run queue", "CPU quota", "waits for CPUs"] {
        assert!(cause == expected || named(cause).is_none(), "{found:#?}");
    }
    let text = named(expected).unwrap_or_else(|| panic!("no {expected}: {found:#?}"));
    text["text"].as_str().expect("a text").to_owned()
}

fn document(run: &str) -> Value {
    let document: Value =
        serde_json::from_str(&profiler(&["summary", "--json", run])).expect("JSON");
    document["runs"][0].clone()
}

const FOREIGN: &str = "foreign-loop";

/// A run with another process on its only CPU.
pub fn run_beside_a_loop(directory: &TempDir) -> String {
    let shell = directory.path().join(FOREIGN);
    fs::copy("/bin/sh", &shell).expect("a copy");
    let shell = shell.to_str().expect("UTF-8");
    let looping = ["nice", "-n", "-20", "taskset", "-c", "0", shell, "-c"];
    let _foreign = ProcessGroup::spawn(&[&looping[..], &["while :; do :; done"]].concat());
    record(directory.path(), &[], BURN)
}

#[test]
fn another_process_on_the_only_cpu() {
    let directory = TempDir::new().expect("a directory");
    let run = run_beside_a_loop(&directory);
    let text = assert_cause(&run, "other processes");
    assert!(text.contains("on the whole node most: "), "{text}");
    let document = document(&run);
    let neighbours = document["neighbours"].as_array().expect("names");
    let foreign = neighbours.iter().find(|of| of["comm"] == FOREIGN);
    let used = foreign.unwrap_or_else(|| panic!("{neighbours:#?}"))["neighbour_cpu_s"].as_f64();
    let waited = document["total"]["runqueue_others_s"].as_f64();
    let (used, waited) = used.zip(waited).expect("numbers");
    assert!(used >= 0.3 && waited >= 0.3, "{used} {waited}");
}

/// A run with a quota of a third of a CPU, in a cgroup with this name.
pub fn run_with_a_quota(directory: &TempDir) -> (String, String) {
    let group = Group::new(&["-t", "cgroup", "-o", "cpu"]);
    for (name, value) in [
        ("cpu.cfs_period_us", "90000"),
        ("cpu.cfs_quota_us", "30000"),
    ] {
        fs::write(group.outer().join(name), value).expect(name);
    }
    let directory = directory.path();
    let enter = format!(
        "echo $$ > {}/inner/cgroup.procs; {BURN}",
        group.outer().display()
    );
    let name = format!("/e2e-{}", std::process::id());
    (record(directory, &["--threads"], &enter), name)
}

#[test]
fn a_quota() {
    let directory = TempDir::new().expect("a directory");
    let (run, cgroup) = run_with_a_quota(&directory);
    let text = assert_cause(&run, "CPU quota");
    assert!(text.contains(" periods: "), "{text}");
    let data = Dataset::new(run.into());
    let rows: Vec<(String, f64)> = data.rows("SELECT DISTINCT cgroup, quota_cpus FROM throttle");
    assert_eq!(rows, [(cgroup, 1.0 / 3.0)]);
}

#[test]
fn nothing_is_read_about_others_without_a_wait() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], "sleep 0.5");
    let count: u64 = Dataset::new(run.into()).value("SELECT count(*) FROM neighbour");
    assert_eq!(count, 0);
}
