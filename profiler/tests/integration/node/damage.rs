//! Damaged files of devices cause no panic, no hang and no implausible increase. The rows are
//! complete again when the files are restored.

use std::{fs, os::unix::fs::symlink, path::Path, time::Instant};

use profiler::{
    sources::{SourceSpec, disk, energy, filesystem, netdev},
    support::clock::thread_cpu_ns,
};

use test_support::{DAMAGES, Reader, Rows, Tree, check};

const SOURCES: [&SourceSpec; 4] = [&disk::SPEC, &netdev::SPEC, &energy::SPEC, &filesystem::SPEC];

/// A fixture with devices for each of the sources.
fn machine(user: &str) -> Tree {
    let tree = Tree::of("server", user);
    tree.put(
        "proc/diskstats",
        "   8       0 sda 103 11 2008 4 54 6 480 65 3 600 1000 8 0 24 4 6 9\n",
    );
    tree.put(
        "proc/net/dev",
        "Inter-| Receive | Transmit\n face |bytes\n  eth0:1000 10 1 2 3 4 5 6 2000 20 7 8 9 10 11 12\n",
    );
    tree.put("sys/class/net/eth0/type", "1\n");
    for (zone, name) in [("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "dram")] {
        let directory = format!("sys/class/powercap/{zone}");
        tree.put(format!("{directory}/name"), format!("{name}\n"));
        tree.put(format!("{directory}/energy_uj"), "5\n");
        tree.put(format!("{directory}/max_energy_range_uj"), "262143328850\n");
    }
    tree
}

/// The files of devices.
fn files(tree: &Tree) -> Vec<std::path::PathBuf> {
    const OF_DEVICES: [&str; 5] = [
        "proc/diskstats",
        "proc/net/",
        "proc/self/mountinfo",
        "sys/class/net/eth0",
        "sys/class/powercap",
    ];
    let all = tree.files().into_iter();
    all.filter(|path| OF_DEVICES.iter().any(|start| path.starts_with(start)))
        .collect()
}

/// Reads all sources once; returns the number of rows of each.
fn read(readers: &mut [Reader], what: &str) -> Vec<usize> {
    let read = readers.iter_mut().map(|reader| {
        let (batches, _) = reader.attempt(false);
        let counts = batches.into_iter().map(|batch| {
            let rows = Rows(Some(batch));
            check(&rows, what);
            rows.len()
        });
        counts.sum()
    });
    read.collect()
}

fn open(tree: &Tree) -> Vec<Reader> {
    let host = tree.host();
    SOURCES
        .iter()
        .map(|spec| Reader::open(spec, &host))
        .collect()
}

/// Number of rows on an intact machine, except for `filesystem`, which answers asynchronously.
fn intact(tree: &Tree) -> Vec<usize> {
    let mut readers = open(tree);
    read(&mut readers, "intact");
    let mut rows = read(&mut readers, "intact");
    rows.truncate(SOURCES.len() - 1);
    rows
}

#[test]
fn damaged_contents() {
    let tree = machine("damage-contents");
    let rows = intact(&tree);
    assert!(rows.iter().all(|rows| *rows > 0), "{rows:?}");
    for path in files(&tree) {
        let text = tree.get(&path);
        let whole = String::from_utf8_lossy(&text).into_owned();
        for (number, damage) in DAMAGES.iter().enumerate() {
            let what = format!("{}, damage {number}", path.display());
            let mut readers = open(&tree);
            for damaged in [false, true, false, true, true, false, false] {
                let text = if damaged {
                    damage(&whole)
                } else {
                    text.clone()
                };
                tree.put(&path, text);
                read(&mut readers, &what);
            }
            let mut again = read(&mut readers, &what);
            again.truncate(rows.len());
            assert_eq!(again, rows, "{what}: restored");
        }
    }
}

/// Creates something other than a file.
type Shape = fn(&Path);

#[test]
fn directories_and_links_in_place_of_files() {
    let tree = machine("damage-shapes");
    let rows = intact(&tree);
    let shapes: [(&str, Shape); 4] = [
        ("gone", |_| ()),
        ("a directory", |path| {
            fs::create_dir(path).expect("a directory");
        }),
        ("a loop", |path| symlink(path, path).expect("a link")),
        ("a link to an endless device", |path| {
            symlink("/dev/zero", path).expect("a link");
        }),
    ];
    for path in files(&tree) {
        let text = tree.get(&path);
        for (shape, make) in shapes {
            let what = format!("{} is {shape}", path.display());
            // Before the run, and between two readings.
            for before in [true, false] {
                let mut readers = if before { Vec::new() } else { open(&tree) };
                read(&mut readers, &what);
                fs::remove_file(tree.path(&path)).expect("it exists");
                make(&tree.path(&path));
                if before {
                    readers = open(&tree);
                }
                let begin = thread_cpu_ns();
                read(&mut readers, &what);
                read(&mut readers, &what);
                let took = thread_cpu_ns() - begin;
                assert!(took < 2_000_000_000, "{what}: {took} ns");
                let at = tree.path(&path);
                let _ = fs::remove_file(&at).or_else(|_| fs::remove_dir(&at));
                tree.put(&path, &text);
            }
        }
        assert_eq!(intact(&tree), rows, "{}: restored", path.display());
    }
}

#[test]
fn ten_thousand_interfaces() {
    let tree = machine("damage-many");
    let lines = |bytes: u64| -> String {
        let line =
            |number| format!("  eth{number}:{bytes} 10 1 2 3 4 5 6 {bytes} 20 7 8 9 10 11 12\n");
        (0..10_000).map(line).collect()
    };
    tree.put("proc/net/dev", lines(1000));
    let mut reader = Reader::open(&netdev::SPEC, &tree.host());
    assert_eq!(reader.rows().len(), 0);
    tree.put("proc/net/dev", lines(1500));
    let begin = Instant::now();
    let rows = reader.rows();
    println!("netdev: 10,000 interfaces in {:?}", begin.elapsed());
    assert_eq!(rows.len(), 10_000);
    assert!((0..10_000).all(|row| rows.get(row, "rx_bytes") == Some(500)));
}
