//! Soft RoCE, an adapter in software, with transfers between two processes.

use std::{fs, path::Path};

use e2e::{
    rows::sum,
    runs::{ProcessGroup, Profiler, wait_until},
};

use super::run;

/// Soft RoCE on a dummy interface.
struct Adapter;

impl Adapter {
    fn add() -> Self {
        run(&["ip", "link", "set", "dummy0", "up"]);
        run(&["ip", "address", "replace", "10.0.0.1/24", "dev", "dummy0"]);
        run(&[
            "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "dummy0",
        ]);
        Self
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        run(&["rdma", "link", "delete", "rxe0"]);
    }
}

const PORT: &str = "/sys/class/infiniband/rxe0/ports/1";

fn hw_counter(name: &str) -> u64 {
    let text = fs::read_to_string(format!("{PORT}/hw_counters/{name}")).expect("a counter");
    text.trim().parse().expect("a number")
}

/// Index of the GID of the IPv4 address.
fn gid() -> String {
    let mut index = 0;
    loop {
        let gid = fs::read_to_string(format!("{PORT}/gids/{index}")).expect("an address");
        if gid.contains("ffff:0a00:0001") {
            return index.to_string();
        }
        index += 1;
    }
}

/// Exchanges messages between two processes.
fn transfer(messages: u64, bytes: u64) {
    let (messages, bytes, gid) = (messages.to_string(), bytes.to_string(), gid());
    let command = [
        "ibv_rc_pingpong",
        "-d",
        "rxe0",
        "-g",
        &gid,
        "-m",
        "1024",
        "-n",
        &messages,
        "-s",
        &bytes,
    ];
    let mut server = ProcessGroup::spawn(&command);
    wait_until("the server is ready", || {
        let sockets = fs::read_to_string("/proc/net/tcp6").expect("readable");
        let ipv4 = fs::read_to_string("/proc/net/tcp").expect("readable");
        // Port 18515.
        [sockets, ipv4].iter().any(|text| text.contains(":4853 "))
    });
    run(&[&command[..], &["127.0.0.1"]].concat());
    assert!(server.0.wait().expect("our child").success());
}

#[test]
fn messages_match_packets_and_sends() {
    let _adapter = Adapter::add();
    let before = ["sent_pkts", "rcvd_pkts", "rdma_sends"].map(hw_counter);
    let profiler = Profiler::new().args(["--node", "--source", "fabric,netdev", "-i", "500ms"]);
    let profiler = profiler.start();
    let (messages, bytes) = (200, 8192);
    transfer(messages, bytes);
    // The kernel's values may be as old as the lifespan of its counters.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let finished = profiler.interrupt();
    let after = ["sent_pkts", "rcvd_pkts", "rdma_sends"].map(hw_counter);
    let dataset = finished.dataset();
    let mut ports = dataset.table("fabric");
    ports.retain(|row| row.text("device") == Some("rxe0"));
    let mut counters = dataset.table("fabric_counter");
    counters.retain(|row| row.text("device") == Some("rxe0"));
    let of = |name: &str| {
        let mut rows = counters.clone();
        rows.retain(|row| row.text("counter") == Some(name));
        assert!(!rows.is_empty(), "{name}");
        sum(&rows, "value")
    };
    // Each end sends all messages; a message of eight packets has at least one acknowledgement.
    assert_eq!(of("rdma_sends"), 2 * messages);
    let data = 2 * messages * bytes / 1024;
    assert!(of("sent_pkts") > data, "{} for {data}", of("sent_pkts"));
    // There is no other sender.
    let increases: Vec<u64> = before
        .iter()
        .zip(after)
        .map(|(before, after)| after - before)
        .collect();
    assert_eq!(
        increases,
        [of("sent_pkts"), of("rcvd_pkts"), of("rdma_sends")]
    );
    assert_eq!(sum(&ports, "tx_packets"), of("sent_pkts"));
    assert_eq!(sum(&ports, "rx_packets"), of("rcvd_pkts"));
    assert!(!Path::new(PORT).join("counters").exists());
    for row in &ports {
        assert_eq!(row.text("link_layer"), Some("Ethernet"));
        assert_eq!(row.text("state"), Some("ACTIVE"));
        assert_eq!(row.u64("tx_bytes"), None, "it counts none");
        assert_eq!(row.u64("rx_bytes"), None);
    }
    // RDMA transfers do not appear on network interfaces.
    let mut interfaces = dataset.table("netdev");
    interfaces.retain(|row| row.text("device") == Some("dummy0"));
    assert!(sum(&interfaces, "tx_bytes") < bytes * messages / 10);
}
