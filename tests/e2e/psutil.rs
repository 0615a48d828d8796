//! `disk`, `netdev` and `filesystem` have psutil's keys and values.

use std::{collections::BTreeMap, io::Write as _, net::UdpSocket, process::Command};

use e2e::{dataset::python, runs::Profiler};
use serde_json::Value;

/// Column, psutil's key, and units of the column per unit of psutil.
type Key = (&'static str, &'static str, u64);

const DISK: [Key; 9] = [
    ("read_ops", "read_count", 1),
    ("write_ops", "write_count", 1),
    ("read_bytes", "read_bytes", 1),
    ("write_bytes", "write_bytes", 1),
    ("read_merged", "read_merged_count", 1),
    ("write_merged", "write_merged_count", 1),
    ("read_ns", "read_time", 1_000_000),
    ("write_ns", "write_time", 1_000_000),
    ("busy_ns", "busy_time", 1_000_000),
];

const NETDEV: [Key; 8] = [
    ("tx_bytes", "bytes_sent", 1),
    ("rx_bytes", "bytes_recv", 1),
    ("tx_packets", "packets_sent", 1),
    ("rx_packets", "packets_recv", 1),
    ("rx_errors", "errin", 1),
    ("tx_errors", "errout", 1),
    ("rx_dropped", "dropin", 1),
    ("tx_dropped", "dropout", 1),
];

/// Writes to a disk and sends over the loopback interface.
fn work(directory: &std::path::Path) {
    let mut file = std::fs::File::create(directory.join("file")).expect("a file");
    file.write_all(&vec![1; 4 << 20]).expect("written");
    file.sync_all().expect("synced");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("an address");
    for _ in 0..100 {
        socket.send_to(&[7; 1000], address).expect("sent");
        socket.recv(&mut [0; 1000]).expect("received");
    }
}

#[test]
fn counters_lie_between_two_psutil_readings() {
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let small = tempfile::TempDir::new().expect("a directory");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "none"])
        .arg(small.path())
        .status();
    assert!(mounted.expect("mount").success());
    std::fs::write(small.path().join("file"), vec![1; 1 << 20]).expect("written");
    let mount = small.path().to_str().expect("UTF-8");
    let psutil = || python("psutil_reading.py", &[mount, "/"]);

    let before = psutil();
    let profiler = Profiler::new()
        .args([
            "-i",
            "100ms",
            "--source",
            "disk,netdev,filesystem",
            "--node",
        ])
        .start();
    let begin = psutil();
    for _ in 0..5 {
        work(directory.path());
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    let end = psutil();
    let finished = profiler.interrupt();
    let after = psutil();
    let data = finished.dataset();

    for (table, keys) in [("disk", &DISK[..]), ("netdev", &NETDEV)] {
        let sums: Vec<_> = keys
            .iter()
            .map(|(column, _, unit)| format!("sum({column})::UBIGINT // {unit}"))
            .collect();
        let rows: Vec<(String, Vec<u64>)> = data.rows(&format!(
            "SELECT device, [{}] FROM {table} GROUP BY device",
            sums.join(", ")
        ));
        let ours: BTreeMap<_, _> = rows.into_iter().collect();
        let mut moved = 0;
        for (device, values) in &ours {
            for ((column, key, _), value) in keys.iter().zip(values) {
                let at = |reading: &Value| reading[table][device][key].as_u64().expect(key);
                let (low, high) = (at(&end) - at(&begin), at(&after) - at(&before));
                assert!(
                    (low..=high).contains(value),
                    "{device}.{column}: {value}, psutil's {key}: {low}..={high}"
                );
                moved += u64::from(low > 0);
            }
        }
        assert!(moved >= 4, "{table}: {ours:?}");
        // Every device with activity in psutil has rows.
        for (device, reading) in before[table].as_object().expect("an object") {
            let idle = keys
                .iter()
                .all(|(_, key, _)| after[table][device][key] == reading[key]);
            assert!(idle || ours.contains_key(device), "{device} is missing");
        }
    }

    let (total, used, available): (u64, u64, u64) = data.row(&format!(
        "SELECT total, used, available FROM filesystem WHERE mount = '{mount}' ORDER BY ts DESC LIMIT 1"
    ));
    let theirs = &after["filesystem"][mount];
    assert_eq!(theirs["total"], total);
    assert_eq!(theirs["used"], used);
    assert_eq!(theirs["free"], available);
    let root: u64 = data.value("SELECT any_value(total) FROM filesystem WHERE mount = '/'");
    assert_eq!(after["filesystem"]["/"]["total"], root);
    let _ = Command::new("umount").arg("-l").arg(small.path()).status();
}
