//! `kill -9` of the profiler costs at most the last interval.

use std::{path::Path, process::Command, time::Duration};

use e2e::{
    dataset::{Dataset, python},
    metronome::{Metronome, Stalls},
    procfs::wall_ns,
    puppet::Puppet,
    runs::{Profiler, wait_until},
    setting,
};
use rustix::process::Signal;

use crate::WORKLOAD;

const INTERVAL: i64 = 100_000_000;

/// Between 0.3 and 1.3 s, another each time.
fn a_moment() -> Duration {
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

/// Every tick is there whose time was up an interval before the kill, or as long before as a tick of this run took until it
/// was written. `overhead` is the last table of a tick to be written: a kill in between leaves rows of one more tick in
/// those before it.
#[track_caller]
fn assert_nothing_lost(data: &Dataset, killed: i64, stalls: &Stalls, what: &str) {
    assert_eq!(data.manifest()["state"], "recovered");
    // One query for all: there are twenty of them.
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
        "SELECT max(ns)::BIGINT FROM (SELECT sum(run_ns) AS ns FROM overhead WHERE part IN ('controller', 'sink') GROUP BY ts)",
    );
    let (first, last, late, ticks, distinct, missed, tables): (i64, i64, i64, u64, u64, u64, [[u64; 2]; 4]) = data
        .row(&format!(
            "SELECT first, epoch_ns(last), late, ticks, distinct_ticks, missed, [{}] FROM \
             (SELECT epoch_ns(min(ts)) - min_by(interval_ns, ts)::BIGINT AS first, max(ts) AS last, \
             max_by(late_ns, ts) AS late, count(*) AS ticks, count(DISTINCT ts) AS distinct_ticks, \
             sum(dropped) AS missed FROM overhead WHERE part = 'controller')",
            counts.join(", ")
        ));
    let before = killed - last;
    let stalled = i64::try_from(stalls.total().as_nanos()).expect("short");
    let most = INTERVAL + writing + stalled;
    assert!(
        before < most,
        "{what}: the last tick is {before} ns before the kill, not {most}: {writing} ns to write it, {stalls:?}"
    );
    assert_eq!(ticks, distinct);
    let due = u64::try_from((last - late - first + INTERVAL / 2) / INTERVAL).expect("positive");
    assert_eq!(ticks + missed, due, "{what}");
    for [complete, all] in tables {
        assert_eq!(complete, ticks, "{what}: rows of every tick");
        assert!(all <= ticks + 1, "{what}: {all} of {ticks} ticks");
    }
}

#[test]
fn every_sample_is_recovered_after_twenty_kills() {
    kill_and_recover(20);
}

/// Kills so many profilers at random moments: no more than an interval is lost of any, and every file can be read.
pub fn kill_and_recover(rounds: u64) {
    let mut puppet = Puppet::new(WORKLOAD, 1);
    puppet.order(&format!("burn {}", rounds * 6000));
    let mut runs = Vec::new();
    for round in 0..rounds {
        // In half of the rounds it may be killed while it writes a part.
        let checkpoint = if round % 2 == 0 { "60s" } else { "150ms" };
        let profiler = Profiler::undelayed()
            .args(["-i", "100ms", "--checkpoint", checkpoint])
            .pid(puppet.pid())
            .start();
        let metronome = Metronome::start();
        std::thread::sleep(a_moment());
        let run = profiler.run_dir();
        let killed = wall_ns();
        profiler.signal(Signal::KILL);
        let stalls = metronome.stop();
        let finished = profiler.finish();
        recover(&run);
        let data = finished.any_dataset();
        let what = format!("round {round}, a part every {checkpoint}");
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

/// The journals of a killed run become parts when the next run begins in the same place.
#[test]
fn next_run_recovers_the_previous_one() {
    let puppet = Puppet::new(WORKLOAD, 0);
    let out = tempfile::TempDir::new().expect("a directory");
    let start = || {
        Profiler::writing_to(out.path())
            .args(["-i", "100ms"])
            .pid(puppet.pid())
    };
    let metronome = Metronome::start();
    let profiler = start().start();
    let run = profiler.run_dir();
    std::thread::sleep(Duration::from_millis(500));
    let killed = wall_ns();
    profiler.signal(Signal::KILL);
    profiler.finish();
    let stalls = metronome.stop();
    let next = start().start();
    wait_until("it is recovered", || {
        Dataset::new(run.clone()).manifest()["state"] == "recovered"
    });
    drop(next);
    assert_nothing_lost(&Dataset::new(run), killed, &stalls, "the next run");
}
