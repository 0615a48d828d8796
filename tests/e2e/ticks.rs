//! Ticks: absolute deadlines; a late one shifts no other, a missed one is counted.

use std::time::{Duration, Instant};

use e2e::{
    dataset::Dataset,
    metronome::{Metronome, deadlines},
    puppet::Puppet,
    runs::Profiler,
};
use rustix::process::Signal;

use crate::WORKLOAD;

/// Ticks of the whole run, and those that were missed.
#[track_caller]
pub fn count(data: &Dataset) -> (u64, u64) {
    let disordered: u64 = data.value(
        "SELECT count(*) FROM (SELECT ts <= lag(ts) OVER (ORDER BY filename, file_row_number) AS back FROM \
         read_parquet('system/*/*.parquet', filename = true, file_row_number = true)) WHERE back",
    );
    assert_eq!(disordered, 0, "ticks that do not come after the one before");
    let double: u64 = data.value("SELECT count(ts) - count(DISTINCT ts) FROM system");
    assert_eq!(double, 0, "ticks with more than one row");
    let gaps: u64 = data.value(
        "SELECT count(*) FROM (SELECT epoch_ns(ts) - interval_ns::BIGINT - epoch_ns(lag(ts) OVER (ORDER BY ts)) \
         AS gap FROM overhead WHERE part = 'controller') WHERE abs(gap) > 1000",
    );
    assert_eq!(
        gaps, 0,
        "intervals that do not begin where the one before ended"
    );
    data.row(
        "SELECT (SELECT count(*) FROM system), sum(dropped) FROM overhead WHERE part = 'controller'",
    )
}

/// What a machine that stands still makes the profiler miss is not the profiler's fault; everything else is.
#[test]
fn hundred_hertz_for_ten_seconds_is_a_thousand_samples() {
    const INTERVAL: Duration = Duration::from_millis(10);
    let puppet = Puppet::new(WORKLOAD, 0);
    let metronome = Metronome::start();
    let finished = Profiler::undelayed()
        .args(["-i", "10ms", "-d", "10s"])
        .pid(puppet.pid())
        .finish();
    let stalls = metronome.stop();
    let (ticks, missed) = count(&finished.dataset());
    // Only what this machine did to everybody is an excuse.
    let most = stalls.deadlines(INTERVAL);
    assert!(
        missed <= most,
        "{missed} missed of at most {most}: {stalls:?}"
    );
    // The last one is at the end, whether or not one is due.
    assert!(
        (1000..=1001).contains(&(ticks + missed)),
        "{ticks} ticks, {missed} missed"
    );
}

#[test]
fn samples_missed_while_stopped_are_counted() {
    const INTERVAL: Duration = Duration::from_millis(50);
    let puppet = Puppet::new(WORKLOAD, 0);
    let metronome = Metronome::start();
    let profiler = Profiler::undelayed()
        .args(["-i", "50ms", "-d", "3s"])
        .pid(puppet.pid())
        .start();
    std::thread::sleep(Duration::from_millis(500));
    let begin = Instant::now();
    profiler.signal(Signal::STOP);
    let stopped = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let least = stopped.elapsed();
    profiler.signal(Signal::CONT);
    let most = begin.elapsed();
    let finished = profiler.finish();
    let stalls = metronome.stop();
    let data = finished.dataset();
    let (ticks, missed) = count(&data);
    assert!(
        (60..=61).contains(&(ticks + missed)),
        "{ticks} ticks, {missed} missed"
    );
    // The last deadline of the pause is a tick, a late one.
    let known =
        deadlines(least, INTERVAL) - 2..=deadlines(most, INTERVAL) + 1 + stalls.deadlines(INTERVAL);
    assert!(known.contains(&missed), "{missed} missed, not {known:?}");
    let told = format!("{missed} ticks missed");
    assert!(finished.stderr.contains(&told), "{}", finished.stderr);
    let losses = &data.manifest()["losses"];
    assert_eq!(losses[0]["what"], "ticks");
    assert_eq!(losses[0]["count"], missed);
    let longest: u64 = data.value("SELECT max(interval_ns) FROM system");
    assert!(longest > 900_000_000, "{longest} ns");
}

/// More threads than CPUs: what the profiler misses then, it counts.
#[test]
fn samples_and_missed_samples_add_up_on_a_busy_machine() {
    let mut puppet = Puppet::new(WORKLOAD, 16);
    puppet.order("burn 4000");
    let finished = Profiler::new()
        .args(["-i", "10ms", "-d", "3s"])
        .pid(puppet.pid())
        .finish();
    puppet.wait();
    let data = finished.dataset();
    let (ticks, missed) = count(&data);
    let span: u64 = data.value("SELECT sum(interval_ns) FROM overhead WHERE part = 'controller'");
    // The last tick is at the end, whether or not one is due.
    let due = span / 10_000_000;
    assert!(
        (due..=due + 1).contains(&(ticks + missed)),
        "{ticks} + {missed}, not {due}"
    );
}
