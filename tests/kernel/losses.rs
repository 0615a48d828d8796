//! A map that is full: what has an entry goes on being right, and what has none is counted.

use std::collections::BTreeMap;

use e2e::{
    rows::{Row, sum},
    runs::Profiler,
};

const MESSAGES: u64 = 1000;
const BYTES: u64 = 100;
const PROCESSES: u64 = 6;
const ENTRIES: u64 = 2;

#[test]
fn of_a_full_map_what_is_lost_is_counted_and_the_rest_is_right() {
    let script =
        format!("for i in $(seq {PROCESSES}); do echo udp {MESSAGES} | $0 > /dev/null; done");
    // No tick makes room in between.
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
    let said = format!("{lost} operations lost: map NET_IO was full");
    assert!(finished.stderr.contains(&said), "{}", finished.stderr);
    let losses = dataset.manifest()["losses"].to_string();
    assert!(losses.contains("NET_IO"), "{losses}");
}
