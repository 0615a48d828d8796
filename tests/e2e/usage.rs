//! `usage`: the BPF iterator and /proc tell the same as the files of /proc/PID.

use std::fs;

use e2e::{
    dataset::Dataset,
    procfs::{self, Reading, number},
    puppet::Puppet,
    runs::Profiler,
};

use crate::{WORKLOAD, errors::WITHOUT_BTF};

/// Counters of /proc/PID, in the order of [`COUNTERS`].
fn counters(pid: u32) -> [u64; 9] {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is alive");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("stat").1.split(' ').collect();
    // Fields are numbered from 1 in proc_pid_stat(5); the third is the first here.
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
        // By walking the page tables: no counter that could lag.
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
fn usage_is_what_proc_says(wrapper: &[&str]) {
    let mut puppet = Puppet::new(WORKLOAD, 2);
    let pid = puppet.pid();
    // The system is asked first: what it reads of the program for the first time is no counter of ours.
    puppet.tell("read 1");
    let before = counters(pid);
    let cpu_before = Reading::now(pid).sum(|thread| thread.oncpu_ns);
    let profiler = Profiler::within(wrapper)
        .args(["-i", "100ms"])
        .pid(pid)
        .start();
    puppet.tell("touch 50000000");
    puppet.tell("open 37");
    puppet.tell("read 1000");
    puppet.tell("write 700");
    puppet.tell("burn 300");
    puppet.tell("touch 1234567");
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
    // And these are the ones we know without asking anybody.
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
    // A page's share changes with the other processes that have it.
    let (uss, pss, rss): (u64, u64, u64) =
        data.row("SELECT uss, pss, rss FROM usage ORDER BY ts DESC LIMIT 1");
    assert!(uss < pss && pss < rss, "{uss} {pss} {rss}");
    let private = number(pid, "smaps_rollup", "Private_Dirty") * 1024;
    assert!(uss >= private, "{uss}, of which {private} are dirty");
    let state: String = data.value("SELECT state FROM usage ORDER BY ts DESC LIMIT 1");
    assert_eq!(state, "S");
    let cpu: u64 = data.value("SELECT sum(user_ns + system_ns) FROM usage");
    let truth = cpu_after - cpu_before;
    // The kernel's division into user and system drops fractions of a ns, /proc/PID/stat those of a clock tick.
    let precision = if wrapper.is_empty() { 100 } else { 20_000_000 };
    assert!(cpu.abs_diff(truth) <= precision, "{cpu} ns, not {truth}");
}

#[test]
fn bpf_iterator_matches_proc() {
    usage_is_what_proc_says(&[]);
}

#[test]
fn proc_fallback_matches_proc() {
    usage_is_what_proc_says(&WITHOUT_BTF);
}

#[test]
fn thread_rows_sum_to_their_process() {
    let mut puppet = Puppet::new(WORKLOAD, 3);
    let profiler = Profiler::new()
        .args(["-i", "200ms", "--threads"])
        .pid(puppet.pid())
        .start();
    puppet.tell("burn 300");
    puppet.tell("threads 20");
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let (process, threads): (u64, u64) = data.row(
        "SELECT sum(oncpu_ns) FILTER (tid IS NULL), sum(oncpu_ns) FILTER (tid IS NOT NULL) FROM sched",
    );
    assert_eq!(process, threads);
    let (all, busy): (u64, u64) = data.row(
        "SELECT count(*), count(*) FILTER (oncpu > 0) FROM \
         (SELECT tid, sum(oncpu_ns) AS oncpu FROM sched WHERE tid IS NOT NULL GROUP BY tid)",
    );
    // The first one, three that stay, and twenty that live for less than an interval.
    assert_eq!((all, busy), (24, 24));
}
