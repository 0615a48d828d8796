//! TCP over the loopback interface.

use std::{collections::BTreeMap, fs, path::Path};

use e2e::{
    histogram::edges,
    rows::{Row, sum},
    runs::{Profiler, wait_until},
    workload_driver::WorkloadDriver,
};

use super::{Account, Labels, WORKLOAD, account, assert_only, namespaces::Namespace};
use crate::targets::Group;

const SIZE: u64 = 100;

/// Asserts all known values of the two ends of an echo.
#[track_caller]
pub fn assert_echo(account: &Account, family: &'static str, scope: &'static str, count: u64) {
    let labels = Labels::all("tcp").family(family).scope(scope);
    for (name, connects) in [("client", 1), ("server", 0)] {
        let (pid, reported) = account.fact(name);
        account.check(
            labels.pid(pid),
            &[
                ("tx_bytes", count * SIZE),
                ("rx_bytes", count * SIZE),
                ("tx_calls", count),
                // One more read returns the end of the stream.
                ("rx_calls", count + 1),
                ("tx_segments", reported[0]),
                ("rx_segments", reported[1]),
                ("retransmits", reported[3]),
                ("connects", connects),
                ("connect_failures", 0),
                ("accepts", 1 - connects),
                ("resets", 0),
            ],
        );
        let connected = account.latency(pid, "tcp_connect");
        assert_eq!(sum(&connected, "count"), connects);
        // The last row has the values that the kernel reports at the end.
        let trips = account.latency(pid, "tcp_rtt");
        let last = trips.last().expect("a round-trip time");
        let rtt = reported[2] * 1000;
        let buckets = last.list("buckets").expect("buckets").iter().enumerate();
        let is_of = |bucket| (edges(bucket).0..edges(bucket).1).contains(&rtt);
        let of_bucket: u64 = buckets
            .filter(|(bucket, _)| is_of(*bucket))
            .map(|(_, n)| n)
            .sum();
        assert!(
            of_bucket > 0 && last.u64("max_ns") >= Some(rtt),
            "{rtt}: {last:?}"
        );
    }
    assert_only(account, "tx_bytes", 2 * count * SIZE);
    assert_only(account, "rx_bytes", 2 * count * SIZE);
}

#[track_caller]
fn echo(address: &str, family: &'static str, count: u64) {
    let account = account(&["tcp", address, &count.to_string(), &SIZE.to_string()]);
    assert_echo(&account, family, "loopback", count);
}

#[test]
fn messages_over_ipv4() {
    echo("127.0.0.1:0", "inet", 10_000);
}

#[test]
fn messages_over_ipv6() {
    echo("[::1]:0", "inet6", 10_000);
}

#[test]
fn messages_over_ipv4_through_ipv6_sockets() {
    echo("[::ffff:127.0.0.1]:0", "inet", 10_000);
}

#[test]
fn connections_match_the_kernel() {
    let namespace = Namespace::new("conn");
    let (kept, refused, reset) = (40, 7, 5);
    let words = [WORKLOAD, "connections", "40", "7", "5"];
    let account = super::account_of(Profiler::new(), &namespace.within(&words));
    let (pid, kernel) = account.fact("kernel");
    // Both ends of a reset connection are in the target.
    let known = [kept + refused + reset, kept + reset, 2 * reset];
    assert_eq!(kernel, known, "the workload");
    account.check(
        Labels::all("tcp").pid(pid).family("inet").scope("loopback"),
        &[
            ("connects", kept + reset),
            ("connect_failures", refused),
            ("accepts", kept + reset),
            ("resets", 2 * reset),
            ("tx_bytes", kept + reset),
            ("rx_bytes", kept + reset),
            ("tx_calls", kept + reset),
            // Reads at the end of the stream count, failed reads do not.
            ("rx_calls", 2 * kept + reset),
        ],
    );
    for (column, expected) in [("connects", 45), ("connect_failures", 7), ("accepts", 45)] {
        assert_only(&account, column, expected);
    }
    assert_eq!(
        sum(&account.latency(pid, "tcp_connect"), "count"),
        kept + reset
    );
}

#[test]
fn concurrent_writers_are_kept_apart() {
    let counts = ["1000", "2000", "3000", "4000", "5000"];
    let account = account(&[&["writers"], &counts[..]].concat());
    let writers = account.facts.iter().filter(|fact| fact.0 == "writer");
    let mut total = 0;
    assert_eq!(writers.clone().count(), counts.len());
    for (_, pid, numbers) in writers {
        let (count, size) = (numbers[0], numbers[1]);
        total += count * size;
        account.check(
            Labels::all("tcp").pid(*pid),
            &[
                ("tx_bytes", count * size),
                ("tx_calls", count),
                ("rx_bytes", 0),
                ("connects", 1),
                ("accepts", 0),
            ],
        );
    }
    assert_only(&account, "rx_bytes", total);
    assert_only(&account, "accepts", 5);
}

/// Threads that have ended before they were read.
#[test]
fn messages_of_ended_threads_count() {
    const THREADS: u64 = 40;
    let account = |options: &[&str]| {
        let command = [WORKLOAD, "threads", &THREADS.to_string()];
        super::account_of(Profiler::new().args(options), &command)
    };
    let calls = THREADS * (THREADS + 1) / 2;
    let of_process = account(&[]);
    let known = [
        ("tx_calls", calls),
        ("tx_bytes", 10 * calls),
        ("rx_bytes", 10 * calls),
        ("connects", THREADS),
        ("accepts", THREADS),
    ];
    of_process.check(Labels::all("tcp"), &known);
    let of_threads = account(&["--threads"]);
    let rows = of_threads.rows(Labels::all("tcp"));
    let (of_threads, of_process): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.u64("tid").is_some());
    assert_eq!(known.map(|(name, _)| (name, sum(&of_process, name))), known);
    let mut sent = BTreeMap::new();
    for row in &of_threads {
        *sent.entry(row.u64("tid")).or_default() += row.u64("tx_calls").expect("a number");
    }
    let mut sent: Vec<u64> = sent.into_values().collect();
    sent.sort_unstable();
    // The first thread only receives.
    assert_eq!(sent, (0..=THREADS).collect::<Vec<_>>());
}

/// Bytes of the files of table `usage`.
fn written(run: &Path) -> u64 {
    let hosts = fs::read_dir(run.join("usage")).into_iter().flatten();
    let files = hosts.filter_map(|host| fs::read_dir(host.ok()?.path()).ok());
    let files = files
        .flatten()
        .filter_map(|file| file.ok()?.metadata().ok());
    files.map(|file| file.len()).sum()
}

/// Messages before a process joins a cgroup, and after it has left, are not counted.
#[test]
fn messages_within_the_cgroup_count() {
    let group = Group::new();
    let mut member = WorkloadDriver::new(WORKLOAD, 0);
    let mut remains = WorkloadDriver::new(WORKLOAD, 0);
    group.add(remains.pid());
    let profiler = Profiler::new()
        .args(["-i", "100ms", "--cgroup"])
        .args([&group.0])
        .start();
    // The profiler follows moves before a sample.
    let run = profiler.run_dir();
    let samples = || {
        for _ in 0..3 {
            let before = written(&run);
            wait_until("a sample is written", || written(&run) != before);
        }
    };
    member.run("tcp 1000");
    group.add(member.pid());
    samples();
    member.run("tcp 200");
    member.run("udp 30");
    remains.run("tcp 50");
    group.remove(member.pid());
    samples();
    member.run("tcp 4000");
    group.add(member.pid());
    samples();
    member.run("tcp 7");
    let pids = [&member, &remains].map(|workload| u64::from(workload.pid()));
    drop((member, remains));
    let rows = profiler.finish().dataset().table("net_io");
    let calls = |pid: u64, protocol: &str| {
        let ours =
            |row: &&Row| row.u64("pid") == Some(pid) && row.text("protocol") == Some(protocol);
        sum(
            &rows.iter().filter(ours).cloned().collect::<Vec<_>>(),
            "tx_calls",
        )
    };
    let found = [
        calls(pids[0], "tcp"),
        calls(pids[0], "udp"),
        calls(pids[1], "tcp"),
    ];
    assert_eq!(found, [207, 30, 50]);
}

#[test]
fn short_reads_count_and_failed_reads_do_not() {
    let account = account(&["reads"]);
    account.check(
        Labels::all("tcp"),
        &[
            ("tx_bytes", 1000),
            ("rx_bytes", 1000),
            ("tx_calls", 1),
            ("rx_calls", 10),
        ],
    );
}

#[test]
fn socket_is_charged_to_the_process_using_it() {
    for (words, others) in [
        (
            &["pass", "300", "500"][..],
            [("giver", 300), ("taker", 500)],
        ),
        (&["inherit", "700"], [("parent", 0), ("heir", 700)]),
    ] {
        let account = account(words);
        for (name, count) in others {
            let (pid, _) = account.fact(name);
            let labels = Labels::all("tcp").pid(pid);
            account.check(labels, &[("tx_bytes", 10 * count), ("tx_calls", count)]);
        }
        let total = others[0].1 + others[1].1;
        assert_eq!(sum(&account.rows(Labels::all("tcp")), "tx_calls"), total);
        assert_only(&account, "connects", 1);
    }
}

#[test]
fn older_socket_counts_from_attach() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    workload.run("tcp 30");
    let profiler = Profiler::new()
        .args(["-i", "100ms"])
        .pid(workload.pid())
        .start();
    workload.run("tcp 70");
    workload.run("udp 40");
    // Includes bytes received before the profiler attached.
    workload.run("read 9000");
    let account = Account::of(&profiler.interrupt());
    account.check(
        Labels::all("tcp").family("inet").scope("loopback"),
        &[
            ("tx_bytes", 7000),
            ("tx_calls", 70),
            ("rx_bytes", 9000),
            ("connects", 0),
            ("accepts", 0),
        ],
    );
    account.check(
        Labels::all("udp").family("inet").scope("loopback"),
        &[
            ("tx_bytes", 4000),
            ("rx_bytes", 4000),
            ("tx_calls", 40),
            ("rx_calls", 40),
        ],
    );
}
