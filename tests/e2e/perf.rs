//! `perf`: tests that need time measurements, a prepared environment or DuckDB.

use e2e::{dataset::Dataset, runs::Profiler, workload_driver::WorkloadDriver};

use crate::{
    WORKLOAD,
    cgroup::{Group, put},
    errors::WITHOUT_BTF,
};

/// The limit is 3 ms. The shortest reading is that without other work on the machine.
#[test]
fn hundred_threads_are_read_quickly() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 99);
    let profiler = Profiler::new()
        .args(["-i", "100ms", "--source", "perf,process,overhead"])
        .args([
            "--events",
            "{task-clock,minor-faults},{context-switches,cpu-migrations}",
        ])
        .pid(workload.pid())
        .start();
    workload.run("burn 2000");
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let (ticks, shortest, rows): (u64, f64, u64) = data.row(
        "SELECT count(*), min(run_ns / runs), sum(rows) FROM overhead WHERE component = 'perf'",
    );
    assert!(
        ticks + data.missed_samples() >= 20 && rows >= 4 * ticks,
        "{ticks} ticks, {rows} rows"
    );
    println!("{:.1} µs a tick", shortest / 1e3);
    assert!(shortest < 3e6, "{shortest} ns");
    // The sum includes all 100 threads, which burned for 2 s on all CPUs.
    let cpus = std::thread::available_parallelism().expect("known").get() as f64;
    let clock: f64 =
        data.value("SELECT sum(\"count\") FROM process_perf_event WHERE event = 'task-clock' AND comm = 'workload'");
    assert!(clock > 1e9 && clock < 4e9 * cpus, "{clock} ns");
    let (enabled, running): (u64, u64) =
        data.row("SELECT sum(enabled_ns), sum(running_ns) FROM perf_event");
    assert_eq!(enabled, running, "the kernel's own events need no counter");
}

#[test]
fn processes_are_counted_after_joining_the_cgroup() {
    let group = Group::new(&["-t", "cgroup2"]);
    let mut member = WorkloadDriver::new(WORKLOAD, 0);
    let mut joins = WorkloadDriver::new(WORKLOAD, 0);
    put(member.pid(), group.outer());
    let profiler = Profiler::new()
        .args([
            "-i",
            "100ms",
            "--source",
            "perf,system",
            "--events",
            "minor-faults",
        ])
        .args(["--cgroup".as_ref(), group.outer().as_os_str()])
        .start();
    joins.run("touch 10000000");
    put(joins.pid(), group.outer());
    Dataset::new(profiler.run_dir()).wait_for_samples("system", 3);
    joins.run("touch 20000000");
    member.run("touch 5000000");
    member.run("spin-child 1000");
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let faults = |pid: u32| -> u64 {
        data.value(&format!(
            "SELECT coalesce(sum(count_raw), 0) FROM perf_event WHERE scope = 'process' AND id = {pid}"
        ))
    };
    let page = rustix::param::page_size() as u64;
    let (member, joined) = (faults(member.pid()), faults(joins.pid()));
    assert!(member >= 5_000_000 / page, "{member}");
    let range = 20_000_000 / page..20_000_000 / page + 1000;
    assert!(range.contains(&joined), "{joined}, not in {range:?}");
    let opened: u64 = data.value("SELECT count(DISTINCT id) FROM perf_event");
    assert_eq!(opened, 2, "the child is counted with its parent");
}

#[test]
fn processes_are_counted_without_bpf() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 2);
    let profiler = Profiler::wrapped_in(&WITHOUT_BTF)
        .args([
            "-i",
            "100ms",
            "--source",
            "perf",
            "--events",
            "minor-faults",
        ])
        .pid(workload.pid())
        .start();
    workload.run("touch 20000000");
    workload.run("spin-child 1000");
    workload.run("nap 200");
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let (faults, opened): (u64, u64) = data
        .row("SELECT sum(count_raw), count(DISTINCT id) FROM perf_event WHERE scope = 'process'");
    let page = rustix::param::page_size() as u64;
    let range = 20_000_000 / page..20_000_000 / page + 2000;
    assert!(range.contains(&faults), "{faults}, not in {range:?}");
    assert_eq!(opened, 1);
}

/// One line with the remedy; the other sources continue.
#[test]
fn low_file_limit_is_reported() {
    let workload = WorkloadDriver::new(WORKLOAD, 40);
    let finished = Profiler::wrapped_in(&["prlimit", "--nofile=200:200"])
        .args([
            "-i",
            "100ms",
            "--source",
            "perf,usage",
            "--groups",
            "SW",
            "-d",
            "500ms",
        ])
        .pid(workload.pid())
        .finish();
    let data = finished.dataset();
    let lines = finished
        .stderr
        .lines()
        .filter(|line| line.contains("too many open files"));
    assert_eq!(lines.count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("ulimit -n"), "{}", finished.stderr);
    // The events leave descriptors for the tables.
    assert!(!finished.stderr.contains("journal"), "{}", finished.stderr);
    assert!(!data.table("usage").is_empty());
}
