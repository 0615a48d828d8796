//! `block_io` against what the kernel counts of the device.

use std::{fs, path::Path, process::Command};

use e2e::{
    mounts::{LoopDevice, Mounted, folder},
    rows::{Row, sum},
    runs::{Finished, Profiler},
};

use crate::histograms::check_latency;

const OPS: [&str; 4] = ["read", "write", "discard", "flush"];

/// Requests and sectors of each operation that a device has done (Documentation/admin-guide/iostats.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disk {
    ops: [u64; 4],
    sectors: [u64; 4],
}

impl Disk {
    fn now(device: &str) -> Self {
        let text = fs::read_to_string("/proc/diskstats").expect("diskstats");
        let mut lines = text.lines().map(str::split_whitespace);
        let words: Vec<&str> = lines
            .find_map(|line| {
                let words: Vec<_> = line.collect();
                (words[2] == device).then_some(words)
            })
            .unwrap_or_else(|| panic!("no {device} in\n{text}"));
        let number = |index: usize| words[index].parse().expect("a number");
        Self {
            ops: [number(3), number(7), number(14), number(18)],
            sectors: [number(5), number(9), number(16), 0],
        }
    }

    fn since(&self, before: &Self) -> Self {
        let minus = |a: [u64; 4], b: [u64; 4]| [0, 1, 2, 3].map(|op| a[op] - b[op]);
        Self {
            ops: minus(self.ops, before.ops),
            sectors: minus(self.sectors, before.sectors),
        }
    }
}

fn of_device(finished: &Finished, device: &str) -> Vec<Row> {
    let mut rows = finished.dataset().table("block_io");
    rows.retain(|row| row.text("device") == Some(device));
    rows
}

fn of_op(rows: &[Row], op: &str) -> Vec<Row> {
    let mut rows = rows.to_vec();
    rows.retain(|row| row.text("op") == Some(op));
    rows
}

fn accounted(rows: &[Row]) -> Disk {
    Disk {
        ops: OPS.map(|op| sum(&of_op(rows, op), "ops")),
        sectors: OPS.map(|op| sum(&of_op(rows, op), "bytes") / 512),
    }
}

/// The process that ran this command.
fn pid_of(finished: &Finished, word: &str) -> u64 {
    let rows = finished.dataset().table("process");
    let mut rows = rows.iter().filter(|row| {
        let command = row.text("cmdline").unwrap_or_default();
        row.text("comm") == Some("dd") && command.contains(word)
    });
    rows.next()
        .and_then(|row| row.u64("pid"))
        .unwrap_or_else(|| panic!("no {word}"))
}

/// 64 MiB in 4 KiB calls past the page cache, to a file: each call is one request of the process that made it.
#[test]
fn direct_calls_are_requests_of_their_process() {
    const CALLS: u64 = 16384;
    let place = folder();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let image = place.path().join("memory/image");
    let ext4 = Mounted::ext4(&place.path().join("disk"), &image, 192);
    let device = ext4.source().trim_start_matches("/dev/").to_owned();
    let file = format!("{}/file", ext4.point());
    let script = format!(
        "dd if=/dev/zero of={file} bs=4096 count={CALLS} oflag=direct && \
         dd of=/dev/null if={file} bs=4096 iflag=direct"
    );
    let finished = Profiler::new()
        .args(["-i", "500ms", "--source", "process,block_io"])
        .command(&["sh", "-c", &script])
        .finish();
    let rows = of_device(&finished, &device);
    let latencies = finished.dataset().table("latency");
    for (word, op) in [("oflag", "write"), ("iflag", "read")] {
        let pid = pid_of(&finished, word);
        let mut own = of_op(&rows, op);
        own.retain(|row| row.u64("pid") == Some(pid));
        assert_eq!(
            (sum(&own, "ops"), sum(&own, "bytes"), sum(&own, "errors")),
            (CALLS, CALLS * 4096, 0),
            "{word}"
        );
        let mut own = latencies.clone();
        own.retain(|row| row.u64("pid") == Some(pid));
        let mut all = rows.clone();
        all.retain(|row| row.u64("pid") == Some(pid));
        check_latency(&own, &format!("block_{op}"), CALLS);
        check_latency(&own, "block_queue", sum(&all, "ops"));
    }
}

/// Whatever a device does is in some row: of a process, or of none.
#[test]
fn the_rows_of_a_node_add_up_to_what_the_device_has_done() {
    let place = folder();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let disk = LoopDevice::new(&place.path().join("memory/image"), 64);
    let path = disk.path();
    let profiler = Profiler::new()
        .args(["--node", "-i", "500ms", "--source", "process,block_io"])
        .start();
    let before = Disk::now(disk.name());
    let script = format!(
        "dd if=/dev/zero of={path} bs=64k count=100 oflag=direct; \
         dd if={path} of=/dev/null bs=1M count=20 iflag=direct; \
         dd if=/dev/zero of={path} bs=4k count=5000 conv=fsync; \
         sync"
    );
    let status = Command::new("sh").args(["-c", &script]).status();
    assert!(status.expect("it runs").success());
    let growth = Disk::now(disk.name()).since(&before);
    let finished = profiler.interrupt();
    let rows = of_device(&finished, disk.name());
    assert_eq!(accounted(&rows).sectors, growth.sectors);
    // A flush that a program waits for is two for the kernel: an empty write, and the command to the device.
    let mut ops = accounted(&rows).ops;
    let empty = growth.ops[1] - ops[1];
    assert!(empty <= growth.ops[3], "{ops:?} {growth:?}");
    ops[1] += empty;
    assert_eq!(ops, growth.ops);
    assert!(growth.sectors[1] >= (100 * 64 + 5000 * 4) * 2, "{growth:?}");
    assert!(Path::new(path).exists());
}

/// Five at once on one device: each has its own bytes.
#[test]
fn writers_at_the_same_time_are_not_mixed() {
    let place = folder();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let disk = LoopDevice::new(&place.path().join("memory/image"), 64);
    let path = disk.path();
    let script: String = (1..=5)
        .map(|writer| {
            let seek = writer * 1000;
            let count = writer * 100;
            format!("dd if=/dev/zero of={path} bs=4k count={count} seek={seek} oflag=direct & ")
        })
        .collect();
    let finished = Profiler::new()
        .args(["-i", "500ms", "--source", "process,block_io"])
        .command(&["sh", "-c", &format!("{script} wait")])
        .finish();
    let rows = of_op(&of_device(&finished, disk.name()), "write");
    for writer in 1..=5 {
        let pid = pid_of(&finished, &format!("seek={} ", writer * 1000));
        let mut own = rows.clone();
        own.retain(|row| row.u64("pid") == Some(pid));
        assert_eq!(sum(&own, "bytes"), writer * 100 * 4096, "writer {writer}");
    }
}
