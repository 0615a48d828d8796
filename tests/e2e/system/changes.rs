//! Changes of the node during a run: CPUs, network interfaces, the name of the host, the clock.

use std::{thread::sleep, time::Duration};

use e2e::{
    rows::{Row, sum},
    runs::{Profiler, Running},
};

use super::{
    commands::sh,
    unit::{named, written},
};

const WRITTEN: u64 = 8 << 20;

fn ts_us(row: &Row) -> i64 {
    row.i64("ts").expect("a time") / 1000
}

fn start() -> Running {
    Profiler::new().args(["--node", "-i", "500ms"]).start()
}

/// Writes directly to the disk; pinned to a CPU.
fn write(cpu: u32, file: &str) {
    sh(&format!(
        "taskset --cpu-list {cpu} dd if=/dev/zero of=/srv/{file} bs=1M count={} oflag=direct
         rm /srv/{file}",
        WRITTEN >> 20
    ));
}

/// `ts` of the rows in which a column has a value, in microseconds.
fn times(rows: &[Row], column: &str, value: u64) -> Vec<i64> {
    let rows = rows.iter().filter(|row| row.u64(column) == Some(value));
    let mut times: Vec<i64> = rows.map(ts_us).collect();
    times.sort_unstable();
    times
}

#[test]
fn cpu_that_goes_offline_and_comes_back_is_accounted() {
    const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";
    let running = start();
    write(1, "before");
    sleep(Duration::from_secs(2));
    sh(&format!("echo 0 > {ONLINE}"));
    sleep(Duration::from_secs(4));
    write(0, "meanwhile");
    sh(&format!("echo 1 > {ONLINE}"));
    sleep(Duration::from_secs(3));
    write(1, "after");
    let ended = running.interrupt();
    let data = ended.dataset();
    data.assert_complete();
    assert!(
        !ended.stderr.contains("profiler: source"),
        "{}",
        ended.stderr
    );

    // No operation is lost on any CPU.
    let processes = data.table("process");
    let writers = named(&processes, "comm", "dd");
    assert_eq!(writers.len(), 3, "{writers:?}");
    for writer in writers {
        let pid = writer.u64("pid").expect("a pid");
        for table in ["file_io", "block_io"] {
            assert_eq!(written(&data, table, pid), WRITTEN, "{table}");
        }
    }

    // CPU 1 has no rows while it is offline, and no row that covers this time.
    let mut rows = data.table("cpu");
    let (all, some) = (times(&rows, "cpu", 0), times(&rows, "cpu", 1));
    let longest = |times: &[i64]| times.windows(2).map(|pair| pair[1] - pair[0]).max();
    let (always, gap) = (longest(&all), longest(&some).expect("rows"));
    assert!(
        gap >= 4_000_000,
        "{gap} µs without CPU 1, {always:?} without CPU 0"
    );
    assert!(
        some.last() >= all.get(all.len() - 3),
        "it did not come back"
    );
    rows.retain(|row| row.u64("cpu") == Some(1));
    for row in &rows {
        let states = [
            "user_ns",
            "nice_ns",
            "system_ns",
            "idle_ns",
            "iowait_ns",
            "irq_ns",
            "softirq_ns",
            "steal_ns",
        ];
        let total: u64 = states.iter().filter_map(|state| row.u64(state)).sum();
        let interval = row.u64("interval_ns").expect("an interval");
        // Its times are counted in steps of 10 ms.
        assert!(
            total <= interval + 8 * 20_000_000,
            "{total} in {interval}: {row:?}"
        );
    }
}

#[test]
fn interface_that_comes_and_goes_has_rows_meanwhile() {
    let running = start();
    sleep(Duration::from_secs(1));
    sh("ip link add made0 type dummy; ip address add 192.0.2.1/24 dev made0; ip link set made0 up");
    sleep(Duration::from_secs(2));
    sh(
        "for i in 1 2 3; do echo datagram > /dev/udp/192.0.2.9/9; done 2>/dev/null || \
        bash -c 'for i in 1 2 3; do echo datagram > /dev/udp/192.0.2.9/9; done'",
    );
    let packets = || -> u64 {
        let text = sh("cat /sys/class/net/made0/statistics/tx_packets");
        text.parse().expect("a number")
    };
    sleep(Duration::from_secs(2));
    let expected = packets();
    sh("ip link delete made0");
    sleep(Duration::from_secs(2));
    let ended = running.interrupt();
    let data = ended.dataset();
    data.assert_complete();
    assert!(
        !ended.stderr.contains("profiler: source"),
        "{}",
        ended.stderr
    );
    let rows = data.table("netdev");
    let made: Vec<Row> = named(&rows, "device", "made0")
        .into_iter()
        .cloned()
        .collect();
    let counted = sum(&made, "tx_packets");
    assert!(
        counted >= 3 && counted <= expected,
        "{counted} of {expected}: {made:?}"
    );
}

#[test]
fn run_keeps_its_host_when_the_node_gets_another_name() {
    let before = sh("hostname");
    let running = start();
    sh("hostname renamed");
    sleep(Duration::from_secs(2));
    let ended = running.interrupt();
    sh(&format!("hostname {before}"));
    let data = ended.dataset();
    data.assert_complete();
    assert_eq!(data.manifest()["hostname"], before);
    let hosts: Vec<_> = data
        .files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "parquet"))
        .filter(|path| !path.to_string_lossy().contains(&format!("host={before}/")))
        .collect();
    assert!(hosts.is_empty(), "{hosts:?}");
}

#[test]
fn clock_that_is_set_moves_no_sample() {
    let running = start();
    sleep(Duration::from_secs(2));
    for step in ["+1 hour", "-3 hours", "+2 hours"] {
        sh(&format!("date --set '{step}'"));
        sleep(Duration::from_secs(2));
        let status = sh(&format!("{} status", e2e::setting("PROFILER_BIN")));
        let ages: Vec<&str> = status
            .lines()
            .filter(|line| line.contains(" ago"))
            .collect();
        assert!(!ages.is_empty(), "{status}");
        assert!(
            ages.iter()
                .all(|line| line.ends_with("s ago") && !line.contains(" min ")),
            "{status}"
        );
    }
    let ended = running.interrupt();
    let data = ended.dataset();
    data.assert_complete();
    let rows = data.table("overhead");
    let own: Vec<Row> = named(&rows, "component_kind", "profiler")
        .into_iter()
        .cloned()
        .collect();
    let mut times: Vec<(i64, u64)> = own
        .iter()
        .map(|row| (ts_us(row), row.u64("interval_ns").expect("an interval")))
        .collect();
    times.sort_unstable();
    let due = times.len() as u64 + data.missed_samples();
    assert!(due > 8, "{times:?}");
    for pair in times.windows(2) {
        let distance = pair[1].0.abs_diff(pair[0].0);
        assert!(distance.abs_diff(pair[1].1 / 1000) <= 2, "{pair:?}");
    }
    let report = sh(&format!(
        "{} verify {} || true",
        e2e::setting("PROFILER_BIN"),
        data.path().display()
    ));
    assert!(report.contains("all is well"), "{report}");
}
