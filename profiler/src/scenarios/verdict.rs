//! What bounds a run, with known causes, and near misses in which nothing may be said.

use serde_json::{Value, json};

use super::Recording;
use crate::analysis::summary::{Finding, Summary, findings, page};

/// What a process does in each second, s.
#[derive(Clone, Copy, Default)]
struct Load {
    ran: f64,
    waited: f64,
    blocked: f64,
    slept: f64,
    /// CPU time of other processes on each of the two CPUs.
    others: [f64; 2],
    /// Time in which a quota stopped a CPU.
    stopped: f64,
    /// Time that the hypervisor took.
    stolen: f64,
}

const SECONDS: i32 = 10;

fn ns(seconds: f64) -> Value {
    json!((seconds * 1e9).round())
}

/// A run with a process `solve` on these CPUs.
fn run(cpus: &str, load: Load) -> Recording {
    let seconds = f64::from(SECONDS);
    let mut run = Recording::new(seconds).process(10, "solve", json!({"allowed_cpus": cpus}));
    for second in (1..=SECONDS).map(f64::from) {
        let usage = json!({"user_ns": ns(load.ran), "system_ns": 0, "write_bytes": 0});
        let sched = json!({
            "oncpu_ns": ns(load.ran),
            "runqueue_ns": ns(load.waited),
            "blocked_ns": ns(load.blocked),
            "sleep_ns": ns(load.slept),
        });
        let timeline = json!({
            "target_cpu_percent": 100.0 * load.ran,
            "target_runqueue_ns": ns(load.waited),
        });
        run = run
            .of(10, "usage", second, usage)
            .of(10, "sched", second, sched)
            .row("timeline", second, timeline);
        // The process runs on the first of its CPUs as far as that has time.
        let first = load.ran.min(1.0 - load.others[0]);
        for (cpu, ran) in [(0, first), (1, load.ran - first)] {
            let busy = ran + load.others[cpu];
            run = run.row("cpu", second, times(busy, 0.0, json!({"cpu": cpu})));
        }
        let busy = load.ran + load.others.iter().sum::<f64>();
        run = run.row(
            "system",
            second,
            times(busy, load.stolen, json!({"cpus": 2})),
        );
        if load.stopped > 0.0 {
            let throttle = json!({
                "cgroup": "/job",
                "quota_cpus": 0.5,
                "periods": 10,
                "throttled_periods": 9,
                "throttled_ns": ns(load.stopped),
            });
            run = run.row("throttle", second, throttle);
        }
    }
    run
}

/// Columns of CPU time.
fn times(user: f64, stolen: f64, more: Value) -> Value {
    let mut columns = json!({
        "user_ns": ns(user),
        "steal_ns": ns(stolen),
        "nice_ns": 0,
        "system_ns": 0,
        "irq_ns": 0,
        "softirq_ns": 0,
        "guest_ns": 0,
        "guest_nice_ns": 0,
    });
    if let (Value::Object(all), Value::Object(more)) = (&mut columns, more) {
        all.extend(more);
    }
    columns
}

fn names(summary: &Summary) -> Vec<&'static str> {
    findings(summary)
        .iter()
        .map(|finding| finding.name)
        .collect()
}

#[track_caller]
fn only(summary: &Summary) -> Finding {
    let found = findings(summary);
    let [only] = &found[..] else {
        panic!("{found:#?}");
    };
    only.clone()
}

#[track_caller]
fn bound(cpus: &str, load: Load, expected: &str) -> String {
    let finding = only(&run(cpus, load).summary());
    assert_eq!(finding.name, expected, "{}", finding.text);
    finding.text
}

#[test]
fn more_threads_than_cpus() {
    let load = Load {
        ran: 2.0,
        waited: 4.0,
        ..Load::default()
    };
    let text = bound("0-1", load, "run queue");
    assert!(
        text.contains("waited 40.00 s for others of the target on 2 allowed CPUs"),
        "{text}"
    );
}

/// One thread on one CPU with a loop of another process.
#[test]
fn one_thread_beside_another_process() {
    let load = Load {
        ran: 0.5,
        waited: 0.5,
        others: [0.5, 0.0],
        ..Load::default()
    };
    let text = bound("0", load, "other processes");
    let expected = "Threads ran for 5.00 s, and waited 5.00 s for CPUs that other processes used: 50 % of \
                    the time in which they could have run. These used 0.50 CPUs on 1 allowed CPU; their \
                    names are not recorded.";
    assert_eq!(text, expected);
    let mut named = run("0", load);
    for (comm, time) in [("yes", 0.4), ("cc1", 0.1), ("kworker/0:1", 0.0)] {
        named = named.row(
            "neighbour",
            10.0,
            json!({"comm": comm, "processes": 1, "cpu_ns": ns(time)}),
        );
    }
    let text = only(&named.summary()).text;
    assert!(
        text.ends_with("; on the whole node most: yes 400.0 ms, cc1 100.0 ms."),
        "{text}"
    );
}

/// The CPU of the process is its own: others use another one.
#[test]
fn others_on_other_cpus_are_no_cause() {
    let load = Load {
        ran: 1.0,
        others: [0.0, 1.0],
        ..Load::default()
    };
    bound("0", load, "compute");
}

/// Two threads on two CPUs, of which others use 0.7 (`make -j2` on a busy node).
#[test]
fn as_many_threads_as_cpus_beside_other_processes() {
    let load = Load {
        ran: 1.3,
        waited: 0.7,
        others: [0.35, 0.35],
        ..Load::default()
    };
    bound("0-1", load, "other processes");
}

/// Too many threads, and others on the CPUs as well: both are said, the larger cause first.
#[test]
fn two_causes_of_waits() {
    let load = Load {
        ran: 1.0,
        waited: 3.5,
        others: [0.5, 0.5],
        ..Load::default()
    };
    let summary = run("0-1", load).summary();
    assert_eq!(names(&summary), ["run queue", "other processes"]);
    let text = page(&summary).text();
    let lines = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        (
            lines("bound by   run queue: "),
            lines("also       other processes: ")
        ),
        (1, 1),
        "{text}"
    );
}

#[test]
fn a_quota_that_is_used_up() {
    let load = Load {
        ran: 0.5,
        waited: 0.5,
        stopped: 0.5,
        others: [0.2, 0.2],
        ..Load::default()
    };
    let text = bound("0-1", load, "CPU quota");
    assert!(
        text.contains("used up in 90 of 100 periods: 50 % of"),
        "{text}"
    );
}

#[test]
fn cpus_that_the_hypervisor_took() {
    let load = Load {
        ran: 1.2,
        stolen: 0.4,
        ..Load::default()
    };
    let summary = run("0-1", load).summary();
    assert_eq!(names(&summary), ["steal", "compute"]);
    let text = &findings(&summary)[0].text;
    assert!(
        text.contains("for 4.00 s") && text.contains("25 % of their busy time"),
        "{text}"
    );
    let little = Load {
        stolen: 0.05,
        ..load
    };
    bound("0-1", little, "compute");
}

/// What used the CPUs is unknown.
#[test]
fn waits_without_a_known_cause() {
    let run = Recording::new(1.0)
        .process(10, "solve", json!({}))
        .of(
            10,
            "usage",
            1.0,
            json!({"user_ns": ns(0.5), "system_ns": 0}),
        )
        .of(
            10,
            "sched",
            1.0,
            json!({"oncpu_ns": ns(0.5), "runqueue_ns": ns(0.5)}),
        );
    let finding = only(&run.summary());
    assert_eq!(finding.name, "waits for CPUs");
    assert!(!finding.hint.contains("fewer"), "{}", finding.hint);
}

#[test]
fn short_waits_are_nothing() {
    let load = Load {
        ran: 0.3,
        waited: 0.05,
        slept: 0.65,
        others: [0.9, 0.9],
        ..Load::default()
    };
    assert_eq!(names(&run("0-1", load).summary()), [""; 0]);
}

/// A process with requests of a disk, which sleeps for the rest of its time. `dirty` are dirty pages of the
/// node, bytes.
fn with_disk(ran: f64, op: &str, in_flight: f64, busy: f64, dirty: u64) -> Summary {
    let slept = 1.0 - ran;
    let load = Load {
        ran,
        slept,
        ..Load::default()
    };
    let mut run = run("0-1", load);
    for second in (1..=SECONDS).map(f64::from) {
        let requests = json!({
            "device": "nvme0n1",
            "dev": "259:0",
            "op": op,
            "ops": 24_000,
            "bytes": 24_000 * 4096,
            "queue_ns": 0,
            "service_ns": ns(in_flight),
            "ops_untimed": 0,
            "errors": 0,
        });
        // All in the bucket from 1.0486 ms.
        let mut buckets = vec![0; 58];
        buckets[57] = 24_000;
        let latency = json!({
            "kind": format!("block_{op}"),
            "count": 24_000,
            "sum_ns": ns(in_flight),
            "max_ns": 2_000_000,
            "buckets": buckets,
        });
        let disk = json!({"device": "nvme0n1", "partition": false, "busy_ns": ns(busy)});
        let system = json!({"memory_dirty": dirty, "memory_writeback": 0});
        let written = if op == "write" { 24_000 * 4096 } else { 0 };
        run = run
            .of(10, "block_io", second, requests)
            .of(10, "latency", second, latency)
            .of(
                10,
                "usage",
                second,
                json!({"user_ns": 0, "system_ns": 0, "write_bytes": written}),
            )
            .row("disk", second, disk)
            .row("system", second, system);
    }
    run.summary()
}

/// libaio and io_uring: the thread sleeps interruptibly while its reads are in flight.
#[test]
fn asynchronous_reads_of_a_busy_disk() {
    let finding = only(&with_disk(0.4, "read", 30.0, 0.72, 0));
    assert_eq!(finding.name, "storage");
    let expected = "The threads of solve slept 60 % of their time, while 30.0 of its requests were in flight \
                    on average. Disk nvme0n1 was busy 72 % of the time, with 24.0 k reads/s of the target \
                    (median 1.2 ms, p99 1.2 ms).";
    assert_eq!(finding.text, expected);
}

/// A process that computes all the time while reads are in flight does not wait for them.
#[test]
fn reads_beside_computation() {
    assert_eq!(only(&with_disk(1.0, "read", 4.0, 0.9, 0)).name, "compute");
}

/// A disk that answers at once is not what a process with timers waits for.
#[test]
fn reads_of_an_idle_disk() {
    assert_eq!(names(&with_disk(0.2, "read", 0.1, 0.05, 0)), [""; 0]);
    assert_eq!(names(&with_disk(0.2, "read", 4.0, 0.1, 0)), [""; 0]);
}

/// The kernel writes dirty pages back while the process sleeps for another reason; a process that writes
/// asynchronously without the page cache waits.
#[test]
fn asynchronous_writes_are_no_write_back() {
    assert_eq!(names(&with_disk(0.2, "write", 4.0, 0.8, 50 << 20)), [""; 0]);
    assert_eq!(names(&with_disk(0.2, "write", 4.0, 0.8, 4096)), ["storage"]);
}

/// A process that writes 700 MB/s, mostly in the kernel. Disks write `blocks` bytes per second, and a sample
/// sees `dirty` bytes of dirty pages.
fn writer(blocks: u64, dirty: u64) -> Summary {
    let mut run = Recording::new(f64::from(SECONDS)).process(10, "dd", json!({}));
    for second in (1..=SECONDS).map(f64::from) {
        let usage = json!({"user_ns": ns(0.1), "system_ns": ns(0.8), "write_bytes": 700_000_000});
        let requests = json!({"device": "sda", "op": "write", "ops": 700, "bytes": blocks});
        run = run
            .of(10, "usage", second, usage)
            .of(10, "block_io", second, requests)
            .row(
                "system",
                second,
                json!({"memory_dirty": dirty, "memory_writeback": 0}),
            );
    }
    run.summary()
}

/// Files that are removed before they are written leave few dirty pages at a sample, however fast the machine
/// is.
#[test]
fn writes_to_the_page_cache() {
    let is_cached = |blocks, dirty| names(&writer(blocks, dirty)).contains(&"page cache");
    assert!(is_cached(350_000_000, 20 << 20));
    assert!(is_cached(700_000_000, 50 << 20));
    // With O_DIRECT.
    assert!(!is_cached(700_000_000, 4096));
}

/// Ranks that use their CPUs all the time, with calls of MPI of these lengths, s.
fn ranks(calls: [f64; 2], totals: bool) -> Summary {
    let mut run = Recording::new(f64::from(SECONDS));
    for (rank, time) in (0..).zip(calls) {
        let pid = 10 + rank;
        let mark = |region: u32, name: &str, op: &str, attributes: Value| {
            json!({
                "region_id": 10 * rank + region,
                "name": name,
                "op": op,
                "kind": "mpi",
                "attributes": attributes.to_string(),
            })
        };
        let start = mark(0, "MPI_Init", "region", json!({}));
        let call = mark(1, "MPI_Allreduce", "phase", json!({}));
        // Short calls have no phases.
        let long = if totals { 0.1 * time } else { time };
        run = run
            .process(
                pid,
                "solver",
                json!({"task_rank": rank, "allowed_cpus": "0-1"}),
            )
            .mark(pid, 1.0, Some(1.0), start)
            .mark(pid, 9.0, Some(long), call);
        if totals {
            let functions = json!({"MPI_Allreduce": {"calls": 1000, "ns": (time * 1e9).round()}});
            let all = mark(2, "MPI_totals", "event", json!({"functions": functions}));
            run = run.mark(pid, 9.0, None, all);
        }
        for second in (1..=SECONDS).map(f64::from) {
            run = run.of(
                pid,
                "usage",
                second,
                json!({"user_ns": ns(1.0), "system_ns": 0}),
            );
        }
    }
    run.summary()
}

/// Rank 0 computes three times as long as rank 1, which waits for it with its CPU.
#[test]
fn uneven_ranks_that_wait_busily() {
    for totals in [false, true] {
        let summary = ranks([0.0, 6.0], totals);
        assert_eq!(names(&summary), ["imbalance", "compute"]);
        let text = &findings(&summary)[0].text;
        let expected =
            "Rank 0 was outside MPI for 9.00 s, 1.50 times the mean of 2 ranks (6.00 s).";
        assert_eq!(text, expected);
        let text = page(&summary).text();
        let heading = text.lines().find(|line| line.trim_end().ends_with(" rank"));
        assert!(
            heading.is_some_and(|heading| heading.contains("in MPI  outside MPI")),
            "{text}"
        );
        assert!(text.contains("6.00 s       3.00 s  10.00 s"), "{text}");
    }
}

#[test]
fn even_ranks_in_mpi() {
    let summary = ranks([4.0, 4.4], true);
    assert_eq!(names(&summary), ["MPI", "compute"]);
    let text = &findings(&summary)[0].text;
    assert!(
        text.contains("for 4.20 s on average, 47 % of their time, and up to 4.40 s (rank 1)"),
        "{text}"
    );
    assert_eq!(names(&ranks([0.5, 0.6], true)), ["compute"]);
}
