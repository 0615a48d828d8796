//! `sched` compared with the kernel's accounting and with known numbers of sleeps and waits.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use e2e::{
    cpus::{cpus, move_to, on_cpus},
    dataset::Dataset,
    hidden_time::HiddenTime,
    procfs::{self, Field, Reading},
    rows::{Row, sum},
    runs::{Finished, ProcessGroup, Profiler, Running, pid_of, wait_until},
    workload_driver::WorkloadDriver,
};
use rustix::process::setpriority_process;

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

/// A thread that sleeps in the run queue of one CPU, and is moved to that of another, which the kernel then
/// accounts as a wait: it has a low priority and has run on a busy CPU, so that it remains in the
/// queue until the other thread has had its share.
struct Moved {
    workload: WorkloadDriver,
    cpus: [usize; 2],
    _busy: ProcessGroup,
}

impl Moved {
    fn new() -> Self {
        let allowed = cpus();
        let &[here, there, ..] = &allowed[..] else {
            panic!("only one CPU");
        };
        let cpus = [here, there];
        let (workload, busy) = on_cpus(&cpus[..1], || {
            let busy = ProcessGroup::spawn(&["sh", "-c", "while :; do :; done"]);
            (WorkloadDriver::new(WORKLOAD, 0), busy)
        });
        setpriority_process(Some(pid_of(workload.pid())), 10).expect("a lower priority");
        Self {
            workload,
            cpus,
            _busy: busy,
        }
    }

    fn profiler(&self, method: &str) -> Running {
        Profiler::new()
            .args(["-i", "50ms", "--source"])
            .args([format!("process,{method},overhead")])
            .pid(self.workload.pid())
            .start()
    }

    /// It goes to sleep on one CPU, and is moved to the other.
    fn fall_asleep(&mut self) {
        self.move_to(0);
        self.workload.send("spin 20000000");
        self.workload.wait_done();
        // `/proc/PID/syscall` would take it out of the run queue.
        let directory = format!("/proc/{}", self.workload.pid());
        wait_until("it sleeps", || procfs::state(&directory) == Some('S'));
        self.move_to(1);
    }

    fn move_to(&self, cpu: usize) {
        let thread = pid_of(self.workload.pid());
        move_to(Some(thread), &[self.cpus[cpu]]);
    }

    /// Sleeps for a few more samples, and is woken. Returns the time asleep, and whether the kernel accounts
    /// it as a wait.
    fn sleep(&mut self, run: &Running) -> (Duration, bool) {
        let pid = self.workload.pid();
        let waited = || Reading::now(pid).sum(|thread| thread.runqueue_ns);
        let (begin, before) = (Instant::now(), waited());
        Dataset::new(run.run_dir()).wait_for_samples("sched", 4);
        let slept = begin.elapsed();
        self.workload.run("getppid 1");
        let waited = Duration::from_nanos(waited() - before);
        (slept, waited >= slept)
    }
}

/// Most moves of a thread, of which the kernel should account two sleeps as waits.
const ROUNDS: u32 = 20;

/// Whether a sleeping thread can remain in the run queue (`DELAY_DEQUEUE` in kernel/sched/features.h).
fn delays_dequeue() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().expect("UTF-8");
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    [numbers.next(), numbers.next()] >= [Some(6), Some(12)]
}

/// The longest time that a reading of the processes took, ns.
fn longest_reading(data: &Dataset) -> u64 {
    let mut overhead = data.table("overhead");
    overhead.retain(|row| row.text("component") == Some("tasks"));
    let readings = overhead.iter().filter_map(|row| row.u64("run_ns"));
    readings.max().expect("a reading")
}

#[track_caller]
fn assert_slept(finished: &Finished, workload: &WorkloadDriver, slept: Duration) {
    let rows = rows_of(finished, workload);
    let slept = u64::try_from(slept.as_nanos()).expect("short");
    let states = ["oncpu_ns", "runqueue_ns", "sleep_ns", "blocked_ns"];
    let [oncpu, runqueue, asleep, blocked] = states.map(|column| sum(&rows, column));
    assert!(asleep >= slept, "{asleep} of {slept} ns: {rows:?}");
    // The processes are read after the time of the first sample.
    let reading = longest_reading(&finished.dataset());
    let there = sum(&rows, "interval_ns") + reading + CLOCKS_APART;
    let states = oncpu + runqueue + asleep + blocked;
    assert!(states <= there, "{states} of {there} ns: {rows:?}");
    let latency = finished.dataset().table("latency");
    if of_kind(&latency, "wakeup", "count") == 0 {
        assert_eq!(of_kind(&latency, "runqueue", "sum_ns"), runqueue);
    } else {
        let waits = of_kind(&latency, "wakeup", "sum_ns");
        assert!(waits + asleep <= there, "{waits} ns of waits: {rows:?}");
    }
}

#[test]
fn sleep_in_the_run_queue_is_no_wait() {
    for method in ["sched", "sched=wakeup"] {
        let mut moved = Moved::new();
        let run = moved.profiler(method);
        let (mut slept, mut false_waits) = (Duration::ZERO, 0);
        let expected = if delays_dequeue() { 2 } else { 0 };
        for _ in 0..ROUNDS {
            moved.fall_asleep();
            let (time, is_false_wait) = moved.sleep(&run);
            slept += time;
            false_waits += u32::from(is_false_wait);
            if false_waits >= expected {
                break;
            }
        }
        let finished = run.interrupt();
        assert_slept(&finished, &moved.workload, slept);
        assert!(false_waits >= expected, "{false_waits} of {ROUNDS} rounds");
    }
}

#[test]
fn thread_asleep_in_the_run_queue_at_the_start_does_not_wait() {
    for method in ["sched", "sched=wakeup"] {
        let mut moved = Moved::new();
        moved.fall_asleep();
        let run = moved.profiler(method);
        let (slept, _) = moved.sleep(&run);
        let finished = run.interrupt();
        assert_slept(&finished, &moved.workload, slept);
    }
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
const CLOCKS_APART: u64 = 50_000;

fn of_kind(rows: &[Row], kind: &str, column: &str) -> u64 {
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
    for name in ["runqueue_ns", "runqueue_count", "voluntary_switches"] {
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
        of_kind(&noted.1, "wakeup", "count") > 0 || waited <= since_wakeup + apart,
        "{waited} ns, {since_wakeup} ns from the wakeup"
    );
}
