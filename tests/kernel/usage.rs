//! `usage` compared with `/proc`, for the members that differ most between kernels.

use std::fs;

use e2e::{
    procfs::{number, thread_ids},
    rows::{Row, sum},
    runs::Profiler,
    workload_driver::WorkloadDriver,
};

use crate::{WORKLOAD, programs::UNUSED_HELPERS};

const COUNTERS: [(&str, &str); 4] = [
    ("read_chars", "rchar"),
    ("write_chars", "wchar"),
    ("read_syscalls", "syscr"),
    ("write_syscalls", "syscw"),
];

#[test]
fn counters_and_gauges_match_proc() {
    for unused_helpers in ["", "BPF_FUNC_loop"] {
        match_proc(unused_helpers);
    }
}

fn match_proc(unused_helpers: &str) {
    let mut workload = WorkloadDriver::new(WORKLOAD, 2);
    let pid = workload.pid();
    let io = |name| number(pid, "io", name);
    let before = COUNTERS.map(|(_, name)| io(name));
    let profiler = Profiler::new()
        .args(["-i", "1s"])
        .env(UNUSED_HELPERS, unused_helpers)
        .pid(pid)
        .start();
    workload.run("touch 30000000");
    workload.run("open 37");
    workload.run("read 500");
    workload.run("write 300");
    let finished = profiler.interrupt();
    let rows = finished.dataset().table("usage");
    for ((column, name), before) in COUNTERS.iter().zip(before) {
        assert_eq!(sum(&rows, column), io(name) - before, "{column}");
    }
    let last = rows.iter().max_by_key(|row| row.i64("ts"));
    check_gauges(pid, last.expect("a row"));
}

fn check_gauges(pid: u32, row: &Row) {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("it is alive");
    let page = rustix::param::page_size() as u64;
    let sizes: Vec<u64> = statm
        .split_whitespace()
        .map(|pages| pages.parse::<u64>().expect("a number") * page)
        .collect();
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("it is alive");
    let gauges = [
        ("vms", sizes[0]),
        ("shared", sizes[2]),
        ("text", sizes[3]),
        ("data", sizes[5]),
        ("swap", 0),
        ("threads", thread_ids(pid).len() as u64),
        ("fds", fds.count() as u64),
    ];
    for (column, truth) in gauges {
        assert_eq!(row.u64(column), Some(truth), "{column}");
    }
    // Kernels before 6.2 keep a part of the counters in the threads, which neither the profiler nor
    // statm reads; later ones keep a part on each CPU, which the profiler reads and statm does not.
    let walked = number(pid, "smaps_rollup", "Rss") * 1024;
    let rss = row.u64("rss").expect("a number");
    assert!(
        [walked, sizes[1]].contains(&rss),
        "rss is {rss}, not {walked}, nor {}",
        sizes[1]
    );
    assert_eq!(row.text("state"), Some("S"));
}
