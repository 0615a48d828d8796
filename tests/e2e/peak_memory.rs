//! Peak memory of known sizes: held between two samples, shared, before an exec, before the run.

use std::process::Command;

use e2e::{
    procfs,
    runs::{Finished, ProcessGroup, Profiler, wait_until},
    setting,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// What an interpreter needs besides the memory that a script holds.
const INTERPRETER: u64 = 40 * MIB;

/// A command that no sample coincides with: only the one at the end follows.
fn between_samples(command: &[&str]) -> Finished {
    let profiler = Profiler::new().args(["-i", "1h"]).command(command);
    profiler.finish()
}

fn of_script(script: &str) -> Finished {
    between_samples(&[&setting("PROFILER_TEST_PYTHON"), "-c", script])
}

fn summary(finished: &Finished, options: &[&str]) -> String {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("summary")
        .args(options)
        .arg(finished.any_dataset().path())
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn total(finished: &Finished) -> Value {
    let document: Value =
        serde_json::from_str(&summary(finished, &["--json"])).expect("a document");
    document["runs"][0]["total"].clone()
}

fn bytes(total: &Value, figure: &str) -> f64 {
    let found = total[figure].as_f64();
    found.unwrap_or_else(|| panic!("{figure} in {total}"))
}

/// Whether it is what a script holds, with its interpreter.
fn is_of(held: u64, found: f64) -> bool {
    (held as f64..(held + INTERPRETER) as f64).contains(&found)
}

#[test]
fn memory_held_between_samples_is_in_every_peak() {
    let held = 200 * MIB;
    let finished = of_script(&format!(
        "import mmap; m = mmap.mmap(-1, {held})\nfor at in range(0, {held}, 4096): m[at] = 1\nm.close()"
    ));
    let total = total(&finished);
    for figure in [
        "peak_memory_bytes",
        "peak_rss_bytes",
        "max_process_rss_bytes",
    ] {
        let found = bytes(&total, figure);
        assert!(is_of(held, found), "{figure}: {found}");
    }
    let text = summary(&finished, &[]);
    let of = |text: &str| {
        let (_, rest) = text.split_once("peak ≥ ").expect("a peak");
        rest.split([',', '\n', ';']).next().map(str::to_owned)
    };
    assert_eq!(of(&text), of(&finished.stderr), "{text}{}", finished.stderr);
}

#[test]
fn shared_memory_counts_once() {
    let held = 100 * MIB;
    let finished = of_script(&format!(
        "import mmap, os; m = mmap.mmap(-1, {held})\nchild = os.fork()\n\
         for at in range(0, {held}, 4096): m[at] = 1\n\
         os.wait() if child else os._exit(0)"
    ));
    let data = finished.dataset();
    let large: u64 = data.value(&format!(
        "SELECT count(*) FILTER (peak_rss >= {held}) FROM process"
    ));
    assert_eq!(large, 2);
    let found = bytes(&total(&finished), "peak_memory_bytes");
    assert!(is_of(held, found), "{found}");
}

/// A small program that a large one starts has the memory of the large one until it executes; the
/// large one that executes a small program has been large.
#[test]
fn memory_before_an_exec_belongs_to_who_allocated_it() {
    let held = 200 * MIB;
    let finished = of_script(&format!(
        "import os, subprocess; held = b'x' * {held}\n\
         subprocess.run(['true'], close_fds=False); subprocess.run('true; true', shell=True)\n\
         pid = os.fork()\nif not pid: os.execvp('true', ['true'])\n\
         os.wait(); os.execvp('true', ['true'])"
    ));
    let data = finished.dataset();
    let (processes, large): (u64, u64) = data.row(&format!(
        "SELECT count(*), count(*) FILTER (peak_rss >= {held}) FROM process"
    ));
    assert!(processes >= 4, "{processes}");
    assert_eq!(large, 1);
    let found = bytes(&total(&finished), "peak_memory_bytes");
    assert!(is_of(held, found), "{found}");
}

#[test]
fn processes_that_ended_before_they_were_read_do_not_have_0_bytes() {
    for command in [
        &["sleep", "0.05"][..],
        &[
            "sh",
            "-c",
            "i=0; while [ $i -lt 100 ]; do true | true; i=$((i+1)); done",
        ],
    ] {
        let finished = between_samples(command);
        let data = finished.dataset();
        let zero: u64 = data.value(
            "SELECT (SELECT count(*) FROM timeline WHERE target_pss_sum = 0) \
             + (SELECT count(*) FROM process WHERE peak_rss = 0)",
        );
        assert_eq!(zero, 0);
        let total = total(&finished);
        let largest = total["max_process_rss_bytes"].as_f64();
        assert!(largest.is_none_or(|bytes| bytes > 0.0), "{total}");
        assert!(total["peak_memory_bytes"].as_f64() >= largest, "{total}");
        for text in [summary(&finished, &[]), finished.stderr] {
            assert!(
                !text.contains("peak ≥ 0 B") && !text.contains("peak 0 B"),
                "{text}"
            );
        }
    }
}

#[test]
fn memory_of_before_the_run_is_not_in_its_peak() {
    let held = 200 * MIB;
    let script = format!(
        "import mmap, time; m = mmap.mmap(-1, {held})\n\
         for at in range(0, {held}, 4096): m[at] = 1\nm.close()\ntime.sleep(600)"
    );
    let python = setting("PROFILER_TEST_PYTHON");
    let process = ProcessGroup::spawn(&[&python, "-c", &script]);
    wait_until("it has been large", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()));
        let status = status.expect("it lives");
        let peak = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = peak.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.is_some_and(|kib| kib * 1024 >= held) && procfs::is_idle(process.pid())
    });
    let finished = Profiler::new()
        .args(["-i", "10ms", "-d", "200ms"])
        .pid(process.pid())
        .finish();
    let found = bytes(&total(&finished), "peak_memory_bytes");
    assert!(found > 0.0 && found < held as f64, "{found}");
}
