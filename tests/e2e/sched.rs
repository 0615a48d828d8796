//! `sched`: times and counts compared with the kernel's accounting.

use std::{fs, os::unix::fs::symlink, path::Path};

use e2e::{
    dataset::Dataset,
    mounts::{self, LoopDevice, Mounted},
    procfs::{self, Bounds, Field, Reading, Sampler},
    runs::{ProcessGroup, Profiler, pid_of, wait_until},
    workload_driver::WorkloadDriver,
};
use rustix::process::{Signal, kill_process};

use crate::{WORKLOAD, cgroup::Group};

/// The sums of a target that is idle at the start and at the end are exact.
#[track_caller]
fn exact(threads: u32, command: &str) {
    let mut workload = WorkloadDriver::on_one_cpu(WORKLOAD, threads);
    let before = Reading::now(workload.pid());
    let profiler = Profiler::new()
        .args(["-i", "100ms"])
        .pid(workload.pid())
        .start();
    workload.run(command);
    let finished = profiler.interrupt();
    let after = Reading::now(workload.pid());
    let growth = |field: Field| after.sum(field) - before.sum(field);
    let row: (u64, u64, u64, u64, u64) = finished.dataset().row(
        "SELECT sum(oncpu_ns), sum(runqueue_ns), sum(runqueue_count), sum(voluntary_switches), \
         sum(involuntary_switches) FROM sched",
    );
    let truth = (
        growth(|thread| thread.oncpu_ns),
        growth(|thread| thread.runqueue_ns),
        growth(|thread| thread.arrivals),
        growth(|thread| thread.voluntary),
        growth(|thread| thread.involuntary),
    );
    assert_eq!(row, truth);
}

#[test]
fn computing_threads_are_exact_to_the_nanosecond() {
    exact(4, "burn 2000");
}

#[test]
fn five_thousand_naps_are_exact_to_the_nanosecond() {
    exact(0, "nap 5000");
}

/// Each increase lies between two readings of `/proc` around the sample. The columns in `large` are
/// also compared with the middle of these readings, within 1 % where the readings are close enough.
/// Small counts are only known up to the distance of the readings; [`exact`] tests them.
#[track_caller]
fn bracketed(threads: u32, command: &str, large: [&str; 2]) {
    let mut workload = WorkloadDriver::on_one_cpu(WORKLOAD, threads);
    let sampler = Sampler::start(workload.pid());
    workload.send(command);
    let profiler = Profiler::realtime()
        .args(["-i", "500ms"])
        .pid(workload.pid())
        .start();
    std::thread::sleep(std::time::Duration::from_millis(8_200));
    let finished = profiler.interrupt();
    schedule_each_thread(workload.pid());
    let readings = sampler.stop();
    let data = finished.dataset();
    let fields: [(&str, Field); 3] = [
        ("oncpu_ns", |thread| thread.oncpu_ns),
        ("runqueue_ns", |thread| thread.runqueue_ns),
        ("voluntary_switches", |thread| thread.voluntary),
    ];
    for (name, field) in fields {
        check_bounds(&data, &readings, name, field, large.contains(&name));
    }
}

/// Returns when each thread of a process has come to a CPU once more, also those that sleep.
fn schedule_each_thread(pid: u32) {
    let last = Reading::now(pid);
    let signal = |signal| kill_process(pid_of(pid), signal).expect("it is alive");
    signal(Signal::STOP);
    wait_until("it is stopped", || {
        let state = |tid| procfs::state(format!("/proc/{pid}/task/{tid}"));
        last.threads.keys().all(|tid| state(tid) == Some('T'))
    });
    signal(Signal::CONT);
    wait_until("each thread has come to a CPU", || {
        let now = Reading::now(pid);
        let arrivals = |reading: &Reading, tid| reading.threads[tid].arrivals;
        let mut threads = last.threads.keys();
        threads.all(|tid| arrivals(&now, tid) > arrivals(&last, tid))
    });
}

fn check_bounds(
    data: &Dataset,
    readings: &[Reading],
    name: &str,
    field: Field,
    to_the_percent: bool,
) {
    // The values of a sample are read while the source `tasks` runs, however long that takes.
    let mut ticks: Vec<(i64, i64, u64)> = data.rows(&format!(
        "SELECT epoch_ns(ts), any_value(run_ns), sum(sum({name})) OVER (ORDER BY ts) \
         FROM sched JOIN (SELECT * FROM overhead WHERE component = 'tasks') USING (ts) GROUP BY ts ORDER BY ts"
    ));
    // The time of the last one is after its reading.
    ticks.pop();
    assert!(ticks.len() >= 6, "{} ticks", ticks.len());
    let known: Vec<(i64, (u64, u64), u64)> = ticks
        .into_iter()
        .map(|(ts, reading_ns, value)| {
            let bounds = Bounds::at(readings, ts, reading_ns);
            (ts, bounds.sum(field), value)
        })
        .collect();
    let mut narrowest = f64::INFINITY;
    for (index, (start, from, before)) in known.iter().enumerate() {
        for (end, to, after) in &known[index + 1..] {
            let (low, high) = (to.0.saturating_sub(from.1), to.1 - from.0);
            let (value, ms) = (after - before, (end - start) / 1_000_000);
            assert!(
                (low..=high).contains(&value),
                "{name} in the {ms} ms after tick {index}: {value}, not within {low}..={high}"
            );
            narrowest = narrowest.min((high - low) as f64 / (high + low) as f64);
        }
    }
    assert!(
        !to_the_percent || narrowest < 0.01,
        "{name}: precision only {narrowest:.4}"
    );
}

/// Processes that wake each other and are preempted, also on their way to sleep, with a reading every
/// 10 ms. The first process waits for a CPU at the first reading.
#[test]
fn waits_of_switching_processes_are_those_of_the_scheduler() {
    let script = "for i in 1 2 3 4; do (ulimit -t 2; while :; do :; done) 2>/dev/null & done
        perf bench sched pipe -l 20000; perf bench sched messaging -g 2 -l 1000; wait; true";
    let finished = Profiler::new()
        .args(["-i", "10ms", "--source", "process,sched"])
        .command(&["sh", "-c", script])
        .finish();
    let data = finished.dataset();
    let waits: u64 = data.value("SELECT sum(count) FROM latency WHERE kind = 'runqueue'");
    assert!(waits > 40_000, "{waits}");
    let different: Vec<(u32, String, u64, u64, u64, u64)> = data.rows(
        "SELECT pid, any_value(comm), sum(s.n), sum(l.n), sum(s.ns), sum(l.ns) FROM process \
         JOIN (SELECT pid, start_ts, sum(runqueue_count) AS n, sum(runqueue_ns) AS ns \
               FROM sched GROUP BY ALL) s USING (pid, start_ts) \
         JOIN (SELECT pid, start_ts, sum(count) AS n, sum(sum_ns) AS ns \
               FROM latency GROUP BY ALL) l USING (pid, start_ts) \
         WHERE ppid IN (SELECT pid FROM process) GROUP BY ALL HAVING sum(s.n) != sum(l.n) OR sum(s.ns) != sum(l.ns)",
    );
    assert!(different.is_empty(), "{different:?}");
}

/// A kernel that takes its time from the chipset has found that the counters of the CPUs differ.
#[test]
fn wakeups_are_observed_where_clocks_differ() {
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let sysfs = directory.path();
    let source = sysfs.join("devices/system/clocksource/clocksource0");
    fs::create_dir_all(&source).expect("a directory");
    for name in ["kernel", "devices/system/cpu"] {
        symlink(Path::new("/sys").join(name), sysfs.join(name)).expect("a link");
    }
    for (clock, kind) in [("tsc", "runqueue"), ("hpet", "wakeup")] {
        fs::write(source.join("current_clocksource"), clock).expect("written");
        let finished = Profiler::new()
            .args(["-i", "100ms", "--source", "process,sched", "--sysfs"])
            .args([sysfs])
            .command(&["sh", "-c", "for i in 1 2 3; do sleep 0.1; done"])
            .finish();
        let kinds: Vec<(String,)> = finished.dataset().rows("SELECT DISTINCT kind FROM latency");
        assert_eq!(kinds, [(kind.to_owned(),)], "{clock}");
    }
}

#[test]
fn every_sample_of_computing_threads_lies_between_two_readings() {
    let large = ["oncpu_ns", "runqueue_ns"];
    bracketed(4, "burn 600000", large);
}

#[test]
fn every_sample_of_frequent_naps_lies_between_two_readings() {
    let large = ["oncpu_ns", "voluntary_switches"];
    bracketed(0, "nap 600000", large);
}

/// The times in all states add up to the elapsed time, except for stolen time.
#[test]
fn scheduler_states_sum_to_thread_time() {
    let mut workloads = [4, 0, 2].map(|threads| WorkloadDriver::new(WORKLOAD, threads));
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = directory.path().join("file");
    let write = format!(
        "while :; do dd if=/dev/zero of={} bs=64k count=64 oflag=dsync; done 2>&-",
        file.display()
    );
    let stolen_before = procfs::stolen_ns();
    let writer = ProcessGroup::spawn(&["sh", "-c", &write]);
    let mut profiler = Profiler::realtime()
        .args(["-i", "200ms", "-d", "3s"])
        .pid(writer.pid());
    for workload in &workloads {
        profiler = profiler.pid(workload.pid());
    }
    workloads[0].send("burn 4000");
    workloads[1].send("nap 4000");
    let finished = profiler.finish();
    let data = finished.dataset();
    let rows: Vec<(u32, u64, u64)> = data.rows(
        "SELECT s.pid, sum(s.oncpu_ns + s.runqueue_ns + s.sleep_ns + s.blocked_ns), sum(s.interval_ns * u.threads) \
         FROM sched s JOIN usage u USING (pid, start_ts, ts) JOIN process p USING (pid, start_ts) \
         WHERE p.end_ts IS NULL AND p.interval_ns > 2900000000 GROUP BY s.pid, start_ts",
    );
    assert_eq!(rows.len(), 4, "{rows:?}");
    // Also what was stolen from a process at the last sample, which `system` does not have yet.
    let stolen = procfs::stolen_ns() - stolen_before + procfs::TICK_NS;
    // The processes are read after the time of the sample; each has at most five threads.
    let reading: u64 = data.value("SELECT max(run_ns) FROM overhead WHERE component = 'tasks'");
    for (pid, spent, there) in &rows {
        let apart = there / 500 + 5 * reading;
        let range = there.saturating_sub(stolen + apart)..=there + apart;
        assert!(
            range.contains(spent),
            "process {pid}: {spent} ns of {there}, {stolen} stolen: {rows:?}"
        );
    }
    let blocked: u64 = data.value("SELECT sum(blocked_ns) FROM sched");
    assert!(blocked > 0, "writing to a disk waits for it");
}

/// Sleep that was reported in earlier intervals is not counted again at the wakeup.
#[test]
fn sleep_per_row_never_exceeds_the_interval() {
    let finished = Profiler::realtime()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", "sleep 0.55; sleep 0.55; sleep 0.55"])
        .finish();
    let data = finished.dataset();
    // The processes are read after the time of the sample.
    let rows: Vec<(u64, u64, u64)> = data.rows(
        "SELECT s.oncpu_ns + s.runqueue_ns + s.sleep_ns + s.blocked_ns, s.interval_ns, o.run_ns \
         FROM sched s JOIN process p USING (pid, start_ts) \
         JOIN overhead o ON o.ts = s.ts AND o.component = 'tasks' WHERE p.comm = 'sh' ORDER BY s.ts",
    );
    let taken = rows.len() as u64;
    let missed = data.missed_samples();
    assert!(
        taken + missed >= 16 && taken >= 8,
        "{missed} missed: {rows:?}"
    );
    for (spent, interval, reading) in &rows {
        assert!(*spent <= interval + interval / 100 + reading, "{rows:?}");
    }
    let (spent, there) = rows
        .iter()
        .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let reading = rows.iter().map(|row| row.2).max().expect("a row");
    assert!(
        spent.abs_diff(there) < there / 100 + reading,
        "{spent} of {there}: {rows:?}"
    );
}

const READS: u64 = 50;
const PER_SECOND: u64 = 50;

/// A cgroup with a limit of reads or writes per second of a disk, with v1 or v2.
pub fn slow_group(disk: &str, operation: &str) -> Group {
    let number = fs::read_to_string(format!("/sys/block/{disk}/dev")).expect("a disk");
    let number = number.trim();
    let hierarchies = fs::read_to_string("/proc/cgroups").expect("cgroups");
    let mut controllers = hierarchies.lines().map(str::split_whitespace);
    let of_v1 = controllers.any(|mut words| {
        words.next() == Some("blkio") && words.next().is_some_and(|hierarchy| hierarchy != "0")
    });
    let (group, file, limit) = if of_v1 {
        let group = Group::new(&["-t", "cgroup", "-o", "blkio"]);
        let limit = format!("{number} {PER_SECOND}");
        let file = format!("blkio.throttle.{operation}_iops_device");
        (group, file, limit)
    } else {
        let group = Group::new(&["-t", "cgroup2"]);
        let limit = format!("{number} {}iops={PER_SECOND}", &operation[..1]);
        (group, "io.max".to_owned(), limit)
    };
    fs::write(group.outer().join(file), limit).expect("a limit");
    group
}

/// Direct reads wait uninterruptibly.
#[test]
fn direct_reads_of_a_slow_disk_count_as_blocked() {
    let place = mounts::directory();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let disk = LoopDevice::new(&place.path().join("memory/image"), 16);
    let group = slow_group(disk.name(), "read");
    let script = format!(
        "echo $$ > {}/cgroup.procs; exec dd if={} of=/dev/null bs=4k count={READS} iflag=direct status=none",
        group.outer().display(),
        disk.path()
    );
    let finished = Profiler::new().command(&["sh", "-c", &script]).finish();
    let (blocked, waiting, asleep, there): (u64, u64, u64, u64) = finished.dataset().row(
        "SELECT sum(blocked_ns), sum(runqueue_ns), sum(sleep_ns), sum(s.interval_ns) FROM sched s \
         JOIN process USING (pid, start_ts) WHERE comm = 'dd'",
    );
    // The cgroup controller admits the reads of 100 ms at once.
    let least = (READS * 1_000_000_000 / PER_SECOND) * 8 / 10;
    // While it waits for a CPU, the next read becomes due.
    assert!(
        blocked < there && blocked + waiting >= least && blocked > least / 2,
        "{blocked} of {there} ns blocked and {waiting} waiting, not {least} or more"
    );
    // On a busy machine, the move to the cgroup takes a while.
    assert!(asleep * 2 < there, "{asleep} of {there} ns asleep");
}
