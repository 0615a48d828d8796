//! The end of a run: its last sample and its exit code.

use std::{process::Command, time::Duration};

use e2e::{
    dataset::Dataset,
    procfs::{self, wall_ns},
    runs::{Finished, Profiler, wait_until},
    workload_driver::WorkloadDriver,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::WORKLOAD;

/// Most by which the two clocks can differ, in ns: the profiler reads `CLOCK_REALTIME` at its start
/// only.
const SLEWED: i64 = 5_000_000;

/// Asserts that the run is complete and that its samples cover the time from `begin` (that of the
/// baselines if it is unknown) to `end`, in ns, without a gap.
#[track_caller]
fn assert_covers(finished: &Finished, begin: Option<i64>, end: i64) {
    let data = finished.any_dataset();
    data.assert_complete();
    let (first, last, sampled): (i64, i64, i64) = data.row(
        "SELECT epoch_ns(min(ts)) - min_by(interval_ns, ts)::BIGINT, epoch_ns(max(ts)), \
         sum(interval_ns)::BIGINT FROM overhead WHERE component_kind = 'profiler'",
    );
    // Timestamps are in microseconds.
    let gaps = last - first - sampled;
    assert!((-2000..=2000).contains(&gaps), "gaps of {gaps} ns");
    assert!(
        begin.is_none_or(|begin| first <= begin + SLEWED) && last >= end - SLEWED,
        "{first}..={last} does not cover {begin:?}..={end}"
    );
    let of_run = |name: &str| data.manifest()[name].as_i64().expect("a time");
    let (start, end) = (of_run("start_ts"), of_run("end_ts"));
    assert!(start <= first + 2000 && end >= last, "{start}..={end}");
}

/// The same up to the end of the last process.
#[track_caller]
fn assert_covers_processes(finished: &Finished) {
    let ended: i64 = finished
        .any_dataset()
        .value("SELECT epoch_ns(max(end_ts)) FROM process");
    assert_covers(finished, None, ended);
}

#[test]
fn sigint_and_sigterm_take_a_last_sample() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    for signal in [Signal::INT, Signal::TERM] {
        let profiler = Profiler::new()
            .args(["-i", "1h"])
            .pid(workload.pid())
            .start();
        let begin = wall_ns();
        profiler.signal(signal);
        let finished = profiler.finish();
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
        assert_covers(&finished, Some(begin), begin);
    }
}

#[test]
fn run_ends_after_its_duration() {
    let begin = wall_ns();
    let finished = Profiler::new()
        .args(["--node", "-i", "200ms", "-d", "500ms"])
        .finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert_covers(&finished, None, begin + 500_000_000);
    // Two samples are due before the last one. Those that a busy machine misses are not made up for.
    let (samples, missed): (u64, u64) = finished.any_dataset().row(
        "SELECT count(*), sum(dropped)::UBIGINT FROM overhead WHERE component_kind = 'profiler'",
    );
    assert!(
        (1..=3).contains(&samples) && samples + missed >= 3,
        "{samples} samples, {missed} missed"
    );
}

#[test]
fn run_ends_with_its_target() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let profiler = Profiler::new()
        .args(["-i", "100ms"])
        .pid(workload.pid())
        .start();
    let begin = wall_ns();
    workload.run("nap 300");
    drop(workload);
    let finished = profiler.finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert_covers(&finished, Some(begin), begin + 300_000_000);
    assert_covers_processes(&finished);
}

/// A zombie has ended, even if its parent has not waited for it.
#[test]
fn run_ends_with_a_target_shorter_than_the_interval() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let mut profiler = Profiler::new()
        .args(["-i", "1h"])
        .pid(workload.pid())
        .start();
    let begin = wall_ns();
    workload.send("exit 0");
    wait_until("the run ends", || profiler.has_ended());
    let finished = profiler.finish();
    assert_covers(&finished, Some(begin), begin);
    assert_covers_processes(&finished);
}

#[test]
fn exit_code_is_that_of_the_command() {
    for (script, code) in [
        ("exit 0", 0),
        ("exit 42", 42),
        ("kill -SEGV $$", 139),
        ("kill -KILL $$", 137),
    ] {
        let finished = Profiler::new().command(&["sh", "-c", script]).finish();
        assert_eq!(finished.code(), code, "{}", finished.stderr);
        assert_covers_processes(&finished);
    }
}

#[test]
fn signals_are_forwarded_to_the_command() {
    for (signal, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM")] {
        let script = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let profiler = Profiler::new().command(&["sh", "-c", &script]).start();
        wait_until("the shell sleeps", || {
            // The child exists only after the trap has been set.
            let shell = procfs::children(profiler.pid());
            shell
                .first()
                .is_some_and(|shell| !procfs::children(*shell).is_empty())
        });
        profiler.signal(signal);
        let finished = profiler.finish();
        assert_eq!(finished.code(), 9, "{}", finished.stderr);
        assert_eq!(finished.stdout, "ready\n");
        assert_covers_processes(&finished);
    }
}

#[test]
fn two_profilers_of_one_target_agree() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 2);
    let start = || Profiler::new().args(["-i", "100ms"]).pid(workload.pid());
    let (first, second) = (start().start(), start().start());
    let begin = wall_ns();
    workload.run("burn 500");
    let end = wall_ns();
    let sum = |finished: Finished| -> (u64, u64, u64) {
        assert_covers(&finished, Some(begin), end);
        finished
            .dataset()
            .row("SELECT sum(oncpu_ns), sum(runqueue_ns), sum(voluntary_switches) FROM sched")
    };
    let (first, second) = (sum(first.interrupt()), sum(second.interrupt()));
    assert_eq!(first, second);
    assert!(first.0 > 0 && first.2 > 0, "{first:?}");
}

#[test]
fn signal_while_attaching_leaves_a_complete_run_or_none() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    for delay in 0..20 {
        let profiler = Profiler::new().pid(workload.pid()).spawn();
        std::thread::sleep(Duration::from_millis(delay * 5));
        profiler.signal(Signal::INT);
        let finished = profiler.finish();
        if finished.has_run() {
            assert_eq!(finished.code(), 0, "after {delay}: {}", finished.stderr);
            finished.any_dataset().assert_complete();
        }
    }
}

/// A complete run is complete, whatever is still recovered beside it.
#[test]
fn signal_while_others_are_recovered_is_no_failure() {
    let directory = TempDir::new().expect("a directory");
    let out = directory.path();
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let running = Profiler::writing_to(out)
        .args(["-i", "10ms", "--run-id", "killed"])
        .pid(workload.pid())
        .start();
    running.kill();
    // They take long.
    let copies = (0..300).map(|number| out.join(format!("killed{number}")));
    let copied = Command::new("sh")
        .args(["-ec", "from=$0; for to; do cp -r \"$from\" \"$to\"; done"])
        .arg(out.join("killed"))
        .args(copies)
        .status();
    assert!(copied.expect("it starts").success());
    let mut running = Profiler::writing_to(out)
        .args(["-d", "100ms", "--run-id", "complete"])
        .pid(workload.pid())
        .start();
    running.wait_until_reported("dataset ");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 0);
    Dataset::new(out.join("complete")).assert_complete();
}
