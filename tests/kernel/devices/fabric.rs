//! Adapters of the RDMA core with counters that are functions of time (`fakeib.c`).

use std::{fs, thread::sleep, time::Duration};

use e2e::{
    rows::{Row, sum},
    runs::{Finished, Profiler, Running, wait_until},
};

use super::{Driver, assert_rate};

/// Increase per second, to be multiplied by the port number, as in `fakeib.c`.
const COLUMNS: [(&str, f64); 7] = [
    ("tx_bytes", 100e6),
    ("rx_bytes", 50e6),
    ("tx_packets", 30_000.0),
    ("rx_packets", 20_000.0),
    ("xmit_wait", 7_000.0),
    ("errors", 300.0),
    ("discards", 200.0),
];
const COUNTERS: [(&str, &str, f64); 5] = [
    ("counters", "symbol_error", 100.0),
    ("counters", "multicast_xmit_packets", 500.0),
    ("counters", "multicast_rcv_packets", 0.0),
    ("hw_counters", "port_requests", 4_000.0),
    ("hw_counters", "port_retries", 1_500.0),
];
const DEVICE_COMMANDS: f64 = 2_500.0;
const SECOND: Duration = Duration::from_secs(1);

fn profiler() -> Running {
    let profiler =
        Profiler::realtime().args(["--node", "--source", "fabric,overhead", "-i", "500ms"]);
    profiler.start()
}

/// Rows of a port; in `fabric_counter`, `None` selects the counters of the device.
fn rows(finished: &Finished, table: &str, device: &str, port: Option<u64>) -> Vec<Row> {
    let mut rows = finished.dataset().table(table);
    rows.retain(|row| row.text("device") == Some(device) && row.u64("port") == port);
    rows
}

/// Rows of one counter in `fabric_counter`.
fn counter(finished: &Finished, device: &str, port: Option<u64>, name: &str) -> Vec<Row> {
    let mut rows = rows(finished, "fabric_counter", device, port);
    rows.retain(|row| row.text("counter") == Some(name));
    assert!(!rows.is_empty(), "{device} {port:?} {name}");
    rows
}

/// Asserts the rate in each interval and over all intervals.
fn assert_rates(rows: &[Row], column: &str, per_second: f64) {
    for row in rows {
        let interval_ns = row.u64("interval_ns").expect("known");
        if interval_ns >= 400_000_000 {
            let increase = row
                .u64(column)
                .unwrap_or_else(|| panic!("{column} is null"));
            assert_rate(column, increase, interval_ns, per_second);
        }
    }
    assert_rate(
        column,
        sum(rows, column),
        sum(rows, "interval_ns"),
        per_second,
    );
}

#[test]
fn port_rates_are_exact() {
    let _driver = Driver::load("fakeib");
    let profiler = profiler();
    sleep(4 * SECOND);
    let finished = profiler.interrupt();
    for port in [1, 2] {
        let times = port as f64;
        let of_port = rows(&finished, "fabric", "fake0", Some(port));
        assert!(of_port.len() >= 6, "{}", of_port.len());
        for row in &of_port {
            assert_eq!(row.text("link_layer"), Some("InfiniBand"));
            assert_eq!(row.text("state"), Some("ACTIVE"));
            assert_eq!(row.u64("rate_bits_per_s"), Some(200_000_000_000));
        }
        for (column, per_second) in COLUMNS {
            assert_rates(&of_port, column, per_second * times);
        }
        for (directory, name, per_second) in COUNTERS {
            let of_counter = counter(&finished, "fake0", Some(port), name);
            assert_eq!(of_counter[0].text("group"), Some(directory));
            assert_rates(&of_counter, "value", per_second * times);
        }
        let all = rows(&finished, "fabric_counter", "fake0", Some(port));
        let of = |name: &str| {
            all.iter()
                .filter(|row| row.text("counter") == Some(name))
                .count()
        };
        for none in ["lifespan", "port_xmit_data", "port_rcv_packets"] {
            assert_eq!(of(none), 0, "{none}");
        }
        // A counter of four bits, which saturates immediately.
        let full = counter(
            &finished,
            "fake0",
            Some(port),
            "local_link_integrity_errors",
        );
        assert!(full.iter().all(|row| row.u64("value").is_none()));
    }
    let commands = counter(&finished, "fake0", None, "device_commands");
    assert_rates(&commands, "value", DEVICE_COMMANDS);
    assert_eq!(rows(&finished, "fabric", "fake0", None).len(), 0);
    let message = "local_link_integrity_errors stays at its maximum, 15";
    assert_eq!(
        finished.stderr.matches(message).count(),
        1,
        "{}",
        finished.stderr
    );
}

/// The increases match readings of the kernel's files before and after.
#[test]
fn increases_lie_between_readings_of_the_files() {
    let driver = Driver::load("fakeib");
    let words = || -> u64 {
        let path = "/sys/class/infiniband/fake0/ports/2/counters/port_xmit_data";
        let text = fs::read_to_string(path).expect("a counter");
        text.trim().parse().expect("a number")
    };
    driver.set_parameter("reset", "1");
    let outer = words();
    let profiler = profiler();
    let inner = words();
    sleep(SECOND);
    let inner = words() - inner;
    let finished = profiler.interrupt();
    let outer = words() - outer;
    let recorded = sum(&rows(&finished, "fabric", "fake0", Some(2)), "tx_bytes");
    assert!(
        (4 * inner..=4 * outer).contains(&recorded),
        "{recorded}, not {} to {}",
        4 * inner,
        4 * outer
    );
}

#[test]
fn saturated_32_bit_counters_are_null() {
    let _driver = Driver::load("fakeib");
    let profiler = profiler();
    // The counters of data saturate after four seconds.
    sleep(6 * SECOND);
    let finished = profiler.interrupt();
    let rows = rows(&finished, "fabric", "fake1", Some(1));
    for (column, per_second) in [("tx_bytes", 100e6), ("rx_bytes", 50e6)] {
        let full = rows.iter().position(|row| row.u64(column).is_none());
        let full = full.expect("it was full in the end");
        assert!(full >= 4, "{column}: {full}");
        assert_rates(&rows[..full], column, per_second);
        assert!(rows[full..].iter().all(|row| row.u64(column).is_none()));
    }
    assert_rates(&rows, "tx_packets", 30_000.0);
}

#[test]
fn link_flaps_and_resets_are_null() {
    let driver = Driver::load("fakeib");
    let file = |name: &str| format!("/sys/class/infiniband/fake0/ports/2/{name}");
    let state = || fs::read_to_string(file("state")).expect("a state");
    let profiler = profiler();
    sleep(2 * SECOND);
    driver.set_parameter("down", "4");
    wait_until("the port is down", || state() == "1: DOWN\n");
    sleep(2 * SECOND);
    driver.set_parameter("down", "0");
    sleep(SECOND);
    driver.set_parameter("reset", "1");
    sleep(2 * SECOND);
    let finished = profiler.interrupt();
    let of_port = rows(&finished, "fabric", "fake0", Some(2));
    let states: Vec<_> = of_port
        .iter()
        .map(|row| row.text("state").expect("known"))
        .collect();
    let mut changes = states.clone();
    changes.dedup();
    assert_eq!(changes, ["ACTIVE", "DOWN", "ACTIVE"], "{states:?}");
    let down = of_port
        .iter()
        .filter(|row| row.text("state") == Some("DOWN"));
    let down: Vec<_> = down.collect();
    assert!(down.len() >= 3, "{states:?}");
    // The first row includes the time before the link went down.
    assert!(down[1..].iter().all(|row| row.u64("tx_bytes") == Some(0)));
    assert_eq!(down[1].u64("rate_bits_per_s"), Some(10_000_000_000));
    for (column, per_second) in COLUMNS {
        let nulls = of_port
            .iter()
            .filter(|row| row.u64(column).is_none())
            .count();
        assert_eq!(nulls, 2, "{column}: once it came back, once it was reset");
        for row in &of_port {
            let seconds = row.u64("interval_ns").expect("known") as f64 / 1e9;
            let most = per_second * 2.0 * seconds * 1.02 + 1.0;
            let increase = row.u64(column).unwrap_or(0) as f64;
            assert!(increase <= most, "{column}: {increase} in {seconds} s");
        }
    }
    // The other port was up.
    let other = rows(&finished, "fabric", "fake0", Some(1));
    let nulls = other
        .iter()
        .filter(|row| row.u64("tx_bytes").is_none())
        .count();
    assert_eq!(nulls, 1);
    let downs = counter(&finished, "fake0", Some(2), "link_downed");
    assert_eq!(sum(&downs, "value"), 1);
}

#[test]
fn removed_devices_come_back_under_their_name() {
    let profiler_of_nothing = Profiler::new().args(["--node", "--source", "fabric"]);
    let refused = profiler_of_nothing.args(["--strict", "-d", "1s"]).finish();
    assert_eq!(refused.code(), 6, "{}", refused.stderr);
    let driver = Driver::load("fakeib");
    let profiler = profiler();
    // Between two readings, so that every reading finds the device.
    sleep(SECOND * 7 / 4);
    drop(driver);
    let driver = Driver::load_with("fakeib", c"ports=1");
    sleep(SECOND * 9 / 4);
    drop(driver);
    sleep(SECOND);
    let finished = profiler.interrupt();
    let known_rows = |device, port| {
        let rows = rows(&finished, "fabric", device, Some(port));
        let known = rows.iter().filter(|row| row.u64("tx_packets").is_some());
        let known: Vec<Row> = known.cloned().collect();
        (known, rows.len())
    };
    for (device, times) in [("fake0", 2), ("fake1", 2), ("fake0", 1)] {
        let port = if times == 1 { 2 } else { 1 };
        let (known, all) = known_rows(device, port);
        assert!(known.len() >= 3 * times, "{device} {port}: {}", known.len());
        // The reading during the removal yields null; later readings have no row for the removed
        // port.
        assert_eq!(all, known.len() + 1, "{device} {port}");
        assert_rates(&known, "tx_packets", 30_000.0 * port as f64);
    }
    // Null for the removal, and for the saturated counter of the new device; the counter of the
    // first device was saturated at the baseline.
    let overhead = finished.dataset().table("overhead");
    let ours = overhead
        .iter()
        .filter(|row| row.text("component") == Some("fabric"));
    let ours: Vec<Row> = ours.cloned().collect();
    assert_eq!(sum(&ours, "errors"), 2);
}
