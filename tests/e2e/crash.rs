//! `kill -9` of the profiler costs at most the last interval.

use std::{path::Path, process::Command, time::Duration};

use e2e::{
    dataset::{Dataset, python},
    procfs::wall_ns,
    puppet::Puppet,
    runs::{Profiler, wait_until},
    setting,
};
use rustix::process::Signal;

use crate::{WORKLOAD, ticks};

const INTERVAL: i64 = 100_000_000;

/// Between 0.3 and 1.3 s, another each time.
fn a_moment() -> Duration {
    Duration::from_millis(300 + wall_ns().unsigned_abs() / 1000 % 1000)
}

fn recover(run: &Path) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("recover")
        .arg(run)
        .output()
        .expect("the profiler starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

/// Every tick is there up to one interval before the kill.
#[track_caller]
fn assert_nothing_lost(data: &Dataset, killed: i64) {
    assert_eq!(data.manifest()["state"], "recovered");
    let (ticks, missed) = ticks::count(data);
    let (first, last): (i64, i64) = data.row(
        "SELECT epoch_ns(min(ts)) - min_by(interval_ns, ts)::BIGINT, epoch_ns(max(ts)) FROM system",
    );
    let before = killed - last;
    assert!(
        before < 2 * INTERVAL,
        "the last tick is {before} ns before the kill"
    );
    // Ticks may be late, but not by half an interval for nothing.
    let due = u64::try_from((last - first + INTERVAL / 2) / INTERVAL).expect("positive");
    assert_eq!(ticks + missed, due);
    // Every table has its row of every tick; `usage` of a target of one process as well.
    for table in ["usage", "sched", "overhead", "cpu"] {
        let count: u64 = data.value(&format!("SELECT count(DISTINCT ts) FROM {table}"));
        assert_eq!(count, ticks, "{table}");
    }
}

#[test]
fn after_twenty_kills_every_tick_is_recovered_and_readable() {
    let mut puppet = Puppet::new(WORKLOAD, 1);
    puppet.order("burn 120000");
    for round in 0..20 {
        // In half of the rounds it may be killed while it writes a part.
        let checkpoint = if round % 2 == 0 { "60s" } else { "150ms" };
        let profiler = Profiler::new()
            .args(["-i", "100ms", "--checkpoint", checkpoint])
            .pid(puppet.pid())
            .start();
        std::thread::sleep(a_moment());
        let run = profiler.run_dir();
        let killed = wall_ns();
        profiler.signal(Signal::KILL);
        let finished = profiler.finish();
        recover(&run);
        let data = finished.any_dataset();
        assert_nothing_lost(&data, killed);
        let rows = python("read_all.py", &[run.to_str().expect("UTF-8")]);
        assert!(rows["process"].as_u64() >= Some(1), "{rows}");
    }
}

/// The journals of a killed run become parts when the next run begins in the same place.
#[test]
fn the_next_run_recovers_the_one_before() {
    let puppet = Puppet::new(WORKLOAD, 0);
    let out = tempfile::TempDir::new().expect("a folder");
    let start = || {
        Profiler::writing_to(out.path())
            .args(["-i", "100ms"])
            .pid(puppet.pid())
    };
    let profiler = start().start();
    let run = profiler.run_dir();
    std::thread::sleep(Duration::from_millis(500));
    profiler.signal(Signal::KILL);
    profiler.finish();
    let next = start().start();
    wait_until("it is recovered", || {
        Dataset::new(run.clone()).manifest()["state"] == "recovered"
    });
    drop(next);
    let ticks: u64 = Dataset::new(run).value("SELECT count(*) FROM system");
    assert!((4..=6).contains(&ticks), "{ticks}");
}
