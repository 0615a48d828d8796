//! The time that a row of `process` covers: that of a started command without the profiler's own,
//! the run without the time before it, and the whole life.

use std::time::Duration;

use e2e::{
    dataset::Dataset,
    procfs,
    runs::{Profiler, pid_of, wait_until},
    setting,
    workload_driver::WorkloadDriver,
};
use rustix::process::{Signal, kill_process};

use crate::WORKLOAD;

/// A field of /proc/PID/status, in bytes.
fn status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = text.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.expect("a number").parse::<u64>().expect("a number") * 1024
}

/// Compared with the kernel's `VmHWM`, which starts at exec. The command is larger than the launcher
/// from which it is forked (3 MB), and smaller than the profiler (30 MB). It is killed, because a
/// regular exit touches more pages.
#[test]
fn command_row_has_its_own_peak_rss() {
    let program = "my $memory = 'x' x (4 << 20); sleep 600";
    let profiler = Profiler::realtime()
        .args(["-i", "100ms"])
        .command(&["perl", "-e", program])
        .start();
    let pid = procfs::children(profiler.pid())[0];
    wait_until("it sleeps", || {
        status(pid, "VmRSS:") > 4 << 20 && procfs::is_idle(pid)
    });
    let peak = status(pid, "VmHWM:");
    Dataset::new(profiler.run_dir()).wait_for_samples("system", 2);
    kill_process(pid_of(pid), Signal::KILL).expect("it lives");
    let finished = profiler.finish();
    assert_eq!(finished.code(), 137, "{}", finished.stderr);
    let data = finished.any_dataset();
    let ours: u64 = data.value("SELECT peak_rss FROM process");
    // The reading of the idle process is exact. The kernel's value of an ended process
    // (`ru_maxrss`) lacks the per-CPU parts of three counters, which can be negative: less than a
    // batch each (lib/percpu_counter.c).
    let cpus = std::thread::available_parallelism().expect("known").get() as u64;
    let page = rustix::param::page_size() as u64;
    let pending = 3 * cpus * (cpus * 2).max(32) * page;
    // The process has run on a few CPUs only.
    let pending = pending.min(peak / 2);
    assert!(
        (peak..peak + pending).contains(&ours),
        "{ours} bytes, the kernel has {peak}"
    );
}

/// The command only sleeps: neither the start of the profiler nor its messages to the command are
/// included.
#[test]
fn command_row_covers_its_own_life() {
    let lived = || {
        let finished = Profiler::realtime()
            .args(["-i", "100ms"])
            .command(&["sleep", "0.5"])
            .finish();
        let data = finished.dataset();
        let (rows, lived): (u64, i64) = data
            .row("SELECT count(*), any_value(epoch_ns(end_ts) - epoch_ns(start_ts)) FROM process");
        assert_eq!(rows, 1, "only the command is the target");
        let messages: u64 = data.value("SELECT count(*) FROM net_io");
        assert_eq!(messages, 0);
        let lived = Duration::from_nanos(lived.try_into().expect("not before it began"));
        assert!(lived >= Duration::from_millis(500), "{lived:?}");
        lived
    };
    // The baselines are read between fork and exec. A machine that stalls delays some of the runs.
    let most = Duration::from_millis(650);
    assert!(
        (0..5).any(|_| lived() < most),
        "five times more than {most:?}"
    );
}

#[test]
fn profiler_excludes_itself_from_its_parent_shell() {
    let finished =
        Profiler::wrapped_in(&["sh", "-c", "\"$@\" -i 100ms -d 500ms --pid $$; :", "sh"]).finish();
    let data = finished.dataset();
    let names: Vec<(String,)> = data.rows("SELECT DISTINCT comm FROM process");
    assert_eq!(names, [("sh".to_owned(),)]);
}

/// The parent's name at the time of the fork, although it executes another program later.
#[test]
fn started_by_is_the_forking_process() {
    let finished = Profiler::new()
        .command(&["sh", "-c", "/bin/true; exec sleep 0.3"])
        .finish();
    let data = finished.dataset();
    let (name,): (String,) = data.row("SELECT started_by FROM process WHERE comm = 'true'");
    assert_eq!(name, "sh");
    let parents: u64 = data.value("SELECT count(*) FROM process WHERE comm = 'sleep'");
    assert_eq!(parents, 1);
}

#[test]
fn totals_cover_the_run_and_life_columns_the_life() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 1);
    workload.run("burn 500");
    let before = procfs::Reading::now(workload.pid());
    let profiler = Profiler::new()
        .args(["-i", "100ms"])
        .pid(workload.pid())
        .start();
    workload.run("burn 300");
    let after = procfs::Reading::now(workload.pid());
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let (run, life, sched, user_system): (u64, u64, u64, u64) = data.row(
        "SELECT oncpu_ns, lifetime_oncpu_ns, (SELECT sum(oncpu_ns)::UBIGINT FROM sched), user_ns + system_ns FROM process",
    );
    assert_eq!(run, sched);
    assert_eq!(user_system, run);
    let oncpu = |reading: &procfs::Reading| -> u64 {
        reading.threads.values().map(|thread| thread.oncpu_ns).sum()
    };
    let (before, after) = (oncpu(&before), oncpu(&after));
    assert!(before > 50_000_000, "{before} ns before the run");
    // The workload is idle between these readings and those of the profiler.
    let room = 20_000_000;
    assert!(
        run.abs_diff(after - before) < room,
        "{run} of {before}..{after}"
    );
    assert!(
        life.abs_diff(after) < room,
        "{life}, the kernel has {after}"
    );
}

/// Children that share memory with their parent: the sum of RSS counts it once per child, the sum
/// of PSS once.
#[test]
fn pss_sum_counts_shared_memory_once() {
    const SHARED: u64 = 64 << 20;
    const CHILDREN: u64 = 20;
    // How much the two may differ: the profiler reads at other times.
    const APART: u64 = 4 << 20;
    let directory = tempfile::TempDir::new().expect("a directory");
    let end = directory.path().join("end");
    let script = format!(
        "import os, sys, time\nheld = bytearray({SHARED})\nfor _ in range({CHILDREN}):\n    \
         if os.fork() == 0: break\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)"
    );
    let python = setting("PROFILER_TEST_PYTHON");
    let profiler = Profiler::new()
        .args(["-i", "100ms"])
        .command(&[&python, "-c", &script, end.to_str().expect("UTF-8")])
        .start();
    let parent = procfs::children(profiler.pid())[0];
    let family = || procfs::children(parent).into_iter().chain([parent]);
    wait_until("all processes wait", || {
        family().count() as u64 == CHILDREN + 1 && family().all(procfs::is_idle)
    });
    let pss: u64 = family().map(pss_of).sum();
    let data = Dataset::new(profiler.run_dir());
    data.wait_for_row("timeline", "the memory of all is read", |row| {
        let found = row.u64("target_pss_sum");
        found.is_some_and(|found| found + APART > pss)
    });
    std::fs::write(end, "").expect("written");
    let finished = profiler.finish();
    let data = finished.dataset();
    let (rss, ours): (u64, u64) =
        data.row("SELECT max(target_rss_sum), max(target_pss_sum) FROM timeline");
    assert!(rss > SHARED * CHILDREN, "{rss} bytes");
    let apart = ours.abs_diff(pss);
    assert!(apart < APART, "{ours}, the kernel has {pss}");
    assert!(finished.stderr.contains("peak ≥"), "{}", finished.stderr);
}

fn pss_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives");
    let line = text.lines().find(|line| line.starts_with("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.expect("a number").parse::<u64>().expect("a number") * 1024
}

/// The first Ctrl-C is forwarded to the command; the second ends the profiler, which reports that
/// the command continues.
#[test]
fn command_outliving_the_profiler_is_reported() {
    // It ends when its parent has ended.
    let script = "trap 'echo caught >&2' INT; echo ready >&2
        while read _ _ _ parent _ < /proc/$$/stat && [ $parent = $PPID ]; do sleep 0.05; done";
    let mut profiler = Profiler::new().command(&["sh", "-c", script]).start();
    profiler.wait_until_reported("ready");
    profiler.signal(Signal::INT);
    profiler.wait_for("caught");
    profiler.signal(Signal::INT);
    let finished = profiler.finish();
    assert_eq!(finished.code(), 130);
    let reported = finished
        .stderr
        .contains("it continues without the profiler");
    assert!(reported, "{}", finished.stderr);
    finished.any_dataset().assert_complete();
}
