//! The end of a run: its last sample and its exit code.

use std::time::Duration;

use e2e::{
    procfs,
    runs::{Finished, Profiler, wait_until},
    stall_detector::StallDetector,
    workload_driver::WorkloadDriver,
};
use rustix::process::Signal;

use crate::WORKLOAD;

/// Asserts that the run is complete and that its samples cover it up to the end.
#[track_caller]
fn assert_final(finished: &Finished) {
    let data = finished.any_dataset();
    data.assert_complete();
    let manifest = data.manifest();
    let (start, end) = (&manifest["start_ts"], &manifest["end_ts"]);
    let length = end.as_i64().expect("end") - start.as_i64().expect("start");
    let sampled: i64 = data.value("SELECT sum(interval_ns) FROM system");
    // The rest is the start of the run and the wait for the command's exit.
    let rest = length - sampled;
    assert!(
        (0..1_000_000_000).contains(&rest),
        "{rest} ns without a sample"
    );
    let last: i64 = data.value("SELECT epoch_ns(max(ts)) FROM system");
    let rest = end.as_i64().expect("end") - last;
    assert!(
        (0..300_000_000).contains(&rest),
        "{rest} ns after the last sample"
    );
}

#[test]
fn sigint_and_sigterm_take_a_last_sample() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    for signal in [Signal::INT, Signal::TERM] {
        let profiler = Profiler::new()
            .args(["-i", "1h"])
            .pid(workload.pid())
            .start();
        profiler.signal(signal);
        let finished = profiler.finish();
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
        assert_final(&finished);
    }
}

#[test]
fn run_ends_after_its_duration() {
    let stall_detector = StallDetector::start();
    let finished = Profiler::realtime()
        .args(["--node", "-i", "200ms", "-d", "500ms"])
        .finish();
    let stalls = stall_detector.stop().total();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert_final(&finished);
    // Since the baselines, one interval before the first sample was due.
    let sampled: i64 = finished.any_dataset().value(
        "SELECT 200_000_000 + max(late_ns) FILTER (WHERE ts = first) + epoch_ns(max(ts)) - epoch_ns(any_value(first)) \
         FROM overhead, (SELECT min(ts) AS first FROM system)",
    );
    let most = 600_000_000 + i64::try_from(stalls.as_nanos()).expect("short");
    let ticks: Vec<(i64, Option<i64>)> = finished.any_dataset().rows(
        "SELECT epoch_ns(ts) - epoch_ns(min(ts) OVER ()), late_ns FROM overhead \
         WHERE late_ns IS NOT NULL ORDER BY ts",
    );
    assert!(
        (500_000_000..most).contains(&sampled),
        "{sampled} ns, {stalls:?}, ticks and their delays {ticks:?}"
    );
}

#[test]
fn run_ends_with_its_target() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let profiler = Profiler::new()
        .args(["-i", "100ms"])
        .pid(workload.pid())
        .start();
    workload.run("nap 300");
    drop(workload);
    let finished = profiler.finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert_final(&finished);
}

/// A zombie has ended, even if its parent has not waited for it.
#[test]
fn run_ends_with_a_target_shorter_than_the_interval() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let mut profiler = Profiler::new()
        .args(["-i", "10s"])
        .pid(workload.pid())
        .start();
    workload.send("exit 0");
    wait_until("the run ends", || profiler.has_ended());
    assert_final(&profiler.finish());
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
        assert_final(&finished);
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
        assert_final(&finished);
    }
}

#[test]
fn two_profilers_of_one_target_agree() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 2);
    let start = || Profiler::new().args(["-i", "100ms"]).pid(workload.pid());
    let (first, second) = (start().start(), start().start());
    workload.run("burn 500");
    let sum = |finished: Finished| -> (u64, u64, u64) {
        assert_final(&finished);
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
