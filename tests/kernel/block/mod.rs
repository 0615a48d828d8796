//! `block_io` against the kernel's counters of the device.

use std::{fs, process::Command};

use e2e::{
    mounts::{LoopDevice, Mounted, directory},
    rows::{Row, sum},
    runs::{Finished, Profiler, wait_until},
};

use tempfile::TempDir;

use crate::histograms::check_latency;

mod writeback;

const OPS: [&str; 4] = ["read", "write", "discard", "flush"];
const MS: u64 = 1_000_000;

/// Counters of a device by operation (Documentation/admin-guide/iostats.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disk {
    ops: [u64; 4],
    sectors: [u64; 4],
    /// Total time of the requests, from their allocation to their completion.
    ns: [u64; 4],
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
            ns: [6, 10, 17, 19].map(|index| number(index) * MS),
        }
    }

    /// Waits until no request is in flight, then reads the counters.
    fn when_idle(device: &str) -> Self {
        let path = format!("/sys/block/{device}/inflight");
        let inflight = || fs::read_to_string(&path).expect("a disk");
        wait_until("the disk is idle", || {
            inflight().split_whitespace().all(|count| count == "0")
        });
        Self::now(device)
    }

    fn since(&self, before: &Self) -> Self {
        let minus = |a: [u64; 4], b: [u64; 4]| [0, 1, 2, 3].map(|op| a[op] - b[op]);
        Self {
            ops: minus(self.ops, before.ops),
            sectors: minus(self.sectors, before.sectors),
            ns: minus(self.ns, before.ns),
        }
    }
}

/// Bounds of a device's activity while the profiler was attached. Kernel threads (journal, lazy
/// initialisation) can use the device at any time.
struct Growth {
    /// Difference of two readings inside the profiled interval.
    least: Disk,
    /// Difference of two readings around the profiled interval.
    most: Disk,
}

impl Growth {
    /// Profiles the node while `work` uses the device.
    fn of(device: &str, work: impl FnOnce()) -> (Finished, Self) {
        let outer = Disk::now(device);
        let profiler = Profiler::new()
            .args(["--node", "-i", "500ms", "--source", "process,block_io"])
            .start();
        // A request that was allocated before the profiler attached is not accounted.
        let inner = Disk::when_idle(device);
        work();
        let least = Disk::now(device).since(&inner);
        let finished = profiler.interrupt();
        let most = Disk::now(device).since(&outer);
        (finished, Self { least, most })
    }

    /// Asserts that the sums of the device's rows lie within the bounds.
    #[track_caller]
    fn check(&self, rows: &[Row]) {
        let found = accounted(rows);
        for (index, op) in OPS.iter().enumerate() {
            let within = |name: &str, of: fn(&Disk) -> [u64; 4]| {
                let (least, most) = (of(&self.least)[index], of(&self.most)[index]);
                let found = of(&found)[index];
                assert!(
                    (least..=most).contains(&found),
                    "{name} of {op}: {found}, not {least}..={most}"
                );
            };
            within("ops", |disk| disk.ops);
            within("sectors", |disk| disk.sectors);
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
    let mut ops = OPS.map(|op| sum(&of_op(rows, op), "ops"));
    // The kernel counts a request without data that asks for a flush as a write.
    ops[1] += sum(&of_op(rows, "flush"), "flush_requests");
    let ns = |op| {
        let rows = of_op(rows, op);
        sum(&rows, "queue_ns") + sum(&rows, "service_ns")
    };
    Disk {
        ops,
        sectors: OPS.map(|op| sum(&of_op(rows, op), "bytes") / 512),
        ns: OPS.map(ns),
    }
}

/// Pid of the `dd` with this word in its command line.
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

/// 64 MiB of direct I/O on a file in calls of 4 KiB, each of which is one request.
#[test]
fn direct_io_is_charged_to_the_calling_process() {
    const CALLS: u64 = 16384;
    let place = directory();
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
        // The executable may have been read from another device.
        let mut all = finished.dataset().table("block_io");
        all.retain(|row| row.u64("pid") == Some(pid));
        // An operation whose completion the programs do not see (docs/io.md) has no time.
        for (kind, rows) in [
            (format!("block_{op}"), of_op(&all, op)),
            ("block_queue".to_owned(), all),
        ] {
            let untimed = sum(&rows, "ops_untimed");
            assert!(untimed * 100 <= CALLS, "{kind}: {untimed} untimed");
            check_latency(&own, &kind, sum(&rows, "ops") - untimed);
        }
    }
}

/// The kernel's time ends later than ours: after the programs attached to the completion.
#[test]
fn times_match_diskstats() {
    let memory = MemoryDisk::new();
    let disk = &memory.disk;
    let path = disk.path();
    let (finished, growth) = Growth::of(disk.name(), || {
        // With 16 requests in flight, their time is mostly the wait for each other. The time
        // between our program and the end of the kernel's accounting, in which a woken process can
        // take the CPU, is negligible.
        let each = |dd: &str| {
            format!("for part in $(seq 0 15); do {dd} bs=256k count=16 status=none & done; wait; ")
        };
        let write = each(&format!(
            "dd if=/dev/zero of={path} seek=$((part * 16)) oflag=direct"
        ));
        let read = each(&format!(
            "dd if={path} of=/dev/null skip=$((part * 16)) iflag=direct"
        ));
        shell(&format!(
            "{write} for pass in 1 2 3 4 5 6 7 8; do {read} done"
        ));
    });
    let rows = of_device(&finished, disk.name());
    growth.check(&rows);
    // A completion is lost if another process attaches to the tracepoint at that moment.
    let (untimed, ops) = (sum(&rows, "ops_untimed"), sum(&rows, "ops"));
    assert!(untimed * 1000 <= ops, "{untimed} of {ops} untimed");
    let found = accounted(&rows);
    for (index, op) in OPS.iter().enumerate().take(2) {
        // The file has whole milliseconds.
        let (least, most) = (growth.least.ns[index] - MS, growth.most.ns[index] + MS);
        let ns = found.ns[index];
        assert!(
            (least - least / 10..=most).contains(&ns),
            "{op}s took {ns} ns, not {least}..={most}"
        );
    }
}

/// A loop device of 64 MiB on a tmpfs. The fields are dropped in this order.
struct MemoryDisk {
    disk: LoopDevice,
    _memory: Mounted,
    _place: TempDir,
}

impl MemoryDisk {
    fn new() -> Self {
        let place = directory();
        let memory = Mounted::tmpfs(&place.path().join("memory"));
        Self {
            disk: LoopDevice::new(&place.path().join("memory/image"), 64),
            _memory: memory,
            _place: place,
        }
    }
}

/// Each request is in a row of a process, or in one without a process.
#[test]
fn node_rows_sum_to_the_device_totals() {
    let memory = MemoryDisk::new();
    let disk = &memory.disk;
    let path = disk.path();
    let (finished, growth) = Growth::of(disk.name(), || {
        shell(&format!(
            "dd if=/dev/zero of={path} bs=64k count=100 oflag=direct; \
             dd if={path} of=/dev/null bs=1M count=20 iflag=direct; \
             dd if=/dev/zero of={path} bs=4k count=5000 conv=fsync; \
             sync"
        ));
    });
    growth.check(&of_device(&finished, disk.name()));
    let written = growth.least.sectors[1];
    assert!(written >= (100 * 64 + 5000 * 4) * 2, "{written}");
}

/// Five concurrent writers on one device.
#[test]
fn concurrent_writers_are_kept_apart() {
    let memory = MemoryDisk::new();
    let disk = &memory.disk;
    let path = disk.path();
    let script: Vec<String> = (1..=5)
        .map(|writer| {
            let seek = writer * 1000;
            let count = writer * 100;
            format!("dd if=/dev/zero of={path} bs=4k count={count} seek={seek} oflag=direct & ")
        })
        .collect();
    let finished = Profiler::new()
        .args(["-i", "500ms", "--source", "process,block_io"])
        .command(&["sh", "-c", &format!("{} wait", script.concat())])
        .finish();
    let rows = of_op(&of_device(&finished, disk.name()), "write");
    for writer in 1..=5 {
        let pid = pid_of(&finished, &format!("seek={} ", writer * 1000));
        let mut own = rows.clone();
        own.retain(|row| row.u64("pid") == Some(pid));
        assert_eq!(sum(&own, "bytes"), writer * 100 * 4096, "writer {writer}");
    }
}

/// Runs a script outside of the profiler.
fn shell(script: &str) {
    let status = Command::new("sh").args(["-c", script]).status();
    assert!(status.expect("sh starts").success(), "{script}");
}

/// A large call becomes several requests, discards count the discarded bytes, and flushes are
/// charged to the caller of fsync.
#[test]
fn large_calls_discards_and_flushes() {
    let memory = MemoryDisk::new();
    let disk = &memory.disk;
    let path = disk.path();
    let (finished, growth) = Growth::of(disk.name(), || {
        shell(&format!(
            "dd if=/dev/zero of={path} bs=8M count=4 oflag=direct status=none; \
             dd if={path} of=/dev/null bs=16M count=2 iflag=direct status=none; \
             blkdiscard -o 1M -l 3M {path}; \
             dd if=/dev/zero of={path} bs=4096 count=50 seek=77 oflag=direct conv=notrunc,fsync status=none"
        ));
    });
    let rows = of_device(&finished, disk.name());
    let flushes = of_op(&rows, "flush");
    growth.check(&rows);
    let of_pid = |rows: &[Row], pid: u64, column: &str| {
        let mut rows = rows.to_vec();
        rows.retain(|row| row.u64("pid") == Some(pid));
        sum(&rows, column)
    };
    let pid = pid_of(&finished, "bs=8M");
    let writes = of_op(&rows, "write");
    assert_eq!(of_pid(&writes, pid, "bytes"), 32 << 20);
    assert!(of_pid(&writes, pid, "ops") > 4, "{writes:?}");
    let discards = of_op(&rows, "discard");
    assert!(discards.iter().all(|row| row.u64("pid").is_some()));
    assert_eq!(sum(&discards, "bytes"), 3 << 20);
    let pid = pid_of(&finished, "seek=77 ");
    assert!(of_pid(&flushes, pid, "flush_requests") >= 1, "{flushes:?}");
    assert!(of_pid(&flushes, pid, "ops") >= 1, "{flushes:?}");
    assert!(rows.iter().all(|row| row.u64("errors") == Some(0)));
}
