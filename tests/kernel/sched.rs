//! `sched` compared with the kernel's accounting and with known numbers of sleeps and waits.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use e2e::{
    dataset::Dataset,
    hidden_time::HiddenTime,
    procfs::{Field, Reading},
    rows::{Row, sum},
    runs::{Finished, Profiler},
    workload_driver::WorkloadDriver,
};

use crate::{WORKLOAD, histograms::check_latency};

/// The sums of a target that is idle at the start and at the end are exact: they are the kernel's.
#[track_caller]
fn exact(threads: u32, command: &str) {
    let mut workload = WorkloadDriver::on_one_cpu(WORKLOAD, threads);
    let before = Reading::now(workload.pid());
    let profiler = Profiler::new()
        .args(["-i", "1s"])
        .pid(workload.pid())
        .start();
    workload.run(command);
    let finished = profiler.interrupt();
    let after = Reading::now(workload.pid());
    let data = finished.dataset();
    let rows = data.table("sched");
    let fields: [(&str, Field); 5] = [
        ("oncpu_ns", |thread| thread.oncpu_ns),
        ("runqueue_ns", |thread| thread.runqueue_ns),
        ("runqueue_count", |thread| thread.arrivals),
        ("voluntary_switches", |thread| thread.voluntary),
        ("involuntary_switches", |thread| thread.involuntary),
    ];
    for (name, field) in fields {
        let growth = after.sum(field) - before.sum(field);
        assert_eq!(sum(&rows, name), growth, "{name}");
    }
    let latency = data.table("latency");
    if of_kind(&latency, "wakeup", "count") == 0 {
        // Each wait is one value of the histogram.
        check_latency(&latency, "runqueue", sum(&rows, "runqueue_count"));
        let waited = sum(&rows, "runqueue_ns");
        assert_eq!(of_kind(&latency, "runqueue", "sum_ns"), waited);
    } else {
        // The clocks of the CPUs differ, so that wakeups are observed.
        assert_observed_waits(&data, after.threads.len() as u64);
    }
}

/// The longest time that a reading of the processes took, ns.
pub fn longest_reading(data: &Dataset) -> u64 {
    let mut overhead = data.table("overhead");
    overhead.retain(|row| row.text("component") == Some("tasks"));
    let readings = overhead.iter().filter_map(|row| row.u64("run_ns"));
    readings.max().expect("a reading")
}

/// Asserts that observed waits are the time in which threads neither ran nor slept. A kernel whose
/// CPUs have different clocks accounts waits that did not happen: it is no reference for them.
///
/// The kernel charges a thread from its last reading of the clock, which can be that of the wakeup.
#[track_caller]
fn assert_observed_waits(data: &Dataset, threads: u64) {
    let (rows, latency) = (data.table("sched"), data.table("latency"));
    let count = of_kind(&latency, "wakeup", "count");
    check_latency(&latency, "wakeup", count);
    // On an overloaded machine, some switches are not traced.
    let arrivals = sum(&rows, "runqueue_count");
    assert!(
        (arrivals - arrivals / 50..=arrivals).contains(&count),
        "{count} waits, {arrivals} arrivals"
    );
    let other = ["oncpu_ns", "sleep_ns", "blocked_ns"].map(|column| sum(&rows, column));
    let there = threads * sum(&rows, "interval_ns");
    let rest = there.saturating_sub(other.iter().sum());
    // The processes are read after the time of the first sample.
    let reading = threads * (longest_reading(data) + 5 * MS);
    // Time on a CPU is without interrupts and what the hypervisor takes.
    let away = data.stolen_ns() + data.interrupt_ns();
    let awake = rest + other[0];
    let most = (awake + reading).min(rest + reading + away + count * MS / 2);
    let least = if count == arrivals {
        rest.saturating_sub(reading + away + count * CLOCKS_APART)
    } else {
        0
    };
    let timed = of_kind(&latency, "wakeup", "sum_ns");
    assert!(
        (least..=most).contains(&timed),
        "{timed} ns in {count} waits, not {least}..={most}: {rest} of {awake} ns"
    );
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// The scheduler reads its clock before it selects the next task, the BPF programs afterwards (ns).
pub const CLOCKS_APART: u64 = 50_000;

/// Sum of a column over the rows of a kind.
pub fn of_kind(rows: &[Row], kind: &str, column: &str) -> u64 {
    let mut rows = rows.to_vec();
    rows.retain(|row| row.text("kind") == Some(kind));
    sum(&rows, column)
}

/// Profiles the execution of a command; returns the run and the duration in ns.
pub fn profile_command(workload: &mut WorkloadDriver, command: &str) -> (Finished, u64) {
    let profiler = Profiler::new()
        .args(["-i", "1s", "--source", "process,sched,perf"])
        .args(["--events", "cpu-migrations"])
        .pid(workload.pid())
        .start();
    let begin = Instant::now();
    workload.run(command);
    let took = u64::try_from(begin.elapsed().as_nanos()).expect("short");
    (profiler.interrupt(), took)
}

pub fn rows_of(finished: &Finished, workload: &WorkloadDriver) -> Vec<Row> {
    let mut rows = finished.dataset().table("sched");
    rows.retain(|row| row.u64("pid") == Some(workload.pid().into()));
    rows
}

const WAITS: u32 = 20;

/// Each nap ends with a wakeup by a timer; the command itself is one more wakeup.
#[test]
fn nap_is_one_wakeup_and_one_sleep() {
    let naps: u64 = 200;
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let hidden = HiddenTime::now();
    let (finished, took) = profile_command(&mut workload, &format!("nap {naps}"));
    let rows = rows_of(&finished, &workload);
    let wakeups = sum(&rows, "wakeups");
    let missing = (naps + 1).checked_sub(wakeups);
    let missing = missing.unwrap_or_else(|| panic!("{wakeups} wakeups of {naps} naps"));
    if missing != 0 {
        let hidden = hidden.events_since(Duration::from_millis(1));
        assert!(missing <= hidden, "{missing} missing, {hidden} hidden");
    }
    let blocked = sum(&rows, "blocked_ns");
    let known = u64::try_from(Duration::from_millis(naps).as_nanos()).expect("short");
    assert_asleep(&rows, known..=sum(&rows, "interval_ns"));
    assert!(blocked < took / 10, "{blocked} ns blocked");
}

/// The parent of a vfork waits uninterruptibly for its child.
#[test]
fn vfork_wait_counts_as_blocked() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let idle = profile_command(&mut workload, "getppid 1").0;
    assert_eq!(sum(&rows_of(&idle, &workload), "blocked_ns"), 0);
    let (finished, took) = profile_command(&mut workload, &format!("vfork {WAITS}"));
    let rows = rows_of(&finished, &workload);
    let blocked = sum(&rows, "blocked_ns");
    let least = u64::try_from((Duration::from_millis(20) * WAITS).as_nanos()).expect("short");
    assert!(
        (least..=took).contains(&blocked),
        "{blocked} ns blocked, not {least}..={took}"
    );
    let (asleep, interval) = (sum(&rows, "sleep_ns"), sum(&rows, "interval_ns"));
    assert!(asleep + blocked <= interval, "{asleep} ns asleep too");
    // The children slept meanwhile.
    let mut children = finished.dataset().table("sched");
    children.retain(|row| row.u64("pid") != Some(workload.pid().into()));
    assert_asleep(&children, least..=took);
}

/// Asserts that threads slept for their naps. The timer starts with the call, but on a busy machine
/// the thread may leave the CPU later.
fn assert_asleep(rows: &[Row], naps: RangeInclusive<u64>) {
    let [asleep, oncpu, runqueue] =
        ["sleep_ns", "oncpu_ns", "runqueue_ns"].map(|column| sum(rows, column));
    let least = naps.start().saturating_sub(oncpu + runqueue);
    assert!(
        (least..=*naps.end()).contains(&asleep) && asleep > naps.start() / 2,
        "{asleep} ns, not {naps:?}: {rows:?}"
    );
}

#[test]
fn napping_process_is_exact_to_the_nanosecond() {
    exact(0, "nap 300");
}

#[test]
fn busy_threads_are_exact_to_the_nanosecond() {
    exact(3, "burn 2000");
}

/// The waits of guests whose CPUs have different clocks, on this kernel.
#[test]
fn observed_waits_are_the_rest_of_the_time() {
    for (threads, command) in [(0, "nap 300"), (3, "burn 1000")] {
        let mut workload = WorkloadDriver::new(WORKLOAD, threads);
        let profiler = Profiler::new()
            .args([
                "-i",
                "200ms",
                "--source",
                "process,sched=wakeup,system,overhead",
            ])
            .pid(workload.pid())
            .start();
        workload.run(command);
        let finished = profiler.interrupt();
        assert_observed_waits(&finished.dataset(), u64::from(threads) + 1);
    }
}

/// Both methods at the same time: the scheduler's own times, and observed wakeups.
#[test]
fn both_methods_agree() {
    let threads = 3;
    let mut workload = WorkloadDriver::on_one_cpu(WORKLOAD, threads - 1);
    let methods = ["sched", "sched=wakeup"].map(|method| {
        Profiler::new()
            .args(["-i", "100ms", "--source", &format!("process,{method}")])
            .pid(workload.pid())
            .start()
    });
    let hidden = HiddenTime::now();
    workload.run("nap 500");
    workload.run("burn 500");
    workload.run("vfork 5");
    let [noted, observed] = methods.map(|profiler| {
        let finished = profiler.interrupt();
        let latency = finished.dataset().table("latency");
        (rows_of(&finished, &workload), latency)
    });
    for name in ["runqueue_count", "voluntary_switches"] {
        let sums = [&noted, &observed].map(|(rows, _)| sum(rows, name));
        assert_eq!(sums[0], sums[1], "{name}");
    }
    // A sleep that ends before the thread has left the CPU is a wakeup, but no sleep.
    let [wakeups, others] = [&noted, &observed].map(|(rows, _)| sum(rows, "wakeups"));
    let hidden = hidden.events_since(Duration::from_millis(1));
    assert!(
        wakeups.abs_diff(others) <= wakeups / 50 + hidden,
        "{wakeups} wakeups, {others} observed, {hidden} hidden"
    );
    // One profiler runs for longer than the other: the target sleeps before and after.
    let apart = wakeups * CLOCKS_APART + hidden * SECOND / 1000;
    // Where the clocks of the CPUs differ, both observe wakeups: a wait in flight is then not on the clock
    // of the kernel's accounting.
    let are_noted = of_kind(&noted.1, "wakeup", "count") == 0;
    let [waited, other] = [&noted, &observed].map(|(rows, _)| sum(rows, "runqueue_ns"));
    assert!(
        waited.abs_diff(other) <= if are_noted { 0 } else { apart },
        "{waited} ns of waits, observed {other} ns"
    );
    let awake =
        |rows: &[Row]| u64::from(threads) * sum(rows, "interval_ns") - sum(rows, "sleep_ns");
    for (name, time) in [
        ("awake", &awake as &dyn Fn(&[Row]) -> u64),
        ("blocked", &|rows| sum(rows, "blocked_ns")),
    ] {
        let [time, other] = [&noted, &observed].map(|(rows, _)| time(rows));
        assert!(time > 0, "never {name}");
        assert!(
            time.abs_diff(other) <= apart,
            "{name}: {time} ns, observed {other} ns"
        );
    }
    // The scheduler does not account the time until an idle CPU has woken up as a wait.
    let waited = of_kind(&noted.1, "runqueue", "sum_ns");
    let since_wakeup = of_kind(&observed.1, "wakeup", "sum_ns");
    assert!(
        !are_noted || waited <= since_wakeup + apart,
        "{waited} ns, {since_wakeup} ns from the wakeup"
    );
}
