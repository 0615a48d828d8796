//! Samples have absolute deadlines: a late sample shifts no other, a missed one is counted.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use e2e::{
    dataset::Dataset,
    procfs::wall_ns,
    runs::{ProcessGroup, Profiler},
    stall_detector::{StallDetector, deadlines},
    workload_driver::WorkloadDriver,
};
use rustix::process::Signal;

use crate::WORKLOAD;

/// Number of samples of a run, and number of missed samples.
#[track_caller]
pub fn count(data: &Dataset) -> (u64, u64) {
    let disordered: u64 = data.value(
        "SELECT count(*) FROM (SELECT ts <= lag(ts) OVER (ORDER BY filename, file_row_number) AS back FROM \
         read_parquet('system/*/*.parquet', filename = true, file_row_number = true)) WHERE back",
    );
    assert_eq!(disordered, 0, "samples out of order");
    let double: u64 = data.value("SELECT count(ts) - count(DISTINCT ts) FROM system");
    assert_eq!(double, 0, "samples with more than one row");
    let gaps: u64 = data.value(
        "SELECT count(*) FROM (SELECT epoch_ns(ts) - interval_ns::BIGINT - epoch_ns(lag(ts) OVER (ORDER BY ts)) \
         AS gap FROM overhead WHERE component_kind = 'profiler') WHERE abs(gap) > 1000",
    );
    assert_eq!(gaps, 0, "intervals with gaps or overlaps");
    data.row(
        "SELECT (SELECT count(*) FROM system), sum(dropped) FROM overhead WHERE component_kind = 'profiler'",
    )
}

/// Asserts that a sample was taken or missed at every interval, given in ns.
#[track_caller]
fn assert_complete(data: &Dataset, samples: u64, interval: u64) {
    let span: u64 =
        data.value("SELECT sum(interval_ns) FROM overhead WHERE component_kind = 'profiler'");
    // The last sample is taken at the end, even if none is due.
    let due = span / interval;
    assert!((due..=due + 1).contains(&samples), "{samples}, not {due}");
}

/// Samples may only be missed during stalls of the machine.
#[test]
fn hundred_hertz_for_ten_seconds_is_a_thousand_samples() {
    const INTERVAL: Duration = Duration::from_millis(10);
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let stall_detector = StallDetector::start();
    let finished = Profiler::realtime()
        .args(["-i", "10ms", "-d", "10s"])
        .pid(workload.pid())
        .finish();
    let stalls = stall_detector.stop();
    let (ticks, missed) = count(&finished.dataset());
    // Stalls that affected all processes are permitted.
    let most = stalls.deadlines(INTERVAL);
    assert!(
        missed <= most,
        "{missed} missed of at most {most}: {stalls:?}"
    );
    // The last sample is taken at the end, even if none is due.
    assert!(
        (1000..=1001).contains(&(ticks + missed)),
        "{ticks} ticks, {missed} missed"
    );
}

/// Nine of ten samples are taken, also beside other work.
#[test]
fn thousand_hertz_is_sampled() {
    const INTERVAL: Duration = Duration::from_millis(1);
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let stall_detector = StallDetector::start();
    let finished = Profiler::realtime()
        .args([
            "-i",
            "1ms",
            "-d",
            "3s",
            "--source",
            "process,sched,system,overhead",
        ])
        .pid(workload.pid())
        .finish();
    let data = finished.dataset();
    let (ticks, missed) = count(&data);
    assert_complete(&data, ticks + missed, 1_000_000);
    let stalls = stall_detector.stop();
    let most = 300 + stalls.deadlines(INTERVAL);
    assert!(missed < most, "{missed} missed: {stalls:?}");
}

#[test]
fn samples_missed_while_stopped_are_counted() {
    const INTERVAL: Duration = Duration::from_millis(50);
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let stall_detector = StallDetector::start();
    let profiler = Profiler::realtime()
        .args(["-i", "50ms", "-d", "3s"])
        .pid(workload.pid())
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
    let stalls = stall_detector.stop();
    let data = finished.dataset();
    let (ticks, missed) = count(&data);
    assert!(
        (60..=61).contains(&(ticks + missed)),
        "{ticks} ticks, {missed} missed"
    );
    // The last deadline of the pause yields a late sample.
    let known =
        deadlines(least, INTERVAL) - 2..=deadlines(most, INTERVAL) + 1 + stalls.deadlines(INTERVAL);
    assert!(known.contains(&missed), "{missed} missed, not {known:?}");
    let message = format!("samples missed: {missed}");
    assert!(finished.stderr.contains(&message), "{}", finished.stderr);
    let losses = &data.manifest()["losses"];
    assert_eq!(losses[0]["what"], "samples");
    assert_eq!(losses[0]["count"], missed);
    let longest: u64 = data.value("SELECT max(interval_ns) FROM system");
    assert!(longest > 900_000_000, "{longest} ns");
}

/// With more threads than CPUs, missed samples are counted.
#[test]
fn samples_and_missed_samples_add_up_on_a_busy_machine() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 16);
    // Beyond the end of the run, however long its start takes.
    workload.send("burn 600000");
    let finished = Profiler::new()
        .args(["-i", "10ms", "-d", "3s"])
        .pid(workload.pid())
        .finish();
    drop(workload);
    let data = finished.dataset();
    let (ticks, missed) = count(&data);
    assert_complete(&data, ticks + missed, 10_000_000);
    // 16 threads wait for CPUs all the time. The kernel counts some of an interval in the next.
    let (pressed, above): (Option<f64>, u64) = data.row(
        "SELECT sum(psi_cpu_some_ns) / sum(interval_ns), \
         count(*) FILTER (psi_cpu_some_ns > interval_ns OR psi_io_some_ns > interval_ns) FROM system",
    );
    assert_eq!(above, 0);
    assert!(pressed.is_none_or(|share| share > 0.5), "{pressed:?}");
}

/// If each sample takes longer than the interval, the session ends in time all the same.
#[test]
fn overloaded_run_ends_after_its_duration_and_on_a_signal() {
    let script = "for n in $(seq 2000); do sleep 1000 & done; echo started; wait";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    let mut sleepers = ProcessGroup::start(&mut command);
    let mut line = String::new();
    let stdout = sleepers.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("read");
    for duration in [Some("2s"), None] {
        let profiler = Profiler::new().args(["-i", "1ms", "--node"]);
        let (finished, stopped) = if let Some(duration) = duration {
            (profiler.args(["-d", duration]).finish(), None)
        } else {
            let profiler = profiler.start();
            std::thread::sleep(Duration::from_secs(2));
            let stopped = wall_ns();
            (profiler.interrupt(), Some(stopped))
        };
        let data = finished.dataset();
        let (ticks, missed) = count(&data);
        assert!(missed > ticks / 2, "{missed} missed, {ticks} ticks");
        // Before the last sample, at most the one that was being taken and one that was due.
        let (first, last, longest): (i64, i64, i64) = data.row(
            "SELECT min(epoch_ns(ts) - interval_ns::BIGINT), epoch_ns(max(ts)), max(interval_ns)::BIGINT FROM system",
        );
        let late = last - stopped.unwrap_or(first + 2_000_000_000);
        assert!(
            late < 3 * longest,
            "{late} ns, samples take up to {longest} ns"
        );
    }
}
