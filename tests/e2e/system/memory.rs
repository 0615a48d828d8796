//! The memory limit of the profiler's own cgroup.

use std::{fs, path::Path, thread::sleep, time::Duration};

use e2e::{
    rows::{Row, sum},
    runs::Profiler,
    workload_driver::WorkloadDriver,
};

use crate::{WORKLOAD, cgroup::put};

const LIMIT: u64 = 256 << 20;
const CGROUP: &str = "/sys/fs/cgroup/system.slice/short-of-memory.scope";

/// Memory that stays when the kernel reclaims all that it can.
fn used() -> u64 {
    let read = |name: &str| fs::read_to_string(Path::new(CGROUP).join(name)).expect("a file");
    let statistics = read("memory.stat");
    let value = |name: &str| {
        let mut lines = statistics.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = lines.find(|(found, _)| *found == name).expect("a value");
        value.parse::<u64>().expect("bytes")
    };
    let current: u64 = read("memory.current").trim().parse().expect("bytes");
    current - value("active_file") - value("inactive_file") - value("slab_reclaimable")
}

/// Switches of the target at times of which all samples take at least one.
fn work(workload: &mut WorkloadDriver) {
    sleep(Duration::from_secs(2));
    workload.run("nap 200");
    sleep(Duration::from_secs(1));
}

#[test]
fn rows_are_left_out_while_memory_is_short() {
    let mut target = WorkloadDriver::new(WORKLOAD, 2);
    let mut running = Profiler::wrapped_in(&[
        "systemd-run",
        "--scope",
        "--quiet",
        "--unit=short-of-memory",
        &format!("--property=MemoryMax={LIMIT}"),
        "--property=MemorySwapMax=0",
    ])
    .args(["--threads", "-i", "200ms"])
    .pid(target.pid())
    .start();
    let mut other = WorkloadDriver::new(WORKLOAD, 1);
    put(other.pid(), Path::new(CGROUP));
    let fill = |percent: u64, other: &mut WorkloadDriver| {
        other.run(&format!("touch {}", LIMIT * percent / 100 - used()));
    };
    work(&mut target);
    fill(85, &mut other);
    running.wait_for("rows of threads are left out");
    work(&mut target);
    fill(93, &mut other);
    running.wait_for("rows of threads and of `latency` are left out");
    work(&mut target);
    other.run("free");
    running.wait_for("all rows are stored again");
    work(&mut target);
    let ended = running.interrupt();
    let data = ended.dataset();
    data.assert_complete();

    // 200 naps in each of the four phases; the commands of the workload are a few switches more.
    let rows = data.table("sched");
    let (threads, process): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.u64("tid").is_some());
    let switches = |rows: &[Row]| sum(rows, "voluntary_switches");
    assert!(switches(&process) >= 4 * 200, "{}", switches(&process));
    let (all, of_threads) = (switches(&process), switches(&threads));
    assert!(of_threads >= 2 * 200, "{of_threads}");
    assert!(
        (390..=420).contains(&(all - of_threads)),
        "{of_threads} of {all}"
    );
    let durations = data.table("latency");
    let waits = durations.iter().filter(|row| {
        row.u64("tid").is_none() && matches!(row.text("kind"), Some("runqueue" | "wakeup"))
    });
    let waits: u64 = waits.map(|row| row.u64("count").expect("a count")).sum();
    assert!(waits >= 3 * 200, "{waits} of {durations:?}");
    assert!((190..=210).contains(&(all - waits)), "{waits} of {all}");

    let manifest = data.manifest();
    let losses = manifest["losses"].as_array().expect("losses");
    let lost = |what: &str| {
        let mut losses = losses.iter().filter(|loss| loss["what"] == what);
        losses.next().and_then(|loss| loss["count"].as_u64())
    };
    let overhead = data.table("overhead");
    for (what, component) in [
        ("rows of threads", "threads"),
        ("rows of latency", "latency"),
    ] {
        let lost = lost(what).expect("a loss");
        let rows = overhead.iter().filter(|row| {
            row.text("component_kind") == Some("memory") && row.text("component") == Some(component)
        });
        let dropped: u64 = rows.filter_map(|row| row.u64("dropped")).sum();
        assert!(lost > 0 && dropped == lost, "{what}: {lost}, {dropped}");
    }
}
