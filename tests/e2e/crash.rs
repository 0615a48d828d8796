//! `kill -9` of the profiler loses at most the last interval.

use std::{path::Path, process::Command, time::Duration};

use e2e::{
    dataset::{Dataset, python},
    procfs::{has_ended, wall_ns},
    runs::{Profiler, wait_until},
    setting,
    stall_detector::{StallDetector, Stalls},
    workload_driver::WorkloadDriver,
};
use rustix::process::Signal;

use crate::WORKLOAD;

const INTERVAL: i64 = 100_000_000;

/// A random time between 0.3 and 1.3 s.
fn random_delay() -> Duration {
    Duration::from_millis(300 + wall_ns().unsigned_abs() / 1000 % 1000)
}

/// `profiler recover RUN`.
pub fn recover(run: &Path) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("recover")
        .arg(run)
        .output()
        .expect("the profiler starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

/// Asserts that no sample is missing that was due one interval before the kill, or earlier by the
/// longest time that this run needed to write a sample. `overhead` is the last table of a sample
/// that is written, so that a kill can leave rows of one more sample in the other tables.
#[track_caller]
fn assert_nothing_lost(data: &Dataset, killed: i64, stalls: &Stalls, what: &str) {
    assert_eq!(data.manifest()["state"], "recovered");
    // A single query for all twenty tables.
    let tables = ["usage", "sched", "system", "cpu"];
    let counts: Vec<_> = tables
        .iter()
        .map(|table| {
            format!(
                "(SELECT [count(DISTINCT ts) FILTER (ts <= last), count(DISTINCT ts)] FROM {table})"
            )
        })
        .collect();
    let writing: i64 = data.value(
        "SELECT max(ns)::BIGINT FROM (SELECT sum(run_ns) AS ns FROM overhead WHERE component_kind IN ('profiler', 'sink') GROUP BY ts)",
    );
    let (first, last, late, ticks, distinct, missed, tables): (i64, i64, i64, u64, u64, u64, [[u64; 2]; 4]) = data
        .row(&format!(
            "SELECT first, epoch_ns(last), late, ticks, distinct_ticks, missed, [{}] FROM \
             (SELECT epoch_ns(min(ts)) - min_by(interval_ns, ts)::BIGINT AS first, max(ts) AS last, \
             max_by(late_ns, ts) AS late, count(*) AS ticks, count(DISTINCT ts) AS distinct_ticks, \
             sum(dropped) AS missed FROM overhead WHERE component_kind = 'profiler')",
            counts.join(", ")
        ));
    let before = killed - last;
    let stalled = i64::try_from(stalls.total().as_nanos()).expect("short");
    let most = INTERVAL + writing + stalled;
    assert!(
        before < most,
        "{what}: last sample {before} ns before the kill, at most {most} expected: {writing} ns to write it, {stalls:?}"
    );
    assert_eq!(ticks, distinct);
    let due = u64::try_from((last - late - first + INTERVAL / 2) / INTERVAL).expect("positive");
    assert_eq!(ticks + missed, due, "{what}");
    for [complete, all] in tables {
        assert_eq!(complete, ticks, "{what}: samples with rows");
        assert!(all <= ticks + 1, "{what}: {all} of {ticks} samples");
    }
}

#[test]
fn every_sample_is_recovered_after_twenty_kills() {
    kill_and_recover(20);
}

/// Kills profilers at random moments. Each loses at most one interval, and every file is readable.
pub fn kill_and_recover(rounds: u64) {
    let mut workload = WorkloadDriver::new(WORKLOAD, 1);
    workload.send(&format!("burn {}", rounds * 6000));
    let mut runs = Vec::new();
    for round in 0..rounds {
        // In half of the rounds a checkpoint can be in progress.
        let checkpoint = if round % 2 == 0 { "60s" } else { "150ms" };
        let profiler = Profiler::realtime()
            .args(["-i", "100ms", "--checkpoint", checkpoint])
            .pid(workload.pid())
            .start();
        let stall_detector = StallDetector::start();
        std::thread::sleep(random_delay());
        let run = profiler.run_dir();
        let killed = wall_ns();
        profiler.signal(Signal::KILL);
        let stalls = stall_detector.stop();
        let finished = profiler.finish();
        recover(&run);
        let data = finished.any_dataset();
        let what = format!("round {round}, checkpoint {checkpoint}");
        assert_nothing_lost(&data, killed, &stalls, &what);
        runs.push(finished);
    }
    let paths = runs
        .iter()
        .map(|run| run.any_dataset().path().to_str().expect("UTF-8").to_owned());
    let paths: Vec<String> = paths.collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    for some in paths.chunks(20) {
        let rows = python("read_all.py", some);
        let rows = rows.as_array().expect("a list");
        assert_eq!(rows.len(), some.len());
        assert!(
            rows.iter().all(|rows| rows["process"].as_u64() >= Some(1)),
            "{rows:?}"
        );
    }
}

/// The next run in the same directory turns the journals of a killed run into Parquet files, also if nobody
/// has waited for the killed profiler: the init process of many containers never does.
#[test]
fn next_run_recovers_the_previous_one() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let out = tempfile::TempDir::new().expect("a directory");
    let start = || {
        Profiler::writing_to(out.path())
            .args(["-i", "100ms"])
            .pid(workload.pid())
    };
    let stall_detector = StallDetector::start();
    let profiler = start().start();
    let run = profiler.run_dir();
    Dataset::new(run.clone()).wait_for_samples("overhead", 3);
    let killed = wall_ns();
    profiler.signal(Signal::KILL);
    wait_until("it is a zombie", || has_ended(profiler.pid()));
    let stalls = stall_detector.stop();
    let mut next = start().start();
    wait_until("it is recovered", || {
        Dataset::new(run.clone()).manifest()["state"] == "recovered"
    });
    next.wait_until_reported("whose profiler was killed: at most one interval at its end is lost");
    drop(next);
    // All who judge the run say the same.
    let lost = "was killed: at most the last 100.0 ms are lost; the rest is recovered";
    let path = run.to_str().expect("UTF-8");
    for command in ["summary", "verify"] {
        let output = Command::new(setting("PROFILER_BIN"))
            .args([command, path])
            .output()
            .expect("the profiler starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains(lost) && !text.contains("No losses."),
            "{text}"
        );
    }
    assert_nothing_lost(&Dataset::new(run), killed, &stalls, "the next run");
    // Waits for the zombie.
    drop(profiler);
}

/// A profiler in a container is not visible outside it, and has not been killed.
#[test]
fn run_of_another_pid_namespace_can_be_running() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let go = directory.path().join("go");
    let script = "until [ -e \"$0\" ]; do sleep 0.1; done";
    let go_path = go.to_str().expect("UTF-8");
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let inner = Profiler::wrapped_in(&container)
        .args(["-i", "100ms"])
        .command(&["sh", "-c", script, go_path])
        .start();
    let run = inner.run_dir();
    Dataset::new(run.clone()).wait_for_samples("overhead", 3);
    for command in ["summary", "verify"] {
        let output = Command::new(setting("PROFILER_BIN"))
            .arg(command)
            .arg(&run)
            .output()
            .expect("the profiler starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("has not ended, or was killed: seen from here, that is unknown"),
            "{text}"
        );
    }
    // Its journals are locked.
    let next = Profiler::writing_to(run.parent().expect("a parent"))
        .command(&["true"])
        .finish();
    assert!(next.status.success(), "{}", next.stderr);
    assert!(!next.stderr.contains("recovered"), "{}", next.stderr);
    assert_eq!(Dataset::new(run.clone()).manifest()["state"], "running");
    std::fs::write(&go, "").expect("written");
    let finished = inner.finish();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(Dataset::new(run).manifest()["state"], "complete");
}
