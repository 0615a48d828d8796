//! `file_io` compared with the return values of the workload's calls.

use std::{collections::BTreeMap, path::Path, process::Command};

use e2e::{
    mounts::{Mounted, directory},
    rows::{Row, sum},
    runs::{Finished, Profiler},
    setting,
};
use serde_json::Value;

use crate::{WORKLOAD, histograms::check_latency};

/// In the order in which the workload prints them.
const COLUMNS: [&str; 11] = [
    "read_ops",
    "read_bytes",
    "write_ops",
    "write_bytes",
    "errors",
    "fsyncs",
    "opens",
    "creates",
    "unlinks",
    "renames",
    "mkdirs",
];

/// Operations that every method counts.
const CALLS: [&str; 12] = [
    "plain",
    "direct",
    "at",
    "vectors",
    "splice",
    "sendfile",
    "copy",
    "sync",
    "names",
    "errors",
    "uring",
    "uring-sync",
];

/// Operations through the page cache, which every file system supports.
const MOVES: [&str; 7] = [
    "plain", "at", "vectors", "splice", "sendfile", "copy", "uring",
];

/// Number of calls of 4 KiB for 64 MiB.
const MANY: usize = 16_384;

/// Operations that only the method `vfs` counts or that need direct I/O.
const MORE: [&str; 5] = ["msync", "uring-direct", "aio", "aio-direct", "aio-sync"];

/// The best method that this kernel supports.
fn best_method() -> &'static str {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["check", "--json"])
        .output()
        .expect("the profiler starts");
    let check: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut sources = check["sources"].as_array().expect("sources").iter();
    let file_io = sources.find(|source| source["source"] == "file_io");
    let file_io = file_io.expect("registered");
    // On kernels with known support of fexit, `file_io` must use it.
    let traceable = std::env::var_os("PROFILER_TEST_REQUIRE_FENTRY").is_some();
    assert!(!traceable || file_io["status"] == "ok", "{file_io:#}");
    if file_io["status"] == "ok" {
        "vfs"
    } else {
        "syscalls"
    }
}

/// The counts printed by a workload process.
struct Reported {
    pid: u64,
    operation: String,
    counts: [u64; 11],
}

fn reported(finished: &Finished) -> Vec<Reported> {
    let lines = finished.stdout.lines();
    lines
        .filter_map(|line| {
            let mut words = line.strip_prefix("did ")?.split(' ');
            let operation = words.next()?.to_owned();
            let mut number = || words.next()?.parse().ok();
            let pid = number()?;
            let counts = [(); 11].map(|()| number().expect("a number"));
            Some(Reported {
                pid,
                operation,
                counts,
            })
        })
        .collect()
}

fn run(method: &str, script: &str) -> Finished {
    Profiler::new()
        .args(["--source", &format!("process,file_io={method}")])
        .args(["-i", "500ms"])
        .command(&["sh", "-c", script, WORKLOAD])
        .finish()
}

fn of(rows: &[Row], pid: u64) -> Vec<Row> {
    let mut rows = rows.to_vec();
    rows.retain(|row| row.u64("pid") == Some(pid));
    rows
}

/// Runs `operations` in `directory`; asserts that exactly their calls are counted on `mount`.
#[track_caller]
fn exact(method: &str, directory: &str, mount: &Mount<'_>, operations: &[&str], calls: usize) {
    let each = operations.iter();
    let script: Vec<String> = each
        .map(|operation| format!("$0 files {operation} {directory} {calls} || exit 9; "))
        .collect();
    let finished = run(method, &script.concat());
    let data = finished.dataset();
    let (rows, latencies) = (data.table("file_io"), data.table("latency"));
    let expected = reported(&finished);
    assert_eq!(expected.len(), operations.len(), "{}", finished.stdout);
    for process in expected {
        let all = of(&rows, process.pid);
        let mut there = all.clone();
        there.retain(|row| row.text("mount") == Some(mount.point));
        for row in &there {
            assert_eq!(row.text("fstype"), Some(mount.fstype), "{row:?}");
            assert_eq!(row.text("source"), mount.source, "{row:?}");
        }
        // The method `syscalls` does not know the mount of a path.
        let mut nowhere = all.clone();
        nowhere.retain(|row| row.text("dev").is_none());
        let counted = COLUMNS.map(|column| {
            let by_path = ["unlinks", "renames", "mkdirs"].contains(&column);
            let rows = if method == "syscalls" && by_path {
                &nowhere
            } else {
                &there
            };
            sum(rows, column)
        });
        assert_eq!(
            counted, process.counts,
            "{method} {} {COLUMNS:?}",
            process.operation
        );
        for (kind, column) in [
            ("file_read", "read_ops"),
            ("file_write", "write_ops"),
            ("fsync", "fsyncs"),
        ] {
            check_latency(&of(&latencies, process.pid), kind, sum(&all, column));
        }
    }
}

struct Mount<'a> {
    point: &'a str,
    fstype: &'a str,
    source: Option<&'a str>,
}

impl<'a> Mount<'a> {
    fn of_ext4(mounted: &'a Mounted) -> Self {
        Self {
            point: mounted.point(),
            fstype: "ext4",
            source: Some(mounted.source()),
        }
    }
}

/// ext4 on a tmpfs, so that syncs are fast. Variables are dropped in reverse order, hence this
/// order.
fn ext4_in_memory(place: &Path) -> [Mounted; 2] {
    let memory = Mounted::tmpfs(&place.join("memory"));
    let image = place.join("memory/image");
    [memory, Mounted::ext4(&place.join("disk"), &image, 192)]
}

#[test]
fn every_file_operation_is_counted_once() {
    let place = directory();
    let [_memory, ext4] = ext4_in_memory(place.path());
    let mount = Mount::of_ext4(&ext4);
    let best = best_method();
    exact("syscalls", ext4.point(), &mount, &CALLS, 100);
    if best == "vfs" {
        exact(
            "vfs",
            ext4.point(),
            &mount,
            &[&CALLS[..], &MORE].concat(),
            100,
        );
    }
}

/// 64 MiB with every operation, on a file system with a device, one without, and an overlay.
#[test]
fn large_files_on_ext4() {
    let place = directory();
    let [_memory, ext4] = ext4_in_memory(place.path());
    let mount = Mount::of_ext4(&ext4);
    let best = best_method();
    let direct: &[&str] = if best == "vfs" {
        &["direct", "uring-direct", "aio", "aio-direct"]
    } else {
        &["direct"]
    };
    let all = [&MOVES[..], direct].concat();
    exact(best, ext4.point(), &mount, &all, MANY);
}

#[test]
fn large_files_on_tmpfs() {
    let place = directory();
    let memory = Mounted::tmpfs(&place.path().join("memory"));
    let mount = Mount {
        point: memory.point(),
        fstype: "tmpfs",
        source: Some("e2e"),
    };
    exact(best_method(), memory.point(), &mount, &MOVES, MANY);
}

#[test]
fn large_files_on_overlayfs() {
    let place = directory();
    let memory = Mounted::tmpfs(&place.path().join("memory"));
    let overlay = Mounted::overlay(&place.path().join("overlay"), memory.point());
    let mount = Mount {
        point: overlay.point(),
        fstype: "overlay",
        source: Some("e2e"),
    };
    exact(best_method(), overlay.point(), &mount, &MOVES, MANY);
}

#[test]
fn memory_and_bind_mounts_have_their_names() {
    let place = directory();
    let memory = Mounted::tmpfs(&place.path().join("memory"));
    let bound = Mounted::bind(memory.point(), &place.path().join("bound"));
    let calls = ["plain", "vectors", "splice", "sendfile", "names", "uring"];
    for point in [memory.point(), bound.point()] {
        let mount = Mount {
            point,
            fstype: "tmpfs",
            source: Some("e2e"),
        };
        exact(best_method(), point, &mount, &calls, 20);
    }
}

#[test]
fn overlayfs_lower_layer_io_is_not_counted() {
    let place = directory();
    let memory = Mounted::tmpfs(&place.path().join("memory"));
    let overlay = Mounted::overlay(&place.path().join("overlay"), memory.point());
    let mount = Mount {
        point: overlay.point(),
        fstype: "overlay",
        source: Some("e2e"),
    };
    let best = best_method();
    let calls = [
        "plain",
        "at",
        "vectors",
        "splice",
        "sendfile",
        "copy",
        "sync",
        "names",
        "errors",
        "uring",
        "uring-sync",
    ];
    exact(best, overlay.point(), &mount, &calls, 20);
    // The copy-up of a file of the lower layer is not I/O of the program.
    let below = format!("{}/lower/file", memory.point());
    std::fs::write(below, vec![1; 1 << 20]).expect("written");
    let script = format!("echo x >> {}/file; $0 files elsewhere / 0", overlay.point());
    let finished = run(best, &script);
    let mut rows = finished.dataset().table("file_io");
    rows.retain(|row| row.u64("write_bytes") > Some(0));
    assert_eq!(sum(&rows, "write_bytes"), 2, "{rows:?}");
    assert_eq!(rows[0].text("mount"), Some(overlay.point()));
    assert_eq!(rows[0].text("dev").map(str::is_empty), Some(false));
}

/// Before Linux 5.18, the end of an operation of io_uring names only its `user_data`.
#[test]
fn io_uring_operations_with_the_same_data_are_counted_or_reported() {
    let place = directory();
    let [_memory, ext4] = ext4_in_memory(place.path());
    let method = best_method();
    let finished = Profiler::new()
        .args(["--source", &format!("process,overhead,file_io={method}")])
        .command(&[WORKLOAD, "files", "uring-same", ext4.point(), "100"])
        .finish();
    let data = finished.dataset();
    let columns = ["read_ops", "write_ops", "fsyncs"];
    let mut rows = data.table("file_io");
    rows.retain(|row| row.text("mount") == Some(ext4.point()));
    let counted: u64 = columns.map(|column| sum(&rows, column)).iter().sum();
    let [process] = &reported(&finished)[..] else {
        panic!("{}", finished.stdout);
    };
    let performed = columns.map(|column| {
        let index = COLUMNS.iter().position(|name| *name == column);
        process.counts[index.expect("a column")]
    });
    let lost = performed.iter().sum::<u64>() - counted;
    let mut sources = data.table("overhead");
    sources.retain(|row| {
        row.text("component_kind") == Some("source") && row.text("component") == Some("file_io")
    });
    // The kernel distinguishes all of them.
    if sources.iter().all(|row| row.u64("dropped").is_none()) {
        assert_eq!(lost, 0);
        return;
    }
    let reported = sum(&sources, "dropped");
    // The workload also writes and reads a pipe, three times each.
    assert_eq!(reported, lost + 4);
    let message = format!(
        "profiler: {reported} operations lost: operations of io_uring in flight had the same user_data"
    );
    assert!(finished.stderr.contains(&message), "{}", finished.stderr);
}

#[test]
fn only_files_are_counted() {
    let script = "$0 files elsewhere / 0; $0 files elsewhere / 50; true";
    for method in ["syscalls", best_method()] {
        let finished = run(method, script);
        let data = finished.dataset();
        let (rows, latencies) = (data.table("file_io"), data.table("latency"));
        // Only the loader's reads of the program are counted.
        let counts: Vec<_> = reported(&finished)
            .iter()
            .map(|process| {
                let rows = of(&rows, process.pid);
                let columns = ["read_ops", "read_bytes", "write_ops", "write_bytes"];
                let reads = sum(&rows, "read_ops");
                check_latency(&of(&latencies, process.pid), "file_read", reads);
                columns.map(|column| sum(&rows, column))
            })
            .collect();
        assert_eq!(counts.len(), 2);
        assert_eq!(counts[0], counts[1], "{method}");
        assert_eq!(counts[0][2..], [0, 0]);
    }
}

#[test]
fn concurrent_file_writers_are_kept_apart() {
    let place = directory();
    let memory = Mounted::tmpfs(&place.path().join("memory"));
    let point = memory.point();
    let script =
        format!("for n in 100 200 300 400 500; do $0 files plain {point} $n & done; wait; true");
    for method in ["syscalls", best_method()] {
        let finished = run(method, &script);
        let rows = finished.dataset().table("file_io");
        let expected = reported(&finished);
        let mut sizes = BTreeMap::new();
        for process in &expected {
            let mut rows = of(&rows, process.pid);
            rows.retain(|row| row.text("mount") == Some(point));
            let columns = &COLUMNS[..8];
            let counted: Vec<_> = columns.iter().map(|column| sum(&rows, column)).collect();
            assert_eq!(counted, process.counts[..8], "{method}");
            *sizes.entry(process.counts[2]).or_insert(0) += 1;
        }
        assert_eq!(sizes.len(), 5, "{}", finished.stdout);
    }
}

#[test]
fn mount_of_another_namespace_is_named() {
    let place = directory();
    let inside = place.path().join("inside");
    std::fs::create_dir(&inside).expect("made");
    let inside = inside.to_str().expect("UTF-8");
    let script = format!(
        "unshare -m sh -c 'mount -t tmpfs hidden {inside} && {WORKLOAD} files plain {inside} 30; sleep 1'"
    );
    let finished = run(best_method(), &script);
    let expected = reported(&finished).remove(0);
    let mut rows = of(&finished.dataset().table("file_io"), expected.pid);
    rows.retain(|row| row.text("mount") == Some(inside));
    assert_eq!(sum(&rows, "write_bytes"), expected.counts[3]);
    assert_eq!(rows[0].text("source"), Some("hidden"));
}

#[test]
fn accounting_method_matches_proc_pid_io() {
    let place = directory();
    let path = place.path().to_str().expect("UTF-8");
    let script = format!("$0 files account {path} 100; true");
    let finished = run("accounting", &script);
    let line = finished
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("account "));
    let numbers: Vec<u64> = line
        .expect("the counters")
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    let rows = of(&finished.dataset().table("file_io"), numbers[0]);
    let columns = ["read_bytes", "write_bytes", "read_ops", "write_ops"];
    assert_eq!(columns.map(|column| sum(&rows, column)), numbers[1..]);
    for row in rows {
        assert_eq!(row.text("mount"), None);
        assert_eq!(row.u64("errors"), None);
    }
}

/// 6.5 MB from /dev/zero and through a pipe are not file I/O.
#[test]
fn timeline_has_file_bytes_where_the_method_separates_them() {
    let place = directory();
    let path = place.path().to_str().expect("UTF-8");
    let script = format!(
        "dd if=/dev/zero bs=64k count=100 status=none | cat >/dev/null; $0 files plain {path} 100"
    );
    for method in ["accounting", best_method()] {
        let finished = run(&format!("{method},timeline"), &script);
        let expected = reported(&finished).remove(0).counts;
        let rows = finished.dataset().table("timeline");
        assert!(!rows.is_empty());
        for (column, bytes) in [
            ("target_file_read_bytes", expected[1]),
            ("target_file_write_bytes", expected[3]),
        ] {
            if method == "accounting" {
                assert!(rows.iter().all(|row| row.u64(column).is_none()), "{column}");
                continue;
            }
            // The loader reads the headers of libraries.
            let found = sum(&rows, column);
            let all = bytes..bytes + (1 << 20);
            assert!(
                all.contains(&found),
                "{method}, {column}: {found}, {bytes} expected"
            );
        }
    }
}
