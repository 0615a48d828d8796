//! The kernel's software events, which every machine has, compared with `/proc`.

use std::fs;

use e2e::{
    procfs::{number, state},
    rows::Row,
    runs::{Finished, ProcessGroup, Profiler, pid_of, wait_until},
    workload_driver::WorkloadDriver,
};
use rustix::process::{Signal, kill_process};

use crate::WORKLOAD;

pub fn counts(finished: &Finished, scope: &str, event: &str) -> Vec<Row> {
    let mut rows = finished.dataset().table("perf_event");
    rows.retain(|row| row.text("scope") == Some(scope) && row.text("event") == Some(event));
    assert!(
        !rows.is_empty(),
        "no {event} of any {scope}:\n{}",
        finished.stderr
    );
    rows
}

/// Sum of the raw counts of an event.
pub fn raw(finished: &Finished, scope: &str, event: &str) -> u64 {
    let rows = counts(finished, scope, event);
    rows.iter()
        .map(|row| row.u64("count_raw").expect("a count"))
        .sum()
}

/// `minflt` and `cminflt` (ended children) of /proc/PID/stat.
fn minor_faults(pid: u32) -> [u64; 2] {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is alive");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let fields: Vec<_> = fields.split_whitespace().collect();
    // proc_pid_stat(5) numbers fields from 1; the field after the name is the third.
    [10, 11].map(|number| fields[number - 3].parse().expect("a number"))
}

/// Time on CPU of all threads of a process, including ended threads.
fn cpu_ns(pid: u32) -> u64 {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both pointers are to local variables that outlive the calls.
    let read = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    assert!(read, "the clock of {pid}");
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("positive")
}

/// Time of interrupts and of the hypervisor on all CPUs: irq, softirq and steal in the first line.
fn away_ns() -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("procfs");
    let fields = stat.split_whitespace().skip(6).take(3);
    let ticks = fields.map(|field| field.parse::<u64>().expect("a number"));
    ticks.sum::<u64>() * 10_000_000
}

#[test]
fn faults_and_switches_match_proc() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let pid = workload.pid();
    let faults = || minor_faults(pid)[0];
    let switches = || {
        let of = |name| number(pid, "status", name);
        of("voluntary_ctxt_switches") + of("nonvoluntary_ctxt_switches")
    };
    let before = (faults(), switches());
    let profiler = Profiler::new()
        .args(["--source", "perf", "--groups", "SW"])
        .pid(pid)
        .start();
    workload.run("touch 30000000");
    workload.run("nap 50");
    let finished = profiler.interrupt();
    let after = (faults(), switches());
    assert_eq!(
        raw(&finished, "process", "minor-faults"),
        after.0 - before.0
    );
    assert_eq!(
        raw(&finished, "process", "context-switches"),
        after.1 - before.1
    );
    // Huge pages reduce the number of faults.
    assert!(after.0 > before.0, "{before:?}, {after:?}");
    for row in counts(&finished, "process", "minor-faults") {
        assert_eq!(row.u64("enabled_ns"), row.u64("running_ns"));
        assert_eq!(row.u64("id"), Some(pid.into()));
        assert_eq!(row.u64("pid"), Some(pid.into()));
        assert_eq!(row.text("group"), Some("SW"));
    }
}

/// Children that start and end between two samples are counted: each touches pages and ends.
#[test]
fn children_and_late_threads_are_inherited() {
    let count = |children: u64| {
        let mut workload = WorkloadDriver::new(WORKLOAD, 2);
        let pid = workload.pid();
        let all_faults = || minor_faults(pid).iter().sum::<u64>();
        let before = (all_faults(), cpu_ns(pid), away_ns());
        let profiler = Profiler::new()
            .args([
                "-i",
                "1h",
                "--source",
                "perf",
                "--events",
                "minor-faults,task-clock",
            ])
            .pid(workload.pid())
            .start();
        for _ in 0..children {
            workload.run("spin-child 1000");
        }
        workload.run("threads 25");
        let finished = profiler.interrupt();
        let rows = finished.dataset().table("perf_event");
        assert_eq!(rows.len(), 2, "one process is open");
        let faults = raw(&finished, "process", "minor-faults");
        let known = all_faults() - before.0;
        // Faults of the kernel during exec, for the new stack, are not counted by the event.
        assert!(
            (known - 10 * children..=known).contains(&faults),
            "{faults} of {known}, {children} children"
        );
        let clock = raw(&finished, "process", "task-clock");
        (faults, clock, cpu_ns(pid) - before.1, away_ns() - before.2)
    };
    let ((faults, ..), (more, ..)) = (count(2), count(12));
    // The minimum of a process: stack, code and data.
    assert!(more >= faults + 10 * 10, "{faults}, {more}");
    // The time of the threads that lived meanwhile. The event's clock runs on during interrupts.
    let (_, clock, cpu, away) = count(0);
    let (least, most) = (cpu - cpu / 20, cpu + cpu / 20 + away);
    assert!(
        cpu > 0 && (least..=most).contains(&clock),
        "{clock}, not {least}..={most}"
    );
}

/// A child of a counted process that ends before the next sample is counted with its parent.
#[test]
fn orphan_is_not_opened_twice() {
    let shell = ProcessGroup::spawn(&["sh", "-c", "kill -STOP $$; sleep 1 &"]);
    let directory = format!("/proc/{}", shell.pid());
    wait_until("the shell has stopped", || state(&directory) == Some('T'));
    let profiler = Profiler::new()
        .args([
            "-i",
            "100ms",
            "--source",
            "perf,process",
            "--events",
            "minor-faults",
        ])
        .pid(shell.pid())
        .start();
    kill_process(pid_of(shell.pid()), Signal::CONT).expect("it is alive");
    let finished = profiler.finish();
    let processes = finished.dataset().table("process");
    assert_eq!(processes.len(), 2);
    let orphan = processes.iter().max_by_key(|row| row.i64("start_ts"));
    let orphan = orphan.and_then(|row| row.u64("pid"));
    for row in counts(&finished, "process", "minor-faults") {
        assert_ne!(row.u64("id"), orphan);
    }
}

#[test]
fn command_is_counted_from_first_to_last_instruction() {
    let finished = Profiler::new()
        .args(["--source", "perf,process", "--events", "task-clock"])
        .command(&[WORKLOAD, "cpu", "150"])
        .finish();
    let process = finished.dataset().table("process").remove(0);
    let cpu = process.u64("user_ns").expect("known") + process.u64("system_ns").expect("known");
    let clock = raw(&finished, "process", "task-clock");
    // The event is opened between fork and exec. It includes interrupts and stolen time, which the
    // scheduler does not charge to the process; their sum is at most the lifetime.
    let moment = |column| process.i64(column).expect("known");
    let lived = u64::try_from(moment("end_ts") - moment("start_ts")).expect("positive");
    assert!(
        clock * 100 >= cpu * 95 && clock <= lived,
        "{clock}: {cpu} ns of {lived}"
    );
    assert!(
        finished.stderr.contains("task-clock"),
        "{}",
        finished.stderr
    );
}

#[test]
fn node_counts_all_cpus() {
    let finished = Profiler::new()
        .args(["--node", "-d", "1s", "-i", "200ms"])
        .args(["--source", "perf,overhead", "--groups", "SW"])
        .finish();
    let missed = finished.dataset().missed_samples();
    let rows = counts(&finished, "cpu", "context-switches");
    let cpus = std::thread::available_parallelism().expect("known").get() as u64;
    for cpu in 0..cpus {
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| row.u64("id") == Some(cpu))
            .collect();
        let due = own.len() as u64 + missed;
        assert!(!own.is_empty() && due >= 5, "cpu {cpu}: {due} rows");
        assert!(own.iter().all(|row| row.u64("pid").is_none()));
    }
    assert!(raw(&finished, "cpu", "context-switches") > 0);
}

/// A custom group of software events.
const CUSTOM_GROUP: &str = "
    name = 'Mine'
    vendor = 'Me'
    source = 'me'
    [match]
    [pmu.software]
    [event.clock]
    help = 'Time'
    pmu = 'software'
    code = { config = 1 }
    sources = []
    validated = false
    [event.faults]
    help = 'Page faults'
    pmu = 'software'
    code = { config = 2 }
    sources = []
    validated = false
    [group.OWN]
    help = 'Mine'
    events = { c = 'clock', f = 'faults' }
    metrics = [
        { name = 'cycle_rate', formula = 'c / time' },
        { name = 'ipc', formula = 'f / c' },
        { name = 'cpi', formula = 'c / (f - f)' },
    ]
";

#[test]
fn metrics_are_computed_from_their_interval() {
    let directory = tempfile::tempdir().expect("a directory");
    // Replaces the table of generic events, which applies to every CPU.
    fs::write(directory.path().join("generic.toml"), CUSTOM_GROUP).expect("written");
    let finished = Profiler::new()
        .args(["-i", "50ms", "--source", "perf", "--groups", "own"])
        .args(["--perfevents".as_ref(), directory.path().as_os_str()])
        .command(&[WORKLOAD, "cpu", "300"])
        .finish();
    let metrics = finished.dataset().table("perf_metric");
    let of = |scope: &str, metric: &str| -> Vec<&Row> {
        let wanted =
            |row: &&Row| row.text("scope") == Some(scope) && row.text("metric") == Some(metric);
        metrics.iter().filter(wanted).collect()
    };
    let clocks = counts(&finished, "process", "clock");
    let faults = counts(&finished, "process", "faults");
    let (rates, ratios) = (of("process", "cycle_rate"), of("process", "ipc"));
    assert!(clocks.len() > 1 && clocks.len() == rates.len());
    for (((clock, faults), rate), ratio) in clocks.iter().zip(&faults).zip(rates).zip(ratios) {
        let value = |row: &Row| row.f64("value").expect("computed");
        let count = |row: &Row| row.f64("count").expect("counted");
        let seconds = rate.u64("interval_ns").expect("known") as f64 / 1e9;
        assert!((value(rate) - count(clock) / seconds).abs() <= 1e-9 * value(rate));
        if count(clock) > 0.0 {
            assert!((value(ratio) - count(faults) / count(clock)).abs() <= 1e-12);
        } else {
            assert_eq!(ratio.f64("value"), None, "{clock:?}");
        }
        // A process that did not run in the interval has no share of the PMU.
        let enabled = clock.u64("enabled_ns").expect("known");
        assert_eq!(rate.f64("running_ratio"), (enabled != 0).then_some(1.0));
        assert_eq!(
            (rate.text("unit"), rate.text("group")),
            (Some("1/s"), Some("OWN"))
        );
        assert_eq!(rate.i64("ts"), clock.i64("ts"));
    }
    assert_eq!(of("target", "cycle_rate").len(), clocks.len());
    assert!(
        of("process", "cpi")
            .iter()
            .all(|row| row.f64("value").is_none())
    );
    assert!(
        finished.stderr.contains("cycle_rate"),
        "{}",
        finished.stderr
    );
}

#[test]
fn uncountable_event_is_a_one_line_error() {
    let refused = |arguments: &[&str], what: &str| {
        let profiler = Profiler::new().args(["--source", "perf"]).args(arguments);
        profiler.command(&["true"]).finish().assert_refused(2, what);
    };
    refused(
        &["--groups", "NONE"],
        "--groups NONE: unknown group; this CPU has ",
    );
    refused(&["--events", "cpu/"], "--events \"cpu/\"");
    refused(&["--events", "no-such-event"], "profiler events");
    refused(
        &["--events", "no_such_pmu/event=1/"],
        "no PMU for this event; available PMUs: ",
    );
    refused(
        &["--events", "software/config=99999999999999999999/"],
        "--events",
    );
}
