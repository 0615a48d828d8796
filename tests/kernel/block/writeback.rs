//! Writeback in `block_io`: requests of the page cache and of the journal, charged to their owners.

use std::{process::Command, time::Duration};

use e2e::{
    mounts::{Mounted, directory},
    rows::{Row, sum},
    runs::{Finished, Profiler},
};
use tempfile::TempDir;

use super::{Growth, of_device, of_op, pid_of, shell};

/// An ext4 file system on a loop device on a tmpfs. The fields are dropped in this order.
struct Ext4Disk {
    ext4: Mounted,
    _memory: Mounted,
    _place: TempDir,
}

impl Ext4Disk {
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

    /// Makes kernel threads write all dirty pages.
    fn write_back(&self) {
        shell(&format!("sync -f {}", self.ext4.point()));
    }
}

/// A `dd` that writes `pages` pages into a file, starting with page `seek`.
fn dd(file: &str, pages: u64, seek: u64) -> String {
    format!("dd if=/dev/zero of={file} bs=4096 count={pages} seek={seek} conv=notrunc status=none;")
}

/// Bytes charged to this `dd`.
fn written_by(finished: &Finished, device: &str, pages: u64, seek: u64) -> u64 {
    let pid = pid_of(finished, &format!("count={pages} seek={seek} "));
    let mut rows = of_op(&of_device(finished, device), "write");
    rows.retain(|row| row.u64("pid") == Some(pid));
    sum(&rows, "bytes")
}

/// Kernel threads write dirty pages on behalf of the process that dirtied them, even after its end.
/// A file dirtied by two processes has no single owner.
#[test]
fn writeback_is_charged_to_the_process_that_dirtied_the_pages() {
    let disk = Ext4Disk::new();
    let (own, shared) = (disk.file("own"), disk.file("shared"));
    // The blocks of the files are allocated, so that only the pages remain to be written.
    shell(&[dd(&own, 512, 0), dd(&shared, 512, 0)].concat());
    disk.write_back();
    let (finished, growth) = Growth::of(disk.device(), || {
        shell(&[dd(&own, 300, 1), dd(&shared, 100, 0), dd(&shared, 101, 200)].concat());
        disk.write_back();
        // The entry of a clean file is removed after a while.
        std::thread::sleep(Duration::from_millis(500));
        // The fsync of another process submits these pages.
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
    let mut unowned = of_op(&rows, "write");
    unowned.retain(|row| row.u64("pid").is_none());
    assert!(sum(&unowned, "bytes") >= 201 * 4096, "{unowned:?}");
    assert!(unowned.iter().all(|row| row.text("cgroup").is_some()));
    growth.check(&rows);
}

/// Processes outside the target have no rows, but they can be the second writer of a file.
#[test]
fn writeback_of_others_is_not_charged_to_the_target() {
    let disk = Ext4Disk::new();
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

/// A commit of the journal is a write with flushes before and after it.
#[test]
fn journal_flushes_are_charged_to_the_journal() {
    let disk = Ext4Disk::new();
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

/// A file without an entry in the map of owners is counted as lost.
#[test]
fn files_without_an_entry_are_counted() {
    const FILES: usize = 40;
    const CAPACITY: u64 = 8;
    let disk = Ext4Disk::new();
    let files: Vec<String> = (0..FILES).map(|n| disk.file(&format!("file{n}"))).collect();
    let create: String = files.iter().map(|file| dd(file, 1, 0)).collect();
    shell(&create);
    disk.write_back();
    for (capacity, known) in [(Some(CAPACITY), false), (None, true)] {
        // The entry of a clean file is removed after a while.
        std::thread::sleep(Duration::from_millis(500));
        let capacity = capacity.map(|entries| format!("--map-entries=DIRTIERS={entries}"));
        let profiler = Profiler::new()
            .args([
                "--node",
                "-i",
                "500ms",
                "--source",
                "process,block_io,overhead",
            ])
            .args(capacity)
            .start();
        // A single process, so that each file needs one entry.
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
            // A request with pages of several files has an owner only if all files have an entry.
            assert!(
                owned <= CAPACITY && lost >= FILES as u64 - CAPACITY,
                "{owned} known, {lost} lost"
            );
        }
    }
}
