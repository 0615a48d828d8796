//! The histogram of run-queue waits compared with a trace of perf(1).

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command},
};

use e2e::{
    cpus::cpus,
    dataset::Dataset,
    histogram::{BUCKETS, edges},
    procfs::{self, thread_ids},
    rows::{Row, sum},
    runs::{Profiler, pid_of},
    workload_driver::WorkloadDriver,
};
use rustix::process::{Signal, kill_process};

use crate::WORKLOAD;

/// Executes `"$@"` under `perf record`, with a tracefs in a private mount namespace.
const RECORD: &str = r#"
    file=$1; switches=$2; wakeups=$3; shift 3
    mount -t tracefs none /sys/kernel/tracing || exit
    exec perf record --quiet --all-cpus --clockid CLOCK_MONOTONIC --mmap-pages 4M --output "$file" \
        --event sched:sched_switch --filter "$switches" --event sched:sched_wakeup --filter "$wakeups" -- "$@""#;

/// Time between the handlers of perf and of the profiler on the same tracepoint, in ns.
const HANDLERS_APART: u64 = 10_000;
/// Time from the scheduler's reading of its clock to the tracepoint, in ns: meanwhile it selects the
/// next thread.
const CLOCK_APART: u64 = 50_000;

/// All run-queue waits of the threads, in ns.
fn waits(trace: &str, threads: &[u32]) -> Vec<u64> {
    let mut queued: BTreeMap<u32, u64> = BTreeMap::new();
    let mut waits = Vec::new();
    for line in trace.lines() {
        let event = Event::parse(line).unwrap_or_else(|| panic!("perf script: {line}"));
        let ours = |tid: &u32| threads.contains(tid);
        match event {
            Event::Wakeup { ns, tid } => {
                queued.entry(tid).or_insert(ns);
            }
            Event::Switch {
                ns,
                from,
                ready,
                to,
            } => {
                if let Some(begin) = queued.remove(&to)
                    && ours(&to)
                {
                    waits.push(ns - begin);
                }
                if ready && ours(&from) {
                    queued.insert(from, ns);
                } else {
                    queued.remove(&from);
                }
            }
        }
    }
    waits
}

enum Event {
    Wakeup {
        ns: u64,
        tid: u32,
    },
    Switch {
        ns: u64,
        from: u32,
        /// Whether the thread is still runnable.
        ready: bool,
        to: u32,
    },
}

impl Event {
    /// `1.000000002: sched:sched_wakeup: comm=a pid=1 prio=120 target_cpu=000`
    fn parse(line: &str) -> Option<Self> {
        let (time, rest) = line.trim_start().split_once(": ")?;
        let (seconds, fraction) = time.split_once('.')?;
        let ns = seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction.parse::<u64>().ok()?;
        let (name, fields) = rest.trim_start().split_once(": ")?;
        let field = |name: &str| {
            let (_, value) = fields.split_once(&format!("{name}="))?;
            value.split(' ').next()
        };
        if name != "sched:sched_switch" {
            let tid = field(" pid")?.parse().ok()?;
            return Some(Self::Wakeup { ns, tid });
        }
        Some(Self::Switch {
            ns,
            from: field("prev_pid")?.parse().ok()?,
            ready: field("prev_state")?.starts_with('R'),
            to: field("next_pid")?.parse().ok()?,
        })
    }
}

/// Number of waits in this bucket and above, according to the histogram.
fn at_least(rows: &[Row], bucket: usize) -> u64 {
    let counts = rows
        .iter()
        .flat_map(|row| row.list("buckets").expect("a histogram").iter().enumerate())
        .filter(|(index, _)| *index >= bucket)
        .map(|(_, count)| *count);
    counts.sum()
}

/// A loop on each CPU with the lowest priority, so that the CPU is never idle. Kernels of some
/// virtual machines do not trace the switch from the idle task.
struct NeverIdle(Vec<Child>);

impl NeverIdle {
    fn start() -> Self {
        let spin = |cpu: usize| {
            Command::new("taskset")
                .args(["--cpu-list", &cpu.to_string(), "chrt", "--idle", "0"])
                .args(["sh", "-c", "while :; do :; done"])
                .spawn()
                .expect("taskset starts")
        };
        Self(cpus().into_iter().map(spin).collect())
    }
}

impl Drop for NeverIdle {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn scheduler_times_match_the_kernel_trace() {
    waits_match("runqueue", CLOCK_APART);
}

#[test]
fn observed_wakeups_match_the_kernel_trace() {
    waits_match("wakeup", HANDLERS_APART);
}

/// Runs with a method of `sched`, which is also the kind of its histogram. Its times can differ by
/// `apart` from those of the trace.
#[track_caller]
fn waits_match(method: &str, apart: u64) {
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = directory.path().join("perf.data");
    let name = file.to_str().expect("UTF-8");
    let cpus = std::thread::available_parallelism().expect("known").get();
    // Two threads per CPU, so that one is waiting most of the time.
    let mut workload = WorkloadDriver::new(WORKLOAD, u32::try_from(2 * cpus).expect("few"));
    let threads = thread_ids(workload.pid());
    let any = |fields: &[&str]| -> String {
        let one = |tid| fields.iter().map(move |field| format!("{field}=={tid}"));
        let each: Vec<String> = threads.iter().flat_map(one).collect();
        each.join(" || ")
    };
    let (switches, wakeups) = (any(&["prev_pid", "next_pid"]), any(&["pid"]));
    let record = ["unshare", "-m", "sh", "-c", RECORD, "sh"];
    let wrapper = [&record[..], &[name, &switches, &wakeups]].concat();
    let profiler = Profiler::wrapped_in(&wrapper)
        .args(["-i", "200ms"])
        .args(["--source", &format!("process,sched={method}")])
        .pid(workload.pid())
        .start();
    let busy = NeverIdle::start();
    workload.run("burn 1500");
    workload.run("nap 500");
    drop(busy);
    // perf ends with its command, which is the profiler.
    let command = procfs::children(profiler.pid())[0];
    kill_process(pid_of(command), Signal::INT).expect("it is alive");
    let finished = profiler.finish();
    let waits = waits(&script(&file), &threads);
    let data = finished.dataset();
    let sched = data.table("sched");
    let mut rows = data.table("latency");
    rows.retain(|row| row.text("kind") == Some(method));

    assert!(waits.len() > 600, "{} waits", waits.len());
    let count = sum(&rows, "count");
    let known = u64::try_from(waits.len()).expect("few");
    // A thread can be waiting when the trace starts and when the profiler starts.
    let unseen = 2 * threads.len() as u64;
    for (what, known) in [
        ("in the trace", known),
        ("arrivals", sum(&sched, "runqueue_count")),
    ] {
        assert!(
            count.abs_diff(known) <= unseen,
            "{count} waits, {known} {what}"
        );
    }
    for bucket in 1..BUCKETS {
        let (edge, _) = edges(bucket);
        let of_trace = |edge: u64| waits.iter().filter(|wait| **wait >= edge).count() as u64;
        let least = of_trace(edge + apart).saturating_sub(unseen);
        let most = of_trace(edge.saturating_sub(apart)) + unseen;
        let found = at_least(&rows, bucket);
        assert!(
            (least..=most).contains(&found),
            "{found} waits of at least {edge} ns, not {least}..={most}"
        );
    }
    assert_quantiles(&data, method, waits.clone(), unseen, apart);
    let (traced, timed) = (waits.iter().sum::<u64>(), sum(&rows, "sum_ns"));
    let longest = waits.iter().max().expect("a wait");
    let slack = count * apart + count.abs_diff(known) * longest;
    assert!(
        traced.abs_diff(timed) <= slack,
        "{timed} ns, not {traced} ± {slack}"
    );
}

/// Compares the view with the quantiles of all waits. `unseen` waits are only in one of both.
#[track_caller]
fn assert_quantiles(data: &Dataset, kind: &str, mut waits: Vec<u64>, unseen: u64, apart: u64) {
    let found: (f64, f64, f64) = data.row(&format!(
        "SELECT p50_ns, p90_ns, p99_ns FROM latency_quantiles WHERE kind = '{kind}'"
    ));
    waits.sort_unstable();
    let last = waits.len() - 1;
    let unseen = usize::try_from(unseen).expect("few");
    for (percent, found) in [(50, found.0), (90, found.1), (99, found.2)] {
        let rank = (waits.len() * percent).div_ceil(100) - 1;
        let least = waits[rank.saturating_sub(unseen)].saturating_sub(apart);
        let most = waits[(rank + unseen).min(last)] + apart;
        let (least, most) = (least as f64 * 0.875, most as f64 * 1.125);
        assert!(
            (least..=most).contains(&found),
            "percentile {percent}: {found} ns, not {least}..={most}"
        );
    }
}

/// The recorded events, one per line.
fn script(file: &Path) -> String {
    let output = Command::new("perf")
        .args(["script", "--ns", "--fields", "time,event,trace", "--input"])
        .arg(file)
        .output()
        .expect("perf starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(!stderr.to_lowercase().contains("lost"), "{stderr}");
    String::from_utf8(output.stdout).expect("text")
}
