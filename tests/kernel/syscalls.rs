//! `syscalls` compared with known numbers of calls.

use std::time::Instant;

use e2e::{
    rows::{Row, sum},
    runs::Profiler,
    workload_driver::WorkloadDriver,
};

use crate::WORKLOAD;

const CALLS: u64 = 100_000;
const MISSES: u64 = 1000;

fn named(rows: &[Row], name: &str) -> Vec<Row> {
    let mut rows = rows.to_vec();
    rows.retain(|row| row.text("syscall") == Some(name) && row.u64("tid").is_none());
    rows
}

#[test]
fn calls_are_counted_by_name() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let profiler = Profiler::new()
        .args(["--source", "process,syscalls", "-i", "200ms"])
        .pid(workload.pid())
        .start();
    let begin = Instant::now();
    workload.run(&format!("getppid {CALLS}"));
    workload.run(&format!("miss {MISSES}"));
    workload.run("nap 10");
    let wall = u64::try_from(begin.elapsed().as_nanos()).expect("short");
    let rows = profiler.interrupt().dataset().table("syscalls");
    let getppid = named(&rows, "getppid");
    assert_eq!(
        (sum(&getppid, "count"), sum(&getppid, "errors")),
        (CALLS, 0)
    );
    let open = named(&rows, "openat");
    assert_eq!(
        (sum(&open, "count"), sum(&open, "errors")),
        (MISSES, MISSES)
    );
    let naps = named(&rows, "clock_nanosleep");
    assert_eq!(sum(&naps, "count"), 10);
    assert!(sum(&naps, "total_ns") >= 10_000_000, "{naps:?}");
    // Three commands were read and acknowledged; the read of the next one started before.
    assert_eq!(sum(&named(&rows, "write"), "count"), 3);
    // A command can arrive in two parts; the first read started before the profiler attached.
    let reads = sum(&named(&rows, "read"), "count");
    assert!((2..=5).contains(&reads), "{reads}");
    let busy: u64 = ["getppid", "openat", "clock_nanosleep", "write"]
        .iter()
        .map(|name| sum(&named(&rows, name), "total_ns"))
        .sum();
    assert!(busy <= wall, "{busy} of {wall} ns");
    for row in &rows {
        let buckets = row.list("buckets").expect("a histogram");
        assert_eq!(
            buckets.iter().sum::<u64>(),
            row.u64("count").expect("count")
        );
        assert!(row.u64("max_ns") <= row.u64("total_ns"), "{row:?}");
    }
}

#[test]
fn short_lived_process_is_counted_in_full() {
    let finished = Profiler::new()
        .args(["--source", "process,syscalls", "-i", "1s", "--threads"])
        .command(&[
            "sh",
            "-c",
            "i=0; while [ $i -lt 20 ]; do cat /dev/null; i=$((i+1)); done",
        ])
        .finish();
    let rows = finished.dataset().table("syscalls");
    let execs = named(&rows, "execve");
    let well = sum(&execs, "count") - sum(&execs, "errors");
    // The shell and its children.
    assert_eq!(well, 21, "{execs:?}");
    let threads: Vec<Row> = rows
        .iter()
        .filter(|row| row.u64("tid").is_some())
        .cloned()
        .collect();
    let processes: Vec<Row> = rows
        .iter()
        .filter(|row| row.u64("tid").is_none())
        .cloned()
        .collect();
    assert_eq!(sum(&threads, "count"), sum(&processes, "count"));
}
