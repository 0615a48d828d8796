//! Two network namespaces connected by a veth pair.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, id},
};

use e2e::{
    procfs,
    rows::sum,
    runs::{Profiler, wait_until},
};
use serde_json::Value;

use super::{Account, Labels, WORKLOAD, account_of, tcp, udp};

/// A network namespace, removed with its links when it is dropped.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace in which only the loopback interface is up.
    pub fn new(name: &str) -> Self {
        let name = format!("{name}-{}", id());
        ip(&["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    /// `ip netns exec` of a command.
    pub fn within<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        [&["ip", "netns", "exec", &self.name], command].concat()
    }

    fn ip(&self, words: &[&str]) {
        ip(&[&["-n", &self.name], words].concat());
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

#[track_caller]
fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("iproute2");
    assert!(status.success(), "ip {words:?}");
}

/// The veth pair: 10.77.0.1 and fd77::1 here, 10.77.0.2 and fd77::2 in the other namespace.
struct Cable {
    here: Namespace,
    there: Namespace,
}

impl Cable {
    fn new() -> Self {
        let (here, there) = (Namespace::new("here"), Namespace::new("there"));
        let end = ["peer", "name", "cable", "netns", &there.name];
        let link = ["link", "add", "cable", "netns", &here.name, "type", "veth"];
        ip(&[&link[..], &end].concat());
        for (side, number) in [(&here, 1), (&there, 2)] {
            side.ip(&["link", "set", "cable", "up"]);
            side.ip(&[
                "addr",
                "add",
                &format!("10.77.0.{number}/24"),
                "dev",
                "cable",
            ]);
            let address = format!("fd77::{number}/64");
            side.ip(&["addr", "add", &address, "dev", "cable", "nodad"]);
        }
        Self { here, there }
    }

    /// Profiles a workload whose first process is here and whose second is in the other namespace.
    #[track_caller]
    fn account(&self, words: &[&str]) -> Account {
        let command = [&[WORKLOAD], words, &[&self.there.name]].concat();
        account_of(Profiler::new(), &self.here.within(&command))
    }
}

#[test]
fn veth_peer_is_remote() {
    let cable = Cable::new();
    for (address, family) in [("10.77.0.1", "inet"), ("[fd77::1]", "inet6")] {
        let bind = format!("{address}:0");
        let account = cable.account(&["tcp", &bind, "500", "100"]);
        tcp::assert_echo(&account, family, "remote", 500);
        let account = cable.account(&["udp", &bind, address, "500", "60"]);
        udp::assert_echo(&account, family, "remote", 500, false);
    }
}

#[test]
fn own_addresses_are_loopback_on_any_interface() {
    let cable = Cable::new();
    for (address, family) in [("10.77.0.1", "inet"), ("[fd77::1]", "inet6")] {
        let bind = format!("{address}:0");
        let command = [WORKLOAD, "tcp", &bind, "500", "100"];
        let account = account_of(Profiler::new(), &cable.here.within(&command));
        tcp::assert_echo(&account, family, "loopback", 500);
        let command = [WORKLOAD, "udp", &bind, address, "500", "60"];
        let account = account_of(Profiler::new(), &cable.here.within(&command));
        udp::assert_echo(&account, family, "loopback", 500, false);
    }
}

/// Bytes that have arrived by the cable in the network namespace of a process.
fn received(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).expect("it lives");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("cable:"));
    let bytes = line.and_then(|line| line.split_whitespace().next());
    bytes.map_or(0, |bytes| bytes.parse().expect("a number"))
}

/// TCP segments that were retransmitted in the network namespace of a process.
fn resent(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/net/snmp")).expect("it lives");
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let mut words = || lines.next().expect("two lines").split(' ');
    let found = words()
        .zip(words())
        .find(|(name, _)| *name == "RetransSegs");
    found.expect("a counter").1.parse().expect("a number")
}

/// Packets are dropped by `tc netem`, if its module is available, and while the receiver has no
/// address.
#[test]
fn retransmits_match_the_kernel() {
    let cable = Cable::new();
    if Path::new("/sys/module/sch_netem").exists() {
        let status = Command::new("tc")
            .args(["-n", &cable.there.name, "qdisc", "add", "dev", "cable"])
            .args(["root", "netem", "loss", "1%"])
            .status();
        assert!(status.is_ok_and(|status| status.success()), "netem");
    }
    let bytes: u64 = 16 << 20;
    let bytes_word = bytes.to_string();
    let words = ["bulk", "10.77.0.1:0", &bytes_word, &cable.there.name];
    let command = [&[WORKLOAD], &words[..]].concat();
    let mut profiler = Profiler::new()
        .args(["-i", "100ms"])
        .command(&cable.here.within(&command))
        .spawn();
    profiler.wait_for("profiling ");
    let receiver = procfs::children(profiler.pid())[0];
    wait_until("the first bytes have arrived", || {
        received(receiver) > 1 << 20
    });
    let sender = procfs::children(receiver)[0];
    let before = resent(sender);
    cable
        .here
        .ip(&["addr", "del", "10.77.0.1/24", "dev", "cable"]);
    wait_until("a segment is retransmitted", || resent(sender) > before);
    cable
        .here
        .ip(&["addr", "add", "10.77.0.1/24", "dev", "cable"]);
    let account = Account::of(&profiler.finish());
    let (pid, kernel) = account.fact("sender");
    assert!(kernel[0] > 0, "nothing was lost");
    let labels = Labels::all("tcp").family("inet").scope("remote").pid(pid);
    account.check(labels, &[("retransmits", kernel[0]), ("tx_bytes", bytes)]);
    let all = account.rows(Labels::all("tcp"));
    assert_eq!(sum(&all, "rx_bytes"), bytes);
}

/// A container: the cable leads out of it, and a macvlan interface is on the cable. Another veth pair is
/// in a bridge, as those of containers in the container.
#[test]
fn traffic_of_a_container_counts_once() {
    let cable = Cable::new();
    let end = format!(
        "link add port type veth peer name inner netns {}",
        cable.there.name
    );
    for words in [
        &end,
        "link add over link cable address 02:00:00:00:00:01 type macvlan",
        "link set over up",
        "addr add 10.78.0.1/24 dev over",
        "link add bridge type bridge",
        "link set port master bridge",
    ] {
        cable.here.ip(&words.split(' ').collect::<Vec<_>>());
    }
    for words in [
        "addr add 10.78.0.2/24 dev cable",
        // The other interface would answer, too.
        "neigh add 10.78.0.1 lladdr 02:00:00:00:00:01 dev cable",
    ] {
        cable.there.ip(&words.split(' ').collect::<Vec<_>>());
    }
    let profiler = Profiler::wrapped_in(&cable.here.within(&[]))
        .args([
            "--node",
            "-i",
            "100ms",
            "--source",
            "cpu,system,netdev,timeline",
        ])
        .start();
    let before = received(profiler.pid());
    let words = ["udp", "10.78.0.1:0", "10.78.0.1", "500", "1000"];
    let workload = [&[WORKLOAD], &words[..], &[&cable.there.name]].concat();
    let workload = cable.here.within(&workload);
    let status = Command::new(workload[0]).args(&workload[1..]).status();
    assert!(status.expect("ip starts").success());
    let counted = received(profiler.pid()) - before;
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let rows = data.table("netdev");
    let of = |device: &str, column: &str| {
        let mut rows = rows.clone();
        rows.retain(|row| row.text("device") == Some(device));
        sum(&rows, column)
    };
    let kinds: BTreeSet<_> = rows
        .iter()
        .map(|row| (row.text("device"), row.text("kind")))
        .collect();
    for pair in [
        ("lo", "loopback"),
        ("cable", "container"),
        ("over", "virtual"),
        ("port", "virtual"),
        ("bridge", "virtual"),
    ] {
        assert!(
            kinds.contains(&(Some(pair.0), Some(pair.1))),
            "{pair:?}: {kinds:?}"
        );
    }
    let (received, sent) = (of("cable", "rx_bytes"), of("cable", "tx_bytes"));
    assert!(received >= counted, "{received} < {counted}");
    // Two clients, each with this many echoes.
    let payload = 2 * 500 * 1000;
    assert!(counted > payload && of("over", "rx_bytes") > payload);
    assert!(sent > payload && of("over", "tx_bytes") > payload);
    let timeline = data.table("timeline");
    assert_eq!(sum(&timeline, "node_net_rx_bytes"), received);
    assert_eq!(sum(&timeline, "node_net_tx_bytes"), sent);
    let assert_mebibytes = |value: &Value, bytes: u64| {
        let found = value.as_f64().expect("known") * 1_048_576.0;
        assert!((found - bytes as f64).abs() < 0.5, "{found}, not {bytes}");
    };
    let node = &data.summary()["nodes"][0]["compat"]["perfpy"];
    assert_mebibytes(&node["total_net_io_ext_recv_mb"], received);
    assert_mebibytes(&node["total_net_io_ext_sent_mb"], sent);
    let reports = data.exported("perfpy");
    let last = reports["0"].as_array().and_then(|list| list.last());
    assert_mebibytes(&last.expect("a report")["net_io_ext_sent_mb"], sent);
}
