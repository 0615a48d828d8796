//! Two network namespaces connected by a veth pair.

use std::{
    fs,
    path::Path,
    process::{Command, id},
};

use e2e::{
    procfs,
    rows::sum,
    runs::{Profiler, wait_until},
};

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

/// TCP segments that were sent again in the network namespace of a process.
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
    wait_until("a segment is sent again", || resent(sender) > before);
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
