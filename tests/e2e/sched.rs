//! `sched`: on-CPU and run-queue time against the kernel's own account.

use std::fs;

use e2e::{
    dataset::Dataset,
    mounts::{self, LoopDevice, Mounted},
    procfs::{Bounds, Field, Reading, Sampler},
    puppet::Puppet,
    runs::{Kept, Profiler},
};

use crate::{WORKLOAD, cgroup::Group};

/// A target that rests when the profiler starts and when it stops leaves nothing under way: no tolerance at all.
#[track_caller]
fn exact(mut puppet: Puppet, order: &str) {
    let before = Reading::now(puppet.pid());
    let profiler = Profiler::new()
        .args(["-i", "100ms"])
        .pid(puppet.pid())
        .start();
    puppet.tell(order);
    let finished = profiler.interrupt();
    let after = Reading::now(puppet.pid());
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
    exact(Puppet::new(WORKLOAD, 4), "burn 2000");
}

#[test]
fn five_thousand_naps_are_exact_to_the_nanosecond() {
    exact(Puppet::new(WORKLOAD, 0), "nap 5000");
}

/// Between any two ticks, what was counted lies between two readings of the files just before and just after; and
/// what is `large` within 1 % of their middle, where the two lie close enough to tell. A few switches, or the short
/// waits of who mostly sleeps, are known no better than between readings; the sums of a target that rests at both
/// ends are exact.
#[track_caller]
fn bracketed(mut puppet: Puppet, order: &str, large: [&str; 2]) {
    let sampler = Sampler::start(puppet.pid());
    puppet.order(order);
    let profiler = Profiler::undelayed().pid(puppet.pid()).start();
    std::thread::sleep(std::time::Duration::from_millis(5_200));
    let finished = profiler.interrupt();
    puppet.wait();
    let readings = sampler.stop();
    let data = finished.dataset();
    let fields: [(&str, Field); 3] = [
        ("oncpu_ns", |thread| thread.oncpu_ns),
        ("runqueue_ns", |thread| thread.runqueue_ns),
        ("voluntary_switches", |thread| thread.voluntary),
    ];
    for (name, field) in fields {
        check(&data, &readings, name, field, large.contains(&name));
    }
}

fn check(data: &Dataset, readings: &[Reading], name: &str, field: Field, to_the_percent: bool) {
    // A tick's values are read while the source `tasks` works, however long it is kept from its CPU.
    let ticks: Vec<(i64, i64, u64)> = data.rows(&format!(
        "SELECT epoch_ns(ts), any_value(run_ns), sum(sum({name})) OVER (ORDER BY ts) \
         FROM sched JOIN (SELECT * FROM overhead WHERE component = 'tasks') USING (ts) GROUP BY ts ORDER BY ts"
    ));
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
        "{name}: known to {narrowest:.4} only"
    );
}

#[test]
fn every_sample_of_computing_threads_lies_between_two_readings() {
    let large = ["oncpu_ns", "runqueue_ns"];
    bracketed(Puppet::new(WORKLOAD, 4), "burn 7500", large);
}

#[test]
fn every_sample_of_frequent_naps_lies_between_two_readings() {
    let large = ["oncpu_ns", "voluntary_switches"];
    bracketed(Puppet::new(WORKLOAD, 0), "nap 7000", large);
}

/// Where the time went adds up to the time there was, without what a hypervisor took.
#[test]
fn scheduler_states_sum_to_thread_time() {
    let mut puppets = [4, 0, 2].map(|threads| Puppet::new(WORKLOAD, threads));
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = directory.path().join("file");
    let write = format!(
        "while :; do dd if=/dev/zero of={} bs=64k count=64 oflag=dsync; done 2>&-",
        file.display()
    );
    let writer = Kept::spawn(&["sh", "-c", &write]);
    let mut profiler = Profiler::new()
        .args(["-i", "200ms", "-d", "3s"])
        .pid(writer.pid());
    for puppet in &puppets {
        profiler = profiler.pid(puppet.pid());
    }
    puppets[0].order("burn 4000");
    puppets[1].order("nap 4000");
    let finished = profiler.finish();
    let data = finished.dataset();
    let rows: Vec<(u32, u64, u64)> = data.rows(
        "SELECT s.pid, sum(s.oncpu_ns + s.runqueue_ns + s.sleep_ns + s.blocked_ns), sum(s.interval_ns * u.threads) \
         FROM sched s JOIN usage u USING (pid, start_ts, ts) JOIN process p USING (pid, start_ts) \
         WHERE p.end_ts IS NULL AND p.interval_ns > 2900000000 GROUP BY s.pid, start_ts",
    );
    assert_eq!(rows.len(), 4, "{rows:?}");
    let stolen: u64 = data.value("SELECT coalesce(sum(steal_ns), 0) FROM system");
    for (pid, spent, there) in &rows {
        let range = there.saturating_sub(stolen + there / 100)..=there + there / 100;
        assert!(
            range.contains(spent),
            "process {pid}: {spent} ns of {there}, {stolen} stolen: {rows:?}"
        );
    }
    let blocked: u64 = data.value("SELECT sum(blocked_ns) FROM sched");
    assert!(blocked > 0, "writing to a disk waits for it");
}

/// What slept through whole intervals is not counted again when it wakes.
#[test]
fn sleep_per_row_never_exceeds_the_interval() {
    let finished = Profiler::new()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", "sleep 0.55; sleep 0.55; sleep 0.55"])
        .finish();
    let rows: Vec<(u64, u64)> = finished.dataset().rows(
        "SELECT s.oncpu_ns + s.runqueue_ns + s.sleep_ns + s.blocked_ns, s.interval_ns \
         FROM sched s JOIN process p USING (pid, start_ts) WHERE p.comm = 'sh' ORDER BY s.ts",
    );
    assert!(rows.len() >= 16, "{rows:?}");
    for (spent, interval) in &rows {
        assert!(*spent <= interval + interval / 100, "{rows:?}");
    }
    let (spent, there) = rows
        .iter()
        .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    assert!(
        spent.abs_diff(there) * 100 < there,
        "{spent} of {there}: {rows:?}"
    );
}

const READS: u64 = 50;
const READS_PER_SECOND: u64 = 50;

/// A group whose members get so many reads a second of a disk, by the controller of either version.
fn slow_group(disk: &LoopDevice) -> Group {
    let number = fs::read_to_string(format!("/sys/block/{}/dev", disk.name())).expect("a disk");
    let number = number.trim();
    let hierarchies = fs::read_to_string("/proc/cgroups").expect("cgroups");
    let mut controllers = hierarchies.lines().map(str::split_whitespace);
    let of_v1 = controllers.any(|mut words| {
        words.next() == Some("blkio") && words.next().is_some_and(|hierarchy| hierarchy != "0")
    });
    let (group, file, limit) = if of_v1 {
        let group = Group::new(&["-t", "cgroup", "-o", "blkio"]);
        let limit = format!("{number} {READS_PER_SECOND}");
        (group, "blkio.throttle.read_iops_device", limit)
    } else {
        let group = Group::new(&["-t", "cgroup2"]);
        let limit = format!("{number} riops={READS_PER_SECOND}");
        (group, "io.max", limit)
    };
    fs::write(group.outer().join(file), limit).expect("a limit");
    group
}

/// Who reads directly from a disk that is slow waits for it uninterruptibly.
#[test]
fn direct_reads_of_a_slow_disk_count_as_blocked() {
    let place = mounts::directory();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let disk = LoopDevice::new(&place.path().join("memory/image"), 16);
    let group = slow_group(&disk);
    let script = format!(
        "echo $$ > {}/cgroup.procs; exec dd if={} of=/dev/null bs=4k count={READS} iflag=direct status=none",
        group.outer().display(),
        disk.path()
    );
    let finished = Profiler::new().command(&["sh", "-c", &script]).finish();
    let (blocked, asleep, there): (u64, u64, u64) = finished.dataset().row(
        "SELECT sum(blocked_ns), sum(sleep_ns), sum(s.interval_ns) FROM sched s JOIN process USING (pid, start_ts) \
         WHERE comm = 'dd'",
    );
    // The controller lets through at once what a tenth of a second allows.
    let least = (READS * 1_000_000_000 / READS_PER_SECOND) * 8 / 10;
    assert!(
        (least..there).contains(&blocked),
        "{blocked} of {there} ns blocked, not {least} or more"
    );
    assert!(asleep * 10 < there, "{asleep} of {there} ns asleep");
}
