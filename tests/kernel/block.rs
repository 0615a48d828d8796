//! `block_io` against what the kernel counts of the device.

use std::{fs, process::Command, time::Duration};

use e2e::{
    mounts::{LoopDevice, Mounted, directory},
    rows::{Row, sum},
    runs::{Finished, Profiler, wait_until},
};

use tempfile::TempDir;

use crate::histograms::check_latency;

const OPS: [&str; 4] = ["read", "write", "discard", "flush"];
const MS: u64 = 1_000_000;

/// What a device has done of each operation (Documentation/admin-guide/iostats.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disk {
    ops: [u64; 4],
    sectors: [u64; 4],
    /// Time of its requests, from being made to being done.
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

    /// The same, once no request is under way.
    fn at_rest(device: &str) -> Self {
        let path = format!("/sys/block/{device}/inflight");
        let inflight = || fs::read_to_string(&path).expect("a disk");
        wait_until("the disk rests", || {
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

/// Bounds of what a device did while the profiler accounted: its own threads (a journal's, that of lazy
/// initialisation) use it whenever they like.
struct Growth {
    /// Between two readings within the profiler's.
    least: Disk,
    /// Between two readings around them.
    most: Disk,
}

impl Growth {
    /// Profiles the node while `work` uses the device.
    fn of(device: &str, work: impl FnOnce()) -> (Finished, Self) {
        let outer = Disk::now(device);
        let profiler = Profiler::new()
            .args(["--node", "-i", "500ms", "--source", "process,block_io"])
            .start();
        // A request that was made before the profiler was attached is not accounted.
        let inner = Disk::at_rest(device);
        work();
        let least = Disk::now(device).since(&inner);
        let finished = profiler.interrupt();
        let most = Disk::now(device).since(&outer);
        (finished, Self { least, most })
    }

    /// What the rows of the device add up to lies within the bounds.
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
    ops[1] += sum(&of_op(rows, "flush"), "asked");
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
        // The program itself may have been read from another device.
        let mut all = finished.dataset().table("block_io");
        all.retain(|row| row.u64("pid") == Some(pid));
        // A completion that the kernel does not show to programs (docs/io.md) is an operation without a time.
        for (kind, rows) in [
            (format!("block_{op}"), of_op(&all, op)),
            ("block_queue".to_owned(), all),
        ] {
            let untimed = sum(&rows, "untimed");
            assert!(untimed * 100 <= CALLS, "{kind}: {untimed} untimed");
            check_latency(&own, &kind, sum(&rows, "ops") - untimed);
        }
    }
}

/// The kernel counts the time from the request being made to its last word on it: after the programs that ended it.
#[test]
fn times_match_diskstats() {
    let memory = MemoryDisk::new();
    let disk = &memory.disk;
    let path = disk.path();
    let (finished, growth) = Growth::of(disk.name(), || {
        // Sixteen at a time: most of the time of a request is then its wait for the others, and not between the program that
        // ends it and the kernel's last word, where whoever is woken can take the CPU.
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
    // Some completions are in no tracepoint where others attach to it meanwhile.
    let (untimed, ops) = (sum(&rows, "untimed"), sum(&rows, "ops"));
    assert!(untimed * 1000 <= ops, "{untimed} of {ops} untimed");
    let found = accounted(&rows);
    for (index, op) in OPS.iter().enumerate().take(2) {
        // Of whole milliseconds, in the file.
        let (least, most) = (growth.least.ns[index] - MS, growth.most.ns[index] + MS);
        let ns = found.ns[index];
        assert!(
            (least - least / 10..=most).contains(&ns),
            "{op}s took {ns} ns, not {least}..={most}"
        );
    }
}

/// A disk of 64 MiB of memory; what it needs goes after it.
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

/// Whatever a device does is in some row: of a process, or of none.
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

/// Five at once on one device: each has its own bytes.
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

/// A file system on a loop device over a file in memory.
struct Disk4 {
    ext4: Mounted,
    _memory: Mounted,
    _place: TempDir,
}

impl Disk4 {
    fn new() -> Self {
        let place = directory();
        let memory = Mounted::tmpfs(&place.path().join("memory"));
        let image = place.path().join("memory/image");
        let ext4 = Mounted::ext4(&place.path().join("disk"), &image, 128);
        Self {
            ext4,
            _memory: memory,
            _place: place,
        }
    }

    fn device(&self) -> &str {
        self.ext4.source().trim_start_matches("/dev/")
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.ext4.point())
    }

    /// Has the kernel's threads write everything back.
    fn write_back(&self) {
        shell(&format!("sync -f {}", self.ext4.point()));
    }
}

/// Runs it beside the profiler.
fn shell(script: &str) {
    let status = Command::new("sh").args(["-c", script]).status();
    assert!(status.expect("sh starts").success(), "{script}");
}

/// Writes so many pages into a file, from the page `seek` on, by a process of its own.
fn dd(file: &str, pages: u64, seek: u64) -> String {
    format!("dd if=/dev/zero of={file} bs=4096 count={pages} seek={seek} conv=notrunc status=none;")
}

/// Bytes written by the process that ran this `dd`.
fn written_by(finished: &Finished, device: &str, pages: u64, seek: u64) -> u64 {
    let pid = pid_of(finished, &format!("count={pages} seek={seek} "));
    let mut rows = of_op(&of_device(finished, device), "write");
    rows.retain(|row| row.u64("pid") == Some(pid));
    sum(&rows, "bytes")
}

/// What the page cache holds is written by a thread of the kernel, for those who made the pages dirty, also when they
/// are gone. Of a file that two made dirty nobody can say whose pages are in which request.
#[test]
fn writeback_is_charged_to_the_process_that_dirtied_the_pages() {
    let disk = Disk4::new();
    let (own, shared) = (disk.file("own"), disk.file("shared"));
    // The files exist, with their blocks, so that there is no more to write than the pages.
    shell(&[dd(&own, 512, 0), dd(&shared, 512, 0)].concat());
    disk.write_back();
    let (finished, growth) = Growth::of(disk.device(), || {
        shell(&[dd(&own, 300, 1), dd(&shared, 100, 0), dd(&shared, 101, 200)].concat());
        disk.write_back();
        // A file that has been clean for a while is free for the next.
        std::thread::sleep(Duration::from_millis(500));
        // By fsync of another process: nobody but it is there to submit them.
        shell(&[dd(&own, 33, 400), format!("sync {own}")].concat());
        shell(&dd(&shared, 77, 300));
        disk.write_back();
    });
    let device = disk.device();
    assert_eq!(written_by(&finished, device, 300, 1), 300 * 4096);
    assert_eq!(written_by(&finished, device, 33, 400), 33 * 4096);
    assert_eq!(written_by(&finished, device, 77, 300), 77 * 4096);
    assert_eq!(written_by(&finished, device, 100, 0), 0);
    assert_eq!(written_by(&finished, device, 101, 200), 0);
    let rows = of_device(&finished, device);
    let mut nobodys = of_op(&rows, "write");
    nobodys.retain(|row| row.u64("pid").is_none());
    assert!(sum(&nobodys, "bytes") >= 201 * 4096, "{nobodys:?}");
    assert!(nobodys.iter().all(|row| row.text("cgroup").is_some()));
    growth.check(&rows);
}

/// Outside the target nobody has rows, but somebody outside can be why a file is nobody's.
#[test]
fn writeback_of_others_is_not_charged_to_the_target() {
    let disk = Disk4::new();
    let (own, shared) = (disk.file("own"), disk.file("shared"));
    shell(&[dd(&own, 512, 0), dd(&shared, 512, 0)].concat());
    disk.write_back();
    let (ready, done) = (disk.file("ready"), disk.file("done"));
    let wait = |file: &str| format!("while [ ! -e {file} ]; do sleep 0.05; done;");
    let script = [
        wait(&ready),
        dd(&own, 64, 3),
        dd(&shared, 65, 4),
        format!("touch {done};"),
        wait(&disk.file("over")),
    ];
    let profiler = Profiler::new()
        .args(["-i", "500ms", "--source", "process,block_io"])
        .command(&["sh", "-c", &script.concat()])
        .start();
    shell(&[dd(&shared, 66, 400), format!("touch {ready};"), wait(&done)].concat());
    disk.write_back();
    shell(&format!("touch {}", disk.file("over")));
    let finished = profiler.finish();
    assert_eq!(written_by(&finished, disk.device(), 64, 3), 64 * 4096);
    assert_eq!(written_by(&finished, disk.device(), 65, 4), 0);
    let rows = of_device(&finished, disk.device());
    assert!(rows.iter().all(|row| row.u64("pid").is_some()), "{rows:?}");
}

/// Pieces of a large call are requests of their own, discards have the bytes that are gone, a flush is of who asked.
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
    assert!(of_pid(&flushes, pid, "asked") >= 1, "{flushes:?}");
    assert!(of_pid(&flushes, pid, "ops") >= 1, "{flushes:?}");
    assert!(rows.iter().all(|row| row.u64("errors") == Some(0)));
}

/// The commits of a journal are writes with flushes before and after them.
#[test]
fn journal_flushes_are_charged_to_the_journal() {
    let disk = Disk4::new();
    let file = disk.file("synced");
    let (finished, growth) = Growth::of(disk.device(), || {
        shell(&format!(
            "dd if=/dev/zero of={file} bs=4096 count=100 oflag=direct,dsync status=none"
        ));
    });
    let rows = of_device(&finished, disk.device());
    growth.check(&rows);
    let processes = finished.dataset().table("process");
    let journal = format!("jbd2/{}-", disk.device());
    let journal = processes
        .iter()
        .find(|row| {
            row.text("comm")
                .is_some_and(|comm| comm.starts_with(&journal))
        })
        .and_then(|row| row.u64("pid"));
    assert!(journal.is_some(), "no journal");
    let mut flushes = of_op(&rows, "flush");
    flushes.retain(|row| row.u64("pid") == journal);
    assert!(sum(&flushes, "ops") >= 100, "{flushes:?}");
    assert_eq!(
        written_by_dd(&finished, &rows, &file),
        100 * 4096,
        "{rows:?}"
    );
}

fn written_by_dd(finished: &Finished, rows: &[Row], file: &str) -> u64 {
    let pid = pid_of(finished, file);
    let mut rows = of_op(rows, "write");
    rows.retain(|row| row.u64("pid") == Some(pid));
    sum(&rows, "bytes")
}

/// Of files that find no room in the map of who dirtied pages nothing is said; each is counted.
#[test]
fn files_without_a_known_dirtier_are_counted() {
    const FILES: usize = 40;
    const ROOM: u64 = 8;
    let disk = Disk4::new();
    let files: Vec<String> = (0..FILES).map(|n| disk.file(&format!("file{n}"))).collect();
    let create: String = files.iter().map(|file| dd(file, 1, 0)).collect();
    shell(&create);
    disk.write_back();
    for (room, known) in [(Some(ROOM), false), (None, true)] {
        // A file that has been clean for a while is free for the next.
        std::thread::sleep(Duration::from_millis(500));
        let room = room.map(|room| format!("--map-entries=DIRTIERS={room}"));
        let profiler = Profiler::new()
            .args([
                "--node",
                "-i",
                "500ms",
                "--source",
                "process,block_io,overhead",
            ])
            .args(room)
            .start();
        // One process, so that each file is noted once.
        let pages: Vec<String> = files
            .iter()
            .map(|file| format!("echo $page 1<>{file}; "))
            .collect();
        let pid = Command::new("sh")
            .args([
                "-c",
                &format!("echo $$; page=$(printf %04095d 0); {}", pages.concat()),
            ])
            .output();
        let pid: u64 = String::from_utf8_lossy(&pid.expect("sh starts").stdout)
            .trim()
            .parse()
            .expect("a pid");
        disk.write_back();
        let finished = profiler.interrupt();
        let mut rows = of_op(&of_device(&finished, disk.device()), "write");
        rows.retain(|row| row.u64("pid") == Some(pid));
        let owned = sum(&rows, "bytes") / 4096;
        let mut overhead = finished.dataset().table("overhead");
        overhead.retain(|row| row.text("component") == Some("DIRTIERS"));
        let lost = sum(&overhead, "dropped");
        if known {
            assert_eq!((owned, lost), (FILES as u64, 0));
        } else {
            // A request with pages of several files is somebody's only if all of them have an entry.
            assert!(
                owned <= ROOM && lost >= FILES as u64 - ROOM,
                "{owned} known, {lost} lost"
            );
        }
    }
}
