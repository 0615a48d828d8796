//! Compared with other tools: bpftrace for block requests and sockets, ss for TCP.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    process::{Child, ChildStdout, Command, Stdio},
};

use e2e::{
    mounts::{LoopDevice, directory},
    rows::{Row, sum},
    runs::Profiler,
    workload_driver::WorkloadDriver,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload-net");

/// A running bpftrace, with a tracefs in a private mount namespace.
struct Bpftrace {
    child: Child,
    lines: BufReader<ChildStdout>,
}

/// The maps of a bpftrace program: values by key, by name of the map.
type Maps = BTreeMap<String, BTreeMap<String, u64>>;

impl Bpftrace {
    const START: &str =
        "mount -t tracefs none /sys/kernel/tracing && exec bpftrace -f json -e \"$0\"";

    /// Starts bpftrace; returns when all probes are attached.
    fn start(program: &str) -> Self {
        // Probes are attached in order, so that the last one signals that all are attached.
        let program = format!("{program} interval:ms:50 {{ printf(\"attached\\n\"); }}");
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-c", Self::START, &program])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("\"attached\\n\"") {
            line.clear();
            let read = lines.read_line(&mut line).expect("text");
            assert!(read > 0, "bpftrace has failed, see its stderr");
        }
        Self { child, lines }
    }

    fn stop(mut self) -> Maps {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).expect("it runs");
        let mut maps = Maps::new();
        for line in (&mut self.lines).lines() {
            let line = line.expect("text");
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            if value["type"] != "map" {
                continue;
            }
            for (name, values) in value["data"].as_object().expect("a map") {
                let values = values.as_object().expect("keys");
                let number = |value: &Value| value.as_u64().expect("a number");
                let values = values
                    .iter()
                    .map(|(key, value)| (key.clone(), number(value)));
                maps.insert(name.clone(), values.collect());
            }
        }
        assert!(self.child.wait().expect("it ends").success());
        maps
    }
}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn block_requests_match_bpftrace() {
    const READS: u64 = 700;
    const WRITES: u64 = 300;
    let directory = directory();
    let disk = LoopDevice::new(&directory.path().join("image"), 16);
    let device = std::fs::metadata(disk.path()).expect("a device").rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let number = u64::from(major) << 20 | u64::from(minor);
    let bpftrace = Bpftrace::start(&format!(
        "tracepoint:block:block_rq_complete /args->dev == {number}/ \
         {{ @ops[args->rwbs] = count(); @sectors[args->rwbs] = sum(args->nr_sector); }}"
    ));
    let script = format!(
        "dd if=$0 of=/dev/null bs=8k count={READS} iflag=direct status=none && \
         dd if=/dev/zero of=$0 bs=16k count={WRITES} oflag=direct status=none"
    );
    let finished = Profiler::new()
        .args(["-i", "200ms", "--source", "process,block_io"])
        .command(&["sh", "-c", &script, disk.path()])
        .finish();
    let maps = bpftrace.stop();
    let mut rows = finished.dataset().table("block_io");
    rows.retain(|row| row.text("device") == Some(disk.name()));
    for (op, letter, ops, bytes) in [
        ("read", 'R', READS, READS * 8192),
        ("write", 'W', WRITES, WRITES * 16384),
    ] {
        let of_op = |row: &&Row| row.text("op") == Some(op);
        let of_op: Vec<Row> = rows.iter().filter(of_op).cloned().collect();
        let traced = |map: &str| -> u64 {
            let entries = maps[map].iter().filter(|(key, _)| key.starts_with(letter));
            entries.map(|(_, value)| value).sum()
        };
        let ours = (sum(&of_op, "ops"), sum(&of_op, "bytes"));
        assert_eq!(ours, (ops, bytes), "{op}");
        assert_eq!(
            (traced("@ops"), 512 * traced("@sectors")),
            ours,
            "{op}: {maps:?}"
        );
    }
}

/// Bytes and calls of sockets by process, family and protocol, from the return values (Linux 6.4).
const SOCKETS: &str = "\
tracepoint:sock:sock_send_length /args->ret > 0/ {
    @tx_bytes[pid, args->family, args->protocol] = sum(args->ret);
    @tx_calls[pid, args->family, args->protocol] = count();
}
tracepoint:sock:sock_recv_length /args->ret > 0/ {
    @rx_bytes[pid, args->family, args->protocol] = sum(args->ret);
    @rx_calls[pid, args->family, args->protocol] = count();
}";

#[test]
fn messages_match_bpftrace() {
    let bpftrace = Bpftrace::start(SOCKETS);
    let script = "$0 tcp 127.0.0.1 3000 200; $0 tcp ::1 1000 300; \
                  $0 udp 127.0.0.1 127.0.0.1 2000 100; $0 unix 1500 70";
    let finished = Profiler::new()
        .args(["-i", "200ms", "--source", "process,net_io"])
        .command(&["sh", "-c", script, WORKLOAD])
        .finish();
    let maps = bpftrace.stop();
    let data = finished.dataset();
    let pids: Vec<u64> = data
        .table("process")
        .iter()
        .map(|row| row.u64("pid").expect("a number"))
        .collect();
    let rows = data.table("net_io");
    let mut messages = 0;
    for (column, by_key) in ["tx_bytes", "tx_calls", "rx_bytes", "rx_calls"]
        .map(|column| (column, maps.get(&format!("@{column}")).expect("a map")))
    {
        let mut traced: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        for (key, value) in by_key {
            let numbers: Vec<u64> = key
                .split(',')
                .map(|number| number.parse().expect("a number"))
                .collect();
            // AF_UNIX; IPPROTO_TCP and IPPROTO_UDP of AF_INET and AF_INET6.
            let protocol = match numbers[1..] {
                [1, _] => "unix",
                [2 | 10, 6] => "tcp",
                [2 | 10, 17] => "udp",
                _ => continue,
            };
            if pids.contains(&numbers[0]) {
                *traced.entry((numbers[0], protocol)).or_default() += value;
            }
        }
        let mut ours: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        for row in &rows {
            let key = (
                row.u64("pid").expect("a number"),
                row.text("protocol").expect("a word"),
            );
            *ours.entry(key).or_default() += row.u64(column).expect("a number");
        }
        ours.retain(|_, value| *value > 0);
        messages += ours.values().sum::<u64>();
        assert_eq!(ours, traced, "{column}");
    }
    assert!(messages > 2 * 2 * 7500, "{messages}");
}

/// Sum of a counter of ss over the TCP sockets of a process.
fn ss(pid: u32, name: &str) -> u64 {
    let output = Command::new("ss")
        .args(["--tcp", "--info", "--processes", "--no-header", "--oneline"])
        .output()
        .expect("ss starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let of_pid = format!("pid={pid},");
    let sockets: Vec<&str> = text.lines().filter(|line| line.contains(&of_pid)).collect();
    assert_eq!(sockets.len(), 2, "{text}");
    let words = sockets.iter().flat_map(|line| line.split_whitespace());
    let numbers = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
    numbers
        .map(|number| number.parse::<u64>().expect("a number"))
        .sum()
}

#[test]
fn tcp_bytes_match_ss() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    workload.run("read 5000");
    let pid = workload.pid();
    let read = || ["bytes_sent", "bytes_received"].map(|name| ss(pid, name));
    let before = read();
    let profiler = Profiler::new()
        .args(["-i", "200ms", "--source", "process,net_io"])
        .pid(workload.pid())
        .start();
    assert_eq!(before, read(), "the workload is idle");
    workload.run("tcp 300");
    workload.run("read 30000");
    let after = read();
    let finished = profiler.interrupt();
    let mut rows = finished.dataset().table("net_io");
    rows.retain(|row| row.text("protocol") == Some("tcp"));
    let ours = ["tx_bytes", "rx_bytes"].map(|column| sum(&rows, column));
    assert_eq!(ours, [30_000, 30_000]);
    assert_eq!([0, 1].map(|index| after[index] - before[index]), ours);
}
