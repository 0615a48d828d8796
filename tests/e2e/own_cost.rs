//! The cost of the profiler that it reports, compared with what wait4(2) says about its process.

use std::process::{Command, Stdio};

use e2e::{dataset::Dataset, setting};
use serde_json::Value;
use tempfile::TempDir;

/// Runs `profiler run -- COMMAND`; its CPU time with that of the command as wait4(2) has it, s, and what
/// it printed.
fn run(directory: &TempDir, command: &[&str]) -> (f64, String) {
    let mut profiler = Command::new(setting("PROFILER_BIN"));
    profiler.args(["run", "-i", "100ms", "--run-id", "run", "--out"]);
    profiler.arg(directory.path()).arg("--").args(command);
    #[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
    let mut child = profiler.stderr(Stdio::piped()).spawn().expect("it starts");
    let text = std::io::read_to_string(child.stderr.take().expect("a pipe")).expect("UTF-8");
    let pid = i32::try_from(child.id()).expect("a pid");
    let mut status = 0;
    // SAFETY: integers, for which 0 is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid for the call; nothing else waits for the child.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert_eq!((waited, status), (pid, 0), "{text}");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime) + seconds(usage.ru_stime), text)
}

fn total(directory: &TempDir) -> Value {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["summary", "--json"])
        .arg(directory.path().join("run"))
        .output()
        .expect("it starts");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    document["runs"][0]["nodes"][0].clone()
}

#[test]
fn cost_includes_the_start() {
    let directory = TempDir::new().expect("a directory");
    let (waited, text) = run(&directory, &["sleep", "1.2"]);
    let node = total(&directory);
    let figure = |name: &str| node[name].as_f64().expect("known");
    let (cost, start) = (figure("profiler_cpu_s"), figure("profiler_start_cpu_s"));
    // The end is missing: the last files, and the removal of the BPF programs.
    assert!(cost <= waited && cost > 0.5 * waited, "{cost} of {waited}");
    assert!(start > 0.0 && start < cost, "{start} of {cost}");
    let data = Dataset::new(directory.path().join("run"));
    let (starts, after): (u64, u64) = data.row(
        "SELECT count(*) FILTER (component_kind = 'start'), (sum(cpu_ns) FILTER (component_kind = 'profiler'))::UBIGINT \
         FROM overhead WHERE cpu_ns IS NOT NULL",
    );
    assert_eq!(starts, 1);
    assert!((cost - start - after as f64 / 1e9).abs() < 1e-6);
    let peaks: u64 = data.value("SELECT count(*) FROM overhead WHERE peak_rss < rss");
    assert_eq!(peaks, 0);
    let line = text
        .lines()
        .find(|line| line.starts_with("profiler ") && line.contains(" start "));
    assert!(
        line.is_some_and(|line| line.contains("% of a core")),
        "{text}"
    );
}

#[test]
fn short_run_has_no_share_of_a_core() {
    let directory = TempDir::new().expect("a directory");
    let (_, text) = run(&directory, &["true"]);
    // On a busy machine, it is not short.
    let is_short = total(&directory)["sampled_s"].as_f64() < Some(0.9);
    let line = text
        .lines()
        .find(|line| line.starts_with("profiler ") && line.contains(" start "));
    let has_share = line.expect("the cost").contains("% of a core");
    assert!(!(is_short && has_share), "{text}");
}
