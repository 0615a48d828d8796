//! Full maps: existing entries remain correct, and every loss is counted.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    mounts::{LoopDevice, Mounted, directory},
    rows::{Row, sum},
    runs::{Finished, Profiler},
};

const MESSAGES: u64 = 1000;
const BYTES: u64 = 100;
const PROCESSES: u64 = 6;
const ENTRIES: u64 = 2;

#[test]
fn full_map_drops_are_counted() {
    let script =
        format!("for i in $(seq {PROCESSES}); do echo udp {MESSAGES} | $0 > /dev/null; done");
    // No sample frees entries meanwhile.
    let finished = Profiler::new()
        .args(["-i", "1h", "--source", "process,net_io,overhead"])
        .args(["--max-entries", &ENTRIES.to_string()])
        .command(&["sh", "-c", &script, crate::WORKLOAD])
        .finish();
    let dataset = finished.dataset();
    let rows = dataset.table("net_io");
    let mut messages = BTreeMap::new();
    for row in &rows {
        assert_eq!(row.text("protocol"), Some("udp"), "{row:?}");
        let sums: &mut [u64; 4] = messages.entry(row.u64("pid")).or_default();
        for (sum, column) in sums
            .iter_mut()
            .zip(["tx_calls", "tx_bytes", "rx_calls", "rx_bytes"])
        {
            *sum += row.u64(column).expect("a number");
        }
    }
    let all = [MESSAGES, MESSAGES * BYTES, MESSAGES, MESSAGES * BYTES];
    assert_eq!(messages.len() as u64, ENTRIES, "{messages:?}");
    assert!(messages.values().all(|sums| *sums == all), "{messages:?}");

    let lost = 2 * MESSAGES * (PROCESSES - ENTRIES);
    let overhead = dataset.table("overhead");
    let of_map = |row: &&Row| row.text("component") == Some("NET_IO");
    let of_map: Vec<Row> = overhead.iter().filter(of_map).cloned().collect();
    assert_eq!(sum(&of_map, "dropped"), lost);
    let message = format!("{lost} operations lost: map NET_IO was full");
    assert!(finished.stderr.contains(&message), "{}", finished.stderr);
    let losses = dataset.manifest()["losses"].to_string();
    assert!(losses.contains("NET_IO"), "{losses}");
}

/// Losses of a map; asserts that the end of the run reports the same number.
#[track_caller]
fn lost(finished: &Finished, map: &str) -> u64 {
    let mut rows = finished.dataset().table("overhead");
    rows.retain(|row| {
        row.text("component_kind") == Some("map") && row.text("component") == Some(map)
    });
    assert!(!rows.is_empty(), "no map {map}");
    let lost = sum(&rows, "dropped");
    let operations = if lost == 1 { "operation" } else { "operations" };
    let message = format!("profiler: {lost} {operations} lost: map {map} was full");
    let lines = finished.stderr.lines();
    let named: Vec<_> = lines.filter(|line| line.contains(" lost: map ")).collect();
    let expected: &[&str] = if lost == 0 { &[] } else { &[&message] };
    assert_eq!(named, expected);
    lost
}

/// Forks and exits between two readings are events in a ring buffer: each is recorded or counted as
/// lost.
#[test]
fn full_ring_buffer_drops_are_counted() {
    const CHILDREN: i64 = 100;
    let script = format!("echo $$; for i in $(seq {CHILDREN}); do (exit $i); done; exit 0");
    let run = |room: &[&str]| {
        Profiler::new()
            .args(["-i", "1h", "--source", "process,overhead"])
            .args(room)
            .command(&["sh", "-c", &script])
            .finish()
    };
    for (room, full) in [(&["--map-entries", "EVENTS=4096"][..], true), (&[], false)] {
        let finished = run(room);
        let rows = finished.dataset().table("process");
        let shell: u64 = finished.stdout.trim().parse().expect("a pid");
        let children: Vec<&Row> = rows
            .iter()
            .filter(|row| row.u64("ppid") == Some(shell))
            .collect();
        // One child is `seq`.
        let codes: Vec<i64> = children
            .iter()
            .filter_map(|row| row.i64("exit_code"))
            .collect();
        let mut unique = codes.clone();
        unique.sort_unstable();
        unique.dedup();
        let ended = rows
            .iter()
            .filter(|row| row.i64("exit_code").is_some())
            .count();
        let forks = children.len();
        let all = 2 * (CHILDREN as u64 + 1) + 1;
        let stored = (forks + ended) as u64;
        let lost = lost(&finished, "EVENTS");
        assert_eq!(
            stored + lost,
            all,
            "{forks} forks and {ended} ends of {CHILDREN}"
        );
        assert_eq!(lost > 0, full);
        if !full {
            assert_eq!(unique, (0..=CHILDREN).collect::<Vec<_>>());
        }
    }
}

/// A record that crosses the end of the ring buffer is read in one piece: here, one of each process.
#[test]
fn events_are_whole_at_the_end_of_the_ring_buffer() {
    const CHILDREN: usize = 100;
    let zeros = "0".repeat(300);
    let script = format!("for i in $(seq {CHILDREN}); do sleep 0.03 0.{zeros}$i; done; exit 0");
    let finished = Profiler::new()
        .args(["-i", "10ms", "--source", "process,overhead"])
        .args(["--map-entries", "EVENTS=4096"])
        .command(&["sh", "-c", &script])
        .finish();
    let rows = finished.dataset().table("process");
    let lines = rows.iter().filter_map(|row| row.text("cmdline"));
    let found: BTreeSet<&str> = lines.filter(|line| line.starts_with("sleep ")).collect();
    let lines: Vec<String> = (1..=CHILDREN)
        .map(|child| format!("sleep 0.03 0.{zeros}{child}"))
        .collect();
    let expected: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
    let wrong: Vec<_> = found.difference(&expected).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let missing = expected.len() - found.len();
    let lost = lost(&finished, "EVENTS");
    assert!(missing as u64 <= lost, "{missing} missing, {lost} lost");
    assert!(!found.is_empty());
}

/// A process without an entry is not followed and counted as lost; the others are recorded.
#[test]
fn full_process_map_drops_are_counted() {
    const CHILDREN: u64 = 10;
    const ENTRIES: u64 = 4;
    let script = format!("for i in $(seq {CHILDREN}); do sleep 1 & done; wait");
    let finished = Profiler::new()
        .args(["-i", "100ms", "--source", "process,usage,overhead"])
        .args(["--map-entries", &format!("PROCESSES={ENTRIES}")])
        .command(&["sh", "-c", &script])
        .finish();
    assert_eq!(finished.code(), 0);
    assert_eq!(lost(&finished, "PROCESSES"), CHILDREN + 1 - ENTRIES);
    let mut rows = finished.dataset().table("process");
    rows.retain(|row| row.text("comm") == Some("sleep"));
    assert_eq!(rows.len() as u64, ENTRIES - 1);
    for row in rows {
        assert_eq!(row.i64("exit_code"), Some(0));
        let lived = row.u64("interval_ns").expect("a length");
        assert!(lived >= 1_000_000_000, "{lived}");
    }
}

/// A request without an entry in the map of requests in flight is counted as lost once.
#[test]
fn full_request_map_drops_are_counted() {
    const BATCHES: u64 = 64;
    const READS: u64 = 32 * BATCHES;
    let place = directory();
    // On a file system with a disk, the requests of the loop device can need others.
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let disk = LoopDevice::new(&place.path().join("memory/image"), 16);
    let batches = BATCHES.to_string();
    let run = |room: &[&str]| {
        let finished = Profiler::new()
            .args(["-i", "1h", "--source", "process,block_io,overhead"])
            .args(room)
            .command(&[crate::WORKLOAD, "blocks", disk.path(), &batches])
            .finish();
        assert_eq!(finished.code(), 0);
        let mut rows = finished.dataset().table("block_io");
        rows.retain(|row| {
            row.text("device") == Some(disk.name()) && row.text("op") == Some("read")
        });
        assert_eq!(sum(&rows, "bytes"), 4096 * sum(&rows, "ops"));
        (sum(&rows, "ops"), lost(&finished, "REQUESTS"))
    };
    assert_eq!(run(&[]), (READS, 0));
    let before = other_requests(disk.name());
    let (stored, lost) = run(&["--map-entries", "REQUESTS=1"]);
    // The workload can need pages of its program or directories from another disk.
    let others = other_requests(disk.name()) - before;
    assert!(lost > 0, "no two requests were in flight");
    let expected = READS..=READS + others;
    assert!(
        expected.contains(&(stored + lost)),
        "{stored} stored, {lost} lost: {expected:?}"
    );
}

/// Completed requests of all disks but this one (Documentation/admin-guide/iostats.rst).
fn other_requests(disk: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/diskstats").expect("diskstats");
    let lines = text.lines().map(|line| line.split_whitespace().collect());
    let others = lines.filter(|words: &Vec<&str>| words[2] != disk);
    let requests = others
        .flat_map(|words| [3, 7, 14, 18].map(|at| words[at].parse::<u64>().expect("a number")));
    requests.sum()
}
