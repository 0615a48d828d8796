//! `usage`: the BPF iterator and the `/proc` fallback agree with the files of /proc/PID.

use std::fs;

use e2e::{
    dataset::Dataset,
    procfs::{self, Reading, number},
    runs::Profiler,
    setting,
    workload_driver::WorkloadDriver,
};

use crate::{WORKLOAD, errors::WITHOUT_BTF};

/// Counters of /proc/PID, in the order of [`COUNTERS`].
fn counters(pid: u32) -> [u64; 9] {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is alive");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("stat").1.split(' ').collect();
    // proc_pid_stat(5) numbers fields from 1; the field after the name is the third.
    let field = |number: usize| fields[number - 3].parse::<u64>().expect("a number");
    let reading = Reading::now(pid);
    [
        field(10),
        field(12),
        number(pid, "io", "rchar"),
        number(pid, "io", "wchar"),
        number(pid, "io", "syscr"),
        number(pid, "io", "syscw"),
        number(pid, "io", "read_bytes"),
        number(pid, "io", "write_bytes"),
        reading.sum(|thread| thread.voluntary),
    ]
}

const COUNTERS: &str = "sum(minor_faults), sum(major_faults), sum(read_chars), sum(write_chars), \
     sum(read_syscalls), sum(write_syscalls), sum(read_bytes), sum(write_bytes), sum(voluntary_switches)";

/// Gauges of /proc/PID, in the order of [`GAUGES`].
fn gauges(pid: u32) -> [u64; 8] {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("it is alive");
    let pages: Vec<u64> = statm
        .split_whitespace()
        .map(|pages| pages.parse().expect("a number"))
        .collect();
    let page = rustix::param::page_size() as u64;
    let kib = |file, name| number(pid, file, name) * 1024;
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("it is alive");
    [
        // From a walk of the page tables, which does not lag.
        kib("smaps_rollup", "Rss"),
        pages[0] * page,
        pages[2] * page,
        pages[3] * page,
        pages[5] * page,
        kib("status", "VmSwap"),
        procfs::thread_ids(pid).len() as u64,
        fds.count() as u64,
    ]
}

const GAUGES: &str = "rss, vms, shared, text, data, swap, threads, fds";

fn last(data: &Dataset, columns: &str) -> Vec<u64> {
    data.row(&format!(
        "SELECT {columns} FROM usage ORDER BY ts DESC LIMIT 1"
    ))
}

#[track_caller]
fn assert_usage_matches_proc(wrapper: &[&str]) {
    let mut workload = WorkloadDriver::new(WORKLOAD, 2);
    let pid = workload.pid();
    // The system calls come first: page faults of their first execution are not counted.
    workload.run("read 1");
    let before = counters(pid);
    let cpu_before = Reading::now(pid).sum(|thread| thread.oncpu_ns);
    let profiler = Profiler::wrapped_in(wrapper)
        .args(["-i", "100ms"])
        .pid(pid)
        .start();
    workload.run("touch 50000000");
    workload.run("open 37");
    workload.run("read 1000");
    workload.run("write 700");
    workload.run("burn 300");
    workload.run("touch 1234567");
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let (after, cpu_after) = (
        counters(pid),
        Reading::now(pid).sum(|thread| thread.oncpu_ns),
    );
    let growth: Vec<u64> = std::iter::zip(after, before)
        .map(|(after, before)| after - before)
        .collect();
    let counted: Vec<u64> = data.row(&format!("SELECT {COUNTERS} FROM usage"));
    assert_eq!(counted, growth, "{COUNTERS}");
    // Counts that are known from the workload.
    assert!(
        (1000 * 4096..1000 * 4096 + 4096).contains(&counted[2]),
        "{counted:?}"
    );
    assert!(
        (700 * 4096..700 * 4096 + 4096).contains(&counted[3]),
        "{counted:?}"
    );
    assert!(
        counted[0] >= (50_000_000 + 1_234_567) / 4096 / 512,
        "{counted:?}"
    );
    assert_eq!(last(&data, GAUGES), gauges(pid), "{GAUGES}");
    // The share of a page changes with the other processes that map it.
    let (uss, pss, rss): (u64, u64, u64) =
        data.row("SELECT uss, pss, rss FROM usage ORDER BY ts DESC LIMIT 1");
    assert!(uss < pss && pss < rss, "{uss} {pss} {rss}");
    let private = number(pid, "smaps_rollup", "Private_Dirty") * 1024;
    assert!(uss >= private, "{uss}, of which {private} are dirty");
    let state: String = data.value("SELECT state FROM usage ORDER BY ts DESC LIMIT 1");
    assert_eq!(state, "S");
    let cpu: u64 = data.value("SELECT sum(user_ns + system_ns) FROM usage");
    let truth = cpu_after - cpu_before;
    // The division into user and system time truncates to 1 ns, /proc/PID/stat to a clock tick.
    let precision = if wrapper.is_empty() { 100 } else { 20_000_000 };
    assert!(cpu.abs_diff(truth) <= precision, "{cpu} ns, not {truth}");
}

#[test]
fn bpf_iterator_matches_proc() {
    assert_usage_matches_proc(&[]);
}

#[test]
fn proc_fallback_matches_proc() {
    assert_usage_matches_proc(&WITHOUT_BTF);
}

/// Compares counts, not times: that on a CPU of a running thread can include time that the hypervisor
/// is stealing, which remains in the rows of a thread that ends before its next reading.
#[track_caller]
fn assert_threads_sum_to_processes(data: &Dataset) {
    let counts = |rows: &str| -> (u64, u64, u64, u64) {
        data.row(&format!(
            "SELECT sum(runqueue_count), sum(voluntary_switches), sum(involuntary_switches), \
             sum(migrations) FROM sched WHERE {rows}"
        ))
    };
    assert_eq!(counts("tid IS NULL"), counts("tid IS NOT NULL"));
}

#[test]
fn thread_rows_sum_to_their_process() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 3);
    let profiler = Profiler::new()
        .args(["-i", "200ms", "--threads"])
        .pid(workload.pid())
        .start();
    workload.run("burn 300");
    workload.run("threads 20");
    let finished = profiler.interrupt();
    let data = finished.dataset();
    assert_threads_sum_to_processes(&data);
    let (all, busy): (u64, u64) = data.row(
        "SELECT count(*), count(*) FILTER (oncpu > 0) FROM \
         (SELECT tid, sum(oncpu_ns) AS oncpu FROM sched WHERE tid IS NOT NULL GROUP BY tid)",
    );
    // The main thread, three permanent threads, and twenty that live less than an interval.
    assert_eq!((all, busy), (24, 24));
}

/// CPU time without an interval has no rate. Threads start and end during the readings as well.
#[test]
fn rows_of_short_lived_threads_have_an_interval() {
    let script = "import threading
for _ in range(30000):
    thread = threading.Thread(target=len, args=((),))
    thread.start()
    thread.join()";
    let finished = Profiler::new()
        .args(["-i", "10ms", "--threads"])
        .command(&[&setting("PROFILER_TEST_PYTHON"), "-c", script])
        .finish();
    let data = finished.dataset();
    let threads: u64 = data.value("SELECT count(DISTINCT tid) FROM usage WHERE tid IS NOT NULL");
    assert!(threads >= 20_000, "{threads}");
    let empty: Vec<(u64, u64, String)> = data.rows(
        "SELECT tid, epoch_us((SELECT max(ts) FROM usage)) - epoch_us(ts), state FROM usage
         WHERE tid IS NOT NULL AND interval_ns = 0",
    );
    assert_eq!(empty, []);
    let (rows, keys): (u64, u64) =
        data.row("SELECT count(*), count(DISTINCT (ts, tid)) FROM usage WHERE tid IS NOT NULL");
    assert_eq!(rows, keys);
    assert_threads_sum_to_processes(&data);
}
