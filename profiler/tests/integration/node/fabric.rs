//! `fabric` on fixtures with the files of the kernel's RDMA core and of HPE's driver.

use std::{fs, os::unix::fs::symlink};

use profiler::{sources::fabric, support::clock::thread_cpu_ns};

use test_support::{Reader, Rows, Tree};

struct Fabric(Tree);

impl Fabric {
    fn new(user: &str) -> Self {
        Self(Tree::of("vm", user))
    }

    fn open(&self) -> Tables {
        Tables(Reader::open(&fabric::SPEC, &self.0.host()))
    }

    /// An active InfiniBand port.
    fn port(&self, device: &str, port: u32) -> Port<'_> {
        let port = Port {
            tree: &self.0,
            path: format!("sys/class/infiniband/{device}/ports/{port}"),
        };
        port.put("link_layer", "InfiniBand\n");
        port.put("state", "4: ACTIVE\n");
        port.put("rate", "100 Gb/sec (4X EDR)\n");
        port
    }

    /// A Slingshot device, with the files of its PCI device.
    fn slingshot(&self, device: &str) -> Port<'_> {
        let port = Port {
            tree: &self.0,
            path: format!("sys/class/cxi/{device}/device"),
        };
        port.put("port/link", "up");
        port.put("port/speed", "BS_200G");
        port
    }
}

struct Port<'a> {
    tree: &'a Tree,
    path: String,
}

impl Port<'_> {
    fn put(&self, file: &str, text: &str) {
        self.tree.put(format!("{}/{file}", self.path), text);
    }

    fn set(&self, counters: &[(&str, u64)]) {
        for (name, value) in counters {
            self.put(name, &format!("{value}\n"));
        }
    }
}

/// Maximum of a 32-bit counter, at which it stays.
const FULL: u64 = u32::MAX as u64;

/// A reader of both tables.
struct Tables(Reader);

struct Found {
    ports: Rows,
    counters: Rows,
    error: Option<String>,
}

impl Tables {
    fn read(&mut self) -> Found {
        // Waits for the rows, as at the end of a run.
        let (batches, result) = self.0.attempt(true);
        let of = |table: &str| {
            let mut of_table = batches.iter().filter(|batch| batch.table.name == table);
            Rows(of_table.next().cloned())
        };
        Found {
            ports: of("fabric"),
            counters: of("fabric_counter"),
            error: result.err().map(|error| format!("{error:#}")),
        }
    }
}

impl Found {
    fn row(&self, device: &str, port: Option<u64>) -> Option<usize> {
        (0..self.ports.len()).find(|&row| {
            self.ports.text(row, "device").as_deref() == Some(device)
                && self.ports.get(row, "port") == port
        })
    }

    fn get(&self, device: &str, port: u64, column: &str) -> Option<u64> {
        let row = self.row(device, Some(port)).expect("a row");
        self.ports.get(row, column)
    }

    /// The row of a counter in table `fabric_counter`.
    fn find(&self, device: &str, port: Option<u64>, name: &str) -> Option<usize> {
        let rows = &self.counters;
        (0..rows.len()).find(|&row| {
            rows.text(row, "device").as_deref() == Some(device)
                && rows.get(row, "port") == port
                && rows.text(row, "counter").as_deref() == Some(name)
        })
    }

    /// Increase of a counter in table `fabric_counter`.
    fn counter(&self, device: &str, port: Option<u64>, name: &str) -> Option<u64> {
        let row = self.find(device, port, name);
        let row = row.unwrap_or_else(|| panic!("{device} has no {name}"));
        self.counters.get(row, "value")
    }
}

/// Drivers without a performance management agent (iWARP), and some of its counters in others.
#[test]
fn counters_that_the_driver_does_not_have_are_null() {
    let fabric = Fabric::new("fabric-none");
    let port = fabric.port("irdma0", 1);
    for name in ["port_xmit_data", "port_rcv_data", "symbol_error"] {
        port.put(&format!("counters/{name}"), "N/A (no PMA)\n");
    }
    port.set(&[
        ("counters/port_rcv_errors", 3),
        ("hw_counters/tx_bytes", 10),
    ]);
    let mut tables = fabric.open();
    assert_eq!(tables.read().error, None);
    port.set(&[("hw_counters/tx_bytes", 17)]);
    port.put("counters/port_rcv_errors", "N/A (no PMA)\n");
    let found = tables.read();
    assert_eq!(found.error, None);
    let get = |column| found.get("irdma0", 1, column);
    assert_eq!(get("tx_bytes"), Some(7), "the driver's own counter");
    assert_eq!((get("rx_bytes"), get("errors")), (None, None));
    assert_eq!(get("rate_bits_per_s"), Some(100_000_000_000));
    assert_eq!(found.find("irdma0", Some(1), "symbol_error"), None);
}

#[test]
fn each_port_of_each_device_has_a_row() {
    let fabric = Fabric::new("fabric-ports");
    let (one, two) = (fabric.port("mlx5_0", 1), fabric.port("mlx5_0", 2));
    let other = fabric.port("mlx5_1", 1);
    other.put("link_layer", "Ethernet\n");
    two.put("state", "1: DOWN\n");
    two.put("rate", "2.5 Gb/sec (1X SDR)\n");
    for port in [&one, &two, &other] {
        port.set(&[
            ("counters/port_xmit_data", 1000),
            ("counters/port_rcv_data", 2000),
            ("counters/port_xmit_packets", 10),
            ("counters/port_rcv_packets", 20),
            ("counters/unicast_xmit_packets", 9),
            ("counters/port_xmit_wait", 5),
            ("counters/port_rcv_errors", 1),
            ("counters/port_xmit_discards", 2),
            ("counters/symbol_error", 3),
            ("hw_counters/out_of_sequence", 7),
            ("hw_counters/lifespan", 10),
        ]);
    }
    let mut tables = fabric.open();
    let first = tables.read();
    assert_eq!((first.ports.len(), first.counters.len()), (0, 0));
    one.set(&[
        ("counters/port_xmit_data", 1250),
        ("counters/port_rcv_data", 2001),
        ("counters/port_xmit_packets", 13),
        ("counters/port_rcv_packets", 24),
        ("counters/unicast_xmit_packets", 12),
        ("counters/port_xmit_wait", 50),
        ("counters/port_rcv_errors", 3),
        ("counters/port_xmit_discards", 6),
        ("counters/symbol_error", 4),
        ("hw_counters/out_of_sequence", 17),
        ("hw_counters/lifespan", 1000),
    ]);
    other.set(&[("counters/port_xmit_data", 1001)]);
    let found = tables.read();
    assert_eq!(found.error, None);
    assert_eq!(found.ports.len(), 3);
    for (column, value) in [
        ("rate_bits_per_s", 100_000_000_000),
        ("tx_bytes", 1000),
        ("rx_bytes", 4),
        ("tx_packets", 3),
        ("rx_packets", 4),
        ("xmit_wait", 45),
        ("errors", 2),
        ("discards", 4),
    ] {
        assert_eq!(found.get("mlx5_0", 1, column), Some(value), "{column}");
    }
    assert_eq!(found.get("mlx5_0", 2, "tx_bytes"), Some(0));
    assert_eq!(
        found.get("mlx5_0", 2, "rate_bits_per_s"),
        Some(2_500_000_000)
    );
    assert_eq!(found.get("mlx5_1", 1, "tx_bytes"), Some(4));
    for (device, port, layer, state) in [
        ("mlx5_0", 1, "InfiniBand", "ACTIVE"),
        ("mlx5_0", 2, "InfiniBand", "DOWN"),
        ("mlx5_1", 1, "Ethernet", "ACTIVE"),
    ] {
        let row = found.row(device, Some(port)).expect("a row");
        let text = |column| found.ports.text(row, column);
        assert_eq!(text("link_layer").as_deref(), Some(layer));
        assert_eq!(text("state").as_deref(), Some(state));
    }
    // Without the counters that have a column in `fabric`, and without settings.
    assert_eq!(found.counters.len(), 3 * 3);
    let counter = |name| found.counter("mlx5_0", Some(1), name);
    assert_eq!(counter("unicast_xmit_packets"), Some(3));
    assert_eq!(counter("symbol_error"), Some(1));
    assert_eq!(counter("out_of_sequence"), Some(10));
    assert_eq!(found.find("mlx5_0", Some(1), "lifespan"), None);
}

#[test]
fn saturated_and_reset_counters_are_null() {
    let fabric = Fabric::new("fabric-full");
    let port = fabric.port("mthca0", 1);
    let set = |data: u64, symbols: u64, integrity: u64| {
        port.set(&[
            ("counters/port_xmit_data", data),
            ("counters/symbol_error", symbols),
            ("counters/local_link_integrity_errors", integrity),
            ("hw_counters/retries", 5),
        ]);
    };
    let mut tables = fabric.open();
    // Increases of data, symbol errors and integrity errors.
    let mut read = |data, symbols, integrity| {
        set(data, symbols, integrity);
        let found = tables.read();
        if found.ports.len() == 0 {
            return ([None; 3], found.error);
        }
        assert_eq!(
            found.counter("mthca0", Some(1), "retries"),
            Some(0),
            "in another directory"
        );
        let counter = |name| found.counter("mthca0", Some(1), name);
        let increases = [
            found.get("mthca0", 1, "tx_bytes"),
            counter("symbol_error"),
            counter("local_link_integrity_errors"),
        ];
        (increases, found.error)
    };
    read(FULL - 10, 65_530, 14);
    let (increases, error) = read(FULL - 5, 65_534, 14);
    assert_eq!((increases, error), ([Some(20), Some(4), Some(0)], None));
    let (increases, error) = read(FULL, 65_534, 15);
    assert_eq!(increases, [None, Some(0), None]);
    let error = error.expect("reported");
    assert!(
        error.contains("local_link_integrity_errors stays at its maximum, 15"),
        "{error}"
    );
    let (increases, error) = read(FULL, 65_535, 15);
    assert_eq!(increases, [None, None, None]);
    assert!(error.expect("reported").contains("symbol_error stays"));
    let (increases, error) = read(FULL, 65_535, 15);
    assert_eq!(
        (increases, error),
        ([None, None, None], None),
        "reported once"
    );
    // A reset of some counters makes the increases of all counters unknown.
    assert_eq!(read(7, 2, 0), ([None, None, None], None));
    assert_eq!(read(8, 2, 1), ([Some(4), Some(0), Some(1)], None));
    assert_eq!(read(6, 3, 1), ([None, None, None], None));
    assert_eq!(read(7, 3, 1), ([Some(4), Some(0), Some(0)], None));
    // A 64-bit counter continues above the maximum of 32 bits.
    assert_eq!(read(FULL + 7, 3, 1).0[0], Some(4 * FULL));
}

#[test]
fn counters_of_64_bits_are_not_saturated_at_32_bits() {
    let fabric = Fabric::new("fabric-wide");
    let port = fabric.port("mlx5_0", 1);
    let set = |data| {
        port.set(&[
            ("counters/port_xmit_data", data),
            ("counters/unicast_xmit_packets", 0),
        ]);
    };
    let mut tables = fabric.open();
    set(FULL - 1);
    tables.read();
    for value in [FULL, FULL + 1] {
        set(value);
        assert_eq!(tables.read().get("mlx5_0", 1, "tx_bytes"), Some(4));
    }
    // All ones is the value of registers of a removed device.
    set(u64::MAX);
    let found = tables.read();
    assert_eq!(found.get("mlx5_0", 1, "tx_bytes"), None);
    assert!(found.error.is_some());
}

#[test]
fn drivers_without_the_usual_counters() {
    let fabric = Fabric::new("fabric-drivers");
    let (rxe, efa) = (fabric.port("rxe0", 1), fabric.port("efa_0", 1));
    let omni = fabric.port("ibp1s0", 1);
    let path = |file: &str| fabric.0.path(format!("sys/class/infiniband/ibp1s0/{file}"));
    fs::create_dir_all(path("device")).expect("a directory");
    symlink("../../../../bus/pci/drivers/hfi1", path("device/driver")).expect("a link");
    let set = |by: u64| {
        rxe.set(&[
            ("hw_counters/sent_pkts", 100 + by),
            ("hw_counters/rcvd_pkts", 200 + 2 * by),
            ("hw_counters/rdma_sends", by),
        ]);
        efa.set(&[
            ("hw_counters/tx_bytes", 1000 * by),
            ("hw_counters/rx_bytes", 2000 * by),
            ("hw_counters/tx_pkts", by),
            ("hw_counters/rx_pkts", 2 * by),
        ]);
        omni.set(&[
            ("counters/port_xmit_data", by),
            ("counters/port_rcv_data", 2 * by),
            ("counters/unicast_xmit_packets", 0),
        ]);
        let device = "sys/class/infiniband/efa_0/hw_counters";
        fabric
            .0
            .put(format!("{device}/submitted_cmds"), format!("{by}\n"));
        fabric.0.put(format!("{device}/lifespan"), "10\n");
        fabric
            .0
            .put(format!("{device}/active_qps"), format!("{by}\n"));
    };
    set(1);
    let mut tables = fabric.open();
    tables.read();
    set(4);
    let found = tables.read();
    assert_eq!(found.error, None);
    assert_eq!(found.ports.len(), 3, "no row for the device itself");
    let columns = |device: &str| {
        ["tx_bytes", "rx_bytes", "tx_packets", "rx_packets"]
            .map(|column| found.get(device, 1, column))
    };
    assert_eq!(columns("rxe0"), [None, None, Some(3), Some(6)]);
    assert_eq!(columns("efa_0"), [Some(3000), Some(6000), Some(3), Some(6)]);
    assert_eq!(columns("ibp1s0"), [Some(24), Some(48), None, None], "flits");
    let row = found.row("ibp1s0", Some(1)).expect("a row");
    let layer = found.ports.text(row, "link_layer");
    assert_eq!(layer.as_deref(), Some("OmniPath"));
    assert_eq!(found.counter("rxe0", Some(1), "sent_pkts"), Some(3));
    assert_eq!(found.counter("rxe0", Some(1), "rdma_sends"), Some(3));
    assert_eq!(found.counter("efa_0", None, "submitted_cmds"), Some(3));
    assert_eq!(found.find("efa_0", None, "active_qps"), None, "a gauge");
}

#[test]
fn slingshot_counters_have_timestamps() {
    let fabric = Fabric::new("fabric-slingshot");
    let port = fabric.slingshot("cxi0");
    let set = |by: u64| {
        let at = 1_732_226_400 + by;
        let put = |name: &str, value: u64| {
            port.put(
                &format!("telemetry/{name}"),
                &format!("{value}@{at}.000000001\n"),
            );
        };
        put("hni_sts_tx_ok_octets", 5000 * by);
        put("hni_sts_rx_ok_octets", 7000 * by);
        for class in 0..8 {
            put(&format!("hni_pkts_sent_by_tc_{class}"), class * by);
            put(&format!("hni_pkts_recv_by_tc_{class}"), 2 * class * by);
            put(&format!("hni_discard_cntr_{class}"), by);
        }
        put("hni_tx_paused_0", 3 * by);
        put("pct_no_tct_nacks", by);
    };
    set(1);
    let mut tables = fabric.open();
    tables.read();
    set(2);
    let found = tables.read();
    assert_eq!(found.error, None);
    let row = found.row("cxi0", None).expect("a row");
    for (column, value) in [
        ("tx_bytes", 5000),
        ("rx_bytes", 7000),
        ("tx_packets", 28),
        ("rx_packets", 56),
        ("discards", 8),
        ("rate_bits_per_s", 200_000_000_000),
    ] {
        assert_eq!(found.ports.get(row, column), Some(value), "{column}");
    }
    let text = |column| found.ports.text(row, column);
    assert_eq!(text("link_layer").as_deref(), Some("Slingshot"));
    assert_eq!(text("state").as_deref(), Some("up"));
    assert_eq!(found.counter("cxi0", None, "hni_tx_paused_0"), Some(3));
    assert_eq!(found.find("cxi0", None, "pct_no_tct_nacks"), None);
    // A reset counter does not affect the others; a sum with an unknown summand is null.
    port.put("telemetry/hni_sts_tx_ok_octets", "1@1.0\n");
    port.put("telemetry/hni_sts_rx_ok_octets", "14001@1.0\n");
    port.put("telemetry/hni_pkts_sent_by_tc_3", "@1.0\n");
    port.put("telemetry/hni_discard_cntr_0", "12");
    let found = tables.read();
    for (column, value) in [
        ("tx_bytes", None),
        ("rx_bytes", Some(1)),
        ("tx_packets", None),
        ("rx_packets", Some(0)),
        ("discards", None),
    ] {
        assert_eq!(found.ports.get(row, column), value, "{column}");
    }
    assert!(found.error.is_some());
}

#[test]
fn devices_appear_and_disappear() {
    let fabric = Fabric::new("fabric-hotplug");
    let set = |device: &str, value: u64| {
        let port = fabric.port(device, 1);
        port.set(&[("counters/port_xmit_data", value)]);
    };
    let mut tables = fabric.open();
    assert_eq!(tables.read().ports.len(), 0, "no directory at all");
    set("mlx5_0", 10);
    assert_eq!(tables.read().ports.len(), 0, "a baseline");
    set("mlx5_0", 20);
    set("mlx5_1", 1000);
    let found = tables.read();
    assert_eq!(found.ports.len(), 1);
    assert_eq!(found.get("mlx5_0", 1, "tx_bytes"), Some(40));
    fabric.0.remove("sys/class/infiniband/mlx5_0");
    let found = tables.read();
    assert_eq!((found.row("mlx5_0", Some(1)), found.ports.len()), (None, 1));
    // It returns with reset counters.
    set("mlx5_0", 50);
    assert_eq!(tables.read().row("mlx5_0", Some(1)), None);
    set("mlx5_0", 51);
    let found = tables.read();
    assert_eq!(found.get("mlx5_0", 1, "tx_bytes"), Some(4));
    assert_eq!(found.ports.len(), 2);
    fabric.0.remove("sys/class/infiniband");
    let found = tables.read();
    assert_eq!((found.ports.len(), found.error), (0, None));
}

/// A port that goes down keeps its row. Its counters may continue or be reset.
#[test]
fn links_go_down_and_come_back() {
    let fabric = Fabric::new("fabric-links");
    let port = fabric.port("mlx5_0", 1);
    let mut tables = fabric.open();
    let mut read = |state: &str, data, packets| {
        port.put("state", &format!("{state}\n"));
        port.set(&[
            ("counters/port_xmit_data", data),
            ("counters/port_xmit_packets", packets),
        ]);
        let found = tables.read();
        found.row("mlx5_0", Some(1)).map(|row| {
            let increases = ["tx_bytes", "tx_packets"].map(|column| found.ports.get(row, column));
            (found.ports.text(row, "state").expect("known"), increases)
        })
    };
    let row = |state: &str, increases| Some((state.to_owned(), increases));
    assert_eq!(read("4: ACTIVE", 100, 50), None);
    assert_eq!(
        read("4: ACTIVE", 110, 51),
        row("ACTIVE", [Some(40), Some(1)])
    );
    assert_eq!(read("1: DOWN", 110, 51), row("DOWN", [Some(0), Some(0)]));
    // A reset, after which one counter is already above its previous value.
    assert_eq!(read("2: INIT", 5, 60), row("INIT", [None, None]));
    assert_eq!(read("4: ACTIVE", 6, 61), row("ACTIVE", [Some(4), Some(1)]));
}

/// Counters of a port, most of which are or become unreadable.
const COUNTERS: [&str; 13] = [
    "empty",
    "cut",
    "word",
    "negative",
    "hex",
    "huge",
    "long",
    "pma",
    "directory",
    "loop",
    "dangling",
    "vanishing",
    "fine",
];

/// Adds directories and links in place of files, files in place of directories, and a port without
/// a number.
fn add_malformed_entries(fabric: &Fabric) {
    let tree = &fabric.0;
    let counters = tree.path("sys/class/infiniband/mlx5_0/ports/1/counters");
    fs::create_dir(counters.join("directory")).expect("a directory");
    symlink("loop", counters.join("loop")).expect("a link");
    symlink("nowhere", counters.join("dangling")).expect("a link");
    tree.put("sys/class/infiniband/mlx5_2/ports", "1\n");
    tree.put("sys/class/infiniband/mlx5_3", "");
    tree.put("sys/class/infiniband/mlx5_1/ports/one/state", "4: ACTIVE\n");
    symlink("mlx5_4", tree.path("sys/class/infiniband/mlx5_4")).expect("a link");
}

/// Replaces the contents of the counters and of the port's description, and removes a counter.
fn make_malformed(port: &Port<'_>) {
    for (name, text) in [
        ("empty", String::new()),
        ("cut", "12".to_owned()),
        ("word", "many\n".to_owned()),
        ("negative", "-5\n".to_owned()),
        ("hex", "0x20\n".to_owned()),
        ("huge", "99999999999999999999\n".to_owned()),
        ("long", format!("{}\n", "7".repeat(1 << 20))),
        ("pma", "N/A (no PMA)\n".to_owned()),
    ] {
        port.put(&format!("counters/{name}"), &text);
    }
    port.tree
        .remove(&format!("{}/counters/vanishing", port.path));
    port.put("state", "");
    port.put("rate", "fast\n");
    port.put("link_layer", "");
}

#[test]
fn malformed_files_are_null() {
    let fabric = Fabric::new("fabric-nonsense");
    let port = fabric.port("mlx5_0", 1);
    let good = fabric.port("mlx5_1", 1);
    let set = |value: u64| {
        for name in COUNTERS {
            match name {
                "directory" | "loop" | "dangling" => {}
                "vanishing" if value > 1 => {}
                _ => port.set(&[(&format!("counters/{name}"), value)]),
            }
        }
        good.set(&[("counters/port_xmit_data", value)]);
    };
    set(1);
    add_malformed_entries(&fabric);
    let mut tables = fabric.open();
    assert!(tables.read().error.is_some());
    set(2);
    make_malformed(&port);
    let found = tables.read();
    assert!(found.error.is_some());
    assert_eq!(found.ports.len(), 2);
    assert_eq!(found.get("mlx5_1", 1, "tx_bytes"), Some(4));
    let row = found.row("mlx5_0", Some(1)).expect("a row");
    for column in ["state", "rate_bits_per_s", "tx_bytes", "errors"] {
        let nulls = found.ports.nulls(row);
        assert!(nulls.iter().any(|null| null == column), "{column}");
    }
    for name in COUNTERS {
        let increase = found.counter("mlx5_0", Some(1), name);
        let expected = match name {
            "fine" => Some(1),
            // The open handle reads the removed file.
            "vanishing" => Some(0),
            _ => None,
        };
        assert_eq!(increase, expected, "{name}");
    }
    // Valid again: first a baseline.
    set(3);
    tables.read();
    set(5);
    let found = tables.read();
    assert_eq!(found.counter("mlx5_0", Some(1), "word"), Some(2));
}

#[test]
fn reading_512_ports_is_fast() {
    let fabric = Fabric::new("fabric-many");
    for device in 0..256 {
        for number in 1..=2 {
            let port = fabric.port(&format!("mlx5_{device}"), number);
            for counter in 0..20 {
                port.set(&[(&format!("counters/counter{counter}"), counter)]);
            }
        }
    }
    let mut tables = fabric.open();
    tables.read();
    let took = (0..3).map(|_| {
        let begin = thread_cpu_ns();
        let found = tables.read();
        assert_eq!(found.error, None);
        assert_eq!((found.ports.len(), found.counters.len()), (512, 512 * 20));
        thread_cpu_ns() - begin
    });
    let fastest = took.min().expect("three readings");
    println!("512 ports: {fastest} ns");
    assert!(fastest < 1_000_000_000, "{fastest} ns");
}
