//! `disk` and `netdev`: exact increases, hotplug and malformed files on fixtures, and the devices
//! of the present machine.

use std::{fs, net::UdpSocket};

use profiler::sources::{disk, netdev};

use test_support::{Reader, Rows, Tree, this_host};

fn row_of(rows: &Rows, device: &str) -> Option<usize> {
    (0..rows.len()).find(|&row| rows.text(row, "device").as_deref() == Some(device))
}

const DISKS: &str = "\
   8       0 sda 100 10 2000 4294967290 50 5 400 60 2 500 900 7 0 16 3 4 5
   8       1 sda1 90 10 1800 200 50 5 400 60 0 400 800 0 0 0 0 0 0
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 1 0 8 1 1 0 8 1 0 1 2
";

#[test]
fn disks_have_exact_increases() {
    let node = Tree::of("vm", "disks");
    node.put("proc/diskstats", DISKS);
    node.put("sys/class/block/sda1/partition", "1\n");
    let mut reader = Reader::open(&disk::SPEC, &node.host());
    assert_eq!(reader.rows().len(), 0);
    node.put(
        "proc/diskstats",
        "\
   8       0 sda 103 11 2008 4 54 6 480 65 3 600 1000 8 0 24 4 6 9
   8       1 sda1 90 10 1800 200 50 5 400 60 0 400 800 0 0 0 0 0 0
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 2 0 16 3 1 0 8 1 0 2 4
  65       0 sdq 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
",
    );
    let rows = reader.rows();
    assert_eq!(
        rows.len(),
        3,
        "without the unused loop device and the new disk"
    );
    let sda = row_of(&rows, "sda").expect("a row");
    for (column, value) in [
        ("partition", 0),
        ("read_ops", 3),
        ("read_merged", 1),
        ("read_bytes", 8 * 512),
        // Wrapped.
        ("read_ns", 10_000_000),
        ("write_ops", 4),
        ("write_bytes", 80 * 512),
        ("write_ns", 5_000_000),
        ("in_flight", 3),
        ("busy_ns", 100_000_000),
        ("queue_ns", 100_000_000),
        ("discard_ops", 1),
        ("discard_bytes", 8 * 512),
        ("flush_ops", 2),
        ("flush_ns", 4_000_000),
    ] {
        assert_eq!(rows.get(sda, column), Some(value), "{column}");
    }
    let part = row_of(&rows, "sda1").expect("a row");
    assert_eq!(rows.get(part, "partition"), Some(1));
    assert_eq!(rows.get(part, "read_ops"), Some(0));
    // The line of an old kernel.
    let nvme = row_of(&rows, "nvme0n1").expect("a row");
    assert_eq!(rows.get(nvme, "read_ops"), Some(1));
    assert_eq!(rows.get(nvme, "discard_ops"), None);
    assert_eq!(rows.get(nvme, "flush_ns"), None);
}

#[test]
fn reset_disks_and_malformed_lines_are_null() {
    let node = Tree::of("vm", "odd-disks");
    let mut reader = Reader::open(&disk::SPEC, &node.host());
    for text in [
        "",
        "8 0\n",
        "x y sda 1 1\n\n   \n8 0 sdb\n",
        DISKS,
        // A reset; not a number, negative, too large; a truncated line.
        "8 0 sda 1 0 1 1 1 1 1 1 1 1 1\n8 1 sda1 91 x 1801 -5 99999999999999999999 5 400 60 0 400 800\n8 16 sdb 1 1 1",
    ] {
        node.put("proc/diskstats", text);
        let rows = reader.rows();
        if text.contains("-5") {
            let sda = row_of(&rows, "sda").expect("a row");
            assert_eq!(rows.get(sda, "read_ops"), None, "reset");
            let part = row_of(&rows, "sda1").expect("a row");
            assert_eq!(rows.get(part, "read_ops"), Some(1));
            for column in ["read_merged", "read_ns", "write_ops", "flush_ops"] {
                assert_eq!(rows.get(part, column), None, "{column}");
            }
            assert_eq!(rows.len(), 2);
        }
    }
    node.remove("proc/diskstats");
    // The old handle still reads the removed file; a new one does not find it.
    assert!(Reader::open(&disk::SPEC, &node.host()).sample().is_err());
    fs::create_dir(node.path("proc/diskstats")).expect("a directory");
    assert!(Reader::open(&disk::SPEC, &node.host()).sample().is_err());
}

/// A setting that only the node's network namespace has.
const IN_INITIAL_NAMESPACE: &str = "proc/sys/net/core/netdev_max_backlog";

const HEAD: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
";

#[test]
fn interfaces_have_exact_increases_and_kinds() {
    let node = Tree::of("vm", "interfaces");
    node.put(IN_INITIAL_NAMESPACE, "1000\n");
    for (name, kind) in [("lo", 772), ("eth0", 1), ("br0", 1)] {
        node.put(format!("sys/class/net/{name}/type"), format!("{kind}\n"));
    }
    node.put("sys/class/net/eth0/device/vendor", "0x15b3\n");
    let file = |lines: &str| node.put("proc/net/dev", format!("{HEAD}{lines}"));
    file(
        "    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0:1000 10 1 2 3 4 5 6 2000 20 7 8 9 10 11 12\n   br0: 5 5 0 0 0 0 0 0 5 5 0 0 0 0 0 0\n",
    );
    let mut reader = Reader::open(&netdev::SPEC, &node.host());
    assert_eq!(reader.rows().len(), 0);
    file(
        "    lo: 3 2 0 0 0 0 0 0 3 2 0 0 0 0 0 0\n  eth0:1100 12 2 4 6 8 10 12 2300 24 12 14 16 18 20 22\n   br0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\neth0:1: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n",
    );
    let rows = reader.rows();
    assert_eq!(rows.len(), 3);
    let eth0 = row_of(&rows, "eth0").expect("a row");
    for (column, value) in [
        ("rx_bytes", 100),
        ("rx_packets", 2),
        ("rx_errors", 1),
        ("rx_dropped", 2),
        ("rx_fifo", 3),
        ("multicast", 6),
        ("tx_bytes", 300),
        ("tx_packets", 4),
        ("tx_errors", 5),
        ("tx_dropped", 6),
        ("tx_fifo", 7),
        ("collisions", 8),
        ("carrier", 9),
    ] {
        assert_eq!(rows.get(eth0, column), Some(value), "{column}");
    }
    for (device, kind) in [("lo", "loopback"), ("eth0", "physical"), ("br0", "virtual")] {
        let row = row_of(&rows, device).expect("a row");
        assert_eq!(rows.text(row, "kind").as_deref(), Some(kind));
    }
    let bridge = row_of(&rows, "br0").expect("a row");
    assert_eq!(rows.get(bridge, "rx_bytes"), None, "created again");
}

/// Virtual functions below a synthetic interface of Hyper-V, ports of a bond and of a bridge, VLANs.
#[test]
fn kinds_add_up_to_the_traffic() {
    let node = Tree::of("vm", "kinds");
    let kinds = || -> Vec<(String, String)> {
        let mut reader = Reader::open(&netdev::SPEC, &node.host());
        reader.rows();
        let rows = reader.rows();
        let text = |row, column| rows.text(row, column).expect("known");
        (0..rows.len())
            .map(|row| (text(row, "device"), text(row, "kind")))
            .collect()
    };
    let interfaces = [
        // Name, entries in sysfs, kind, kind in a container.
        (
            "synthetic",
            &["device/vendor", "lower_function/type"][..],
            "physical",
            "physical",
        ),
        (
            "function",
            &["device/vendor", "upper_synthetic/type"],
            "virtual",
            "virtual",
        ),
        (
            "port0",
            &["device/vendor", "upper_bond0/type"],
            "physical",
            "physical",
        ),
        (
            "port1",
            &["device/vendor", "upper_bond0/type"],
            "physical",
            "physical",
        ),
        (
            "bond0",
            &["lower_port0/type", "lower_port1/type"],
            "virtual",
            "virtual",
        ),
        ("bond0.5", &["lower_bond0/type"], "virtual", "virtual"),
        (
            "veth0",
            &["brport/state", "upper_bridge/type"],
            "virtual",
            "virtual",
        ),
        ("bridge", &["lower_veth0/type"], "virtual", "virtual"),
        ("cable", &[], "virtual", "container"),
    ];
    let line = |name| format!("{name}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n");
    let lines = interfaces.map(|(name, ..)| line(name)).concat();
    node.put("proc/net/dev", format!("{HEAD}{lines}"));
    for (name, entries, ..) in interfaces {
        for entry in entries.iter().chain(&["type"]) {
            node.put(format!("sys/class/net/{name}/{entry}"), "1\n");
        }
    }
    let pair = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
    assert_eq!(
        kinds(),
        interfaces.map(|(name, _, _, kind)| pair(name, kind))
    );
    node.put(IN_INITIAL_NAMESPACE, "1000\n");
    assert_eq!(
        kinds(),
        interfaces.map(|(name, _, kind, _)| pair(name, kind))
    );
}

#[test]
fn ten_thousand_interfaces_and_malformed_lines() {
    let node = Tree::of("vm", "many-interfaces");
    let line = |number| format!("veth{number}: {number} 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n");
    let many = (0..10_000).map(line).collect::<Vec<_>>().concat();
    node.put("proc/net/dev", format!("{HEAD}{many}"));
    let mut reader = Reader::open(&netdev::SPEC, &node.host());
    reader.rows();
    let rows = reader.rows();
    assert_eq!(rows.len(), 10_000);
    assert_eq!(rows.get(9_999, "rx_bytes"), Some(0));
    for text in [
        "",
        ":",
        ": 1 2 3\n",
        "a:\n",
        "a: -1 x\n",
        "no colon\n",
        HEAD,
        "a: 1",
    ] {
        node.put("proc/net/dev", text);
        reader.rows();
    }
    node.put("proc/net/dev", "a: 1 2\n");
    reader.rows();
    node.put("proc/net/dev", "a: 3 x\n");
    let rows = reader.rows();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows.get(0, "rx_bytes"), Some(2));
    assert_eq!(rows.nulls(0).len(), 12);
}

/// Bytes sent over the loopback interface of this machine.
fn loopback() -> u64 {
    let text = fs::read_to_string("/proc/net/dev").expect("readable");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("lo:"));
    let field = line.and_then(|line| line.split_whitespace().nth(8));
    field
        .and_then(|field| field.parse().ok())
        .expect("a number")
}

#[test]
fn the_loopback_interface_counts_sent_bytes() {
    let mut reader = Reader::open(&netdev::SPEC, &this_host());
    let before = loopback();
    reader.rows();
    let first = loopback();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("an address");
    let address = socket.local_addr().expect("bound");
    for _ in 0..200 {
        socket.send_to(&[0; 1000], address).expect("sent");
    }
    let second = loopback();
    let rows = reader.rows();
    let after = loopback();
    let row = row_of(&rows, "lo").expect("a row");
    let sent = rows.get(row, "tx_bytes").expect("known");
    // Each with UDP and IP headers, and no link-layer header.
    assert!(sent >= 200 * (1000 + 8 + 20), "{sent}");
    assert!((second - first..=after - before).contains(&sent), "{sent}");
    assert_eq!(rows.get(row, "rx_bytes"), Some(sent));
    assert_eq!(rows.text(row, "kind").as_deref(), Some("loopback"));
}
