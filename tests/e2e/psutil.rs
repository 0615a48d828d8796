//! `disk`, `netdev`, `filesystem`, details of processes and facts about the node have psutil's values,
//! and facts about CPUs those of lscpu.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::UdpSocket,
    process::{Command, Stdio},
};

use e2e::{
    dataset::{Dataset, python},
    runs::{ProcessGroup, Profiler, wait_until},
};
use serde_json::Value;
use tempfile::TempDir;

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
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let small = TempDir::new().expect("a directory");
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

/// Opens two files and three sockets, waits for a child, and sleeps.
const PROGRAM: &str = "\
import socket, subprocess, sys, time
sockets = [socket.socket() for _ in range(3)]
for opened in sockets:
    opened.bind(('127.0.0.1', 0))
    opened.listen()
files = [open('/etc/passwd'), open('/etc/group')]
null = open('/dev/null')
subprocess.run(['sh', '-c', 'i=0; while [ $i -lt 600000 ]; do i=$((i+1)); done'])
open(sys.argv[1], 'w').close()
time.sleep(60)
";

#[test]
fn details_of_a_process_are_those_of_psutil() {
    let directory = TempDir::new().expect("a directory");
    let ready = directory.path().join("ready");
    let argv = ["", "a b", ready.to_str().expect("UTF-8")];
    let target = ProcessGroup::start(
        Command::new("python3")
            .args(["-c", PROGRAM, argv[2]])
            .args(&argv[..2])
            // The output of the test can be a file.
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    wait_until("the target is ready", || ready.exists());
    let finished = Profiler::new()
        .args(["--source", "usage,process", "-i", "100ms", "-d", "500ms"])
        .pid(target.pid())
        .finish();
    let pid = target.pid().to_string();
    let theirs = python("psutil_process.py", &[&pid]);
    let data = finished.dataset();
    let rows = data.table("usage");
    let mut known = rows.iter().filter(|row| row.u64("sockets").is_some());
    let row = known.next_back().expect("a row with details");
    for column in ["sockets", "open_files"] {
        assert_eq!(row.u64(column), theirs[column].as_u64(), "{column}");
    }
    assert_eq!(
        (row.u64("sockets"), row.u64("open_files")),
        (Some(3), Some(2))
    );
    for (column, key) in [
        ("children_user_ns", "children_user"),
        ("children_system_ns", "children_system"),
    ] {
        let ours = row.u64(column).expect("known") as f64 / 1e9;
        let theirs = theirs[key].as_f64().expect("a number");
        assert!((ours - theirs).abs() < 0.001, "{column}: {ours} {theirs}");
    }
    assert!(row.u64("children_user_ns") > Some(50_000_000));
    let process = &data.table("process")[0];
    let words = process.words("argv").expect("known");
    let argv: Vec<&str> = theirs["argv"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|word| word.as_str().expect("a text"))
        .collect();
    assert_eq!(words, argv);
    assert_eq!(words.len(), 6);
    assert_eq!(process.text("cmdline"), Some(&*argv.join(" ")));
}

/// Every sum of the view has all processes that live, and each process only once.
#[test]
fn footprint_is_a_complete_sum() {
    let directory = TempDir::new().expect("a directory");
    let fifo = directory.path().join("end");
    let fifo = fifo.to_str().expect("UTF-8");
    assert!(
        Command::new("mkfifo")
            .arg(fifo)
            .status()
            .expect("it starts")
            .success()
    );
    let script = format!(
        "sleep 600 & a=$!; sleep 600 & /bin/true; read line < {fifo}; kill $a $!; wait; true"
    );
    let profiler = Profiler::new()
        .args(["--source", "usage,process", "-i", "50ms"])
        .command(&["sh", "-c", &script])
        .start();
    let data = Dataset::new(profiler.run_dir());
    // How soon the memory of all is read depends on how long it takes.
    wait_until("a sample has the memory of all", || {
        let mut samples: BTreeMap<Option<i64>, Vec<bool>> = BTreeMap::new();
        for row in data.so_far("usage") {
            if row.u64("rss").is_some() {
                let is_known = row.u64("pss").is_some();
                samples.entry(row.i64("ts")).or_default().push(is_known);
            }
        }
        samples.values().any(|known| *known == [true; 3])
    });
    std::fs::write(fifo, "\n").expect("it is read");
    let finished = profiler.finish();
    let data = finished.dataset();
    let rows: Vec<(u64, u64, Option<f64>)> =
        data.rows("SELECT processes, known, pss FROM footprint ORDER BY ts");
    for (processes, known, pss) in &rows {
        assert_eq!(pss.is_some(), processes == known, "{rows:?}");
    }
    let (own, sum): (f64, f64) = data.row(
        "SELECT own, f.pss FROM footprint f JOIN (SELECT ts, sum(pss) AS own, count(*) AS n, \
         count(pss) AS known FROM usage WHERE rss IS NOT NULL GROUP BY ts) u USING (ts) \
         WHERE n = u.known ORDER BY ts LIMIT 1",
    );
    assert!((own - sum).abs() < 1.0, "{own} {sum}");
}

#[test]
fn frequency_and_addresses_are_those_of_psutil() {
    let theirs = python("psutil_node.py", &[]);
    let finished = Profiler::new()
        .args([
            "--node", "--source", "cpu,host", "-i", "100ms", "-d", "300ms",
        ])
        .finish();
    let data = finished.dataset();
    // Without a hypervisor, it changes with the load.
    let (low, high): (f64, f64) = data.row("SELECT min(frequency_hz), max(frequency_hz) FROM cpu");
    let apart = if low < high { 2.0 } else { 1.05 };
    let mhz = theirs["mhz"].as_f64().expect("a number");
    assert!(
        (low / apart..=high * apart).contains(&(1e6 * mhz)),
        "{low} to {high} Hz, psutil has {mhz} MHz"
    );
    let host = &data.table("host")[0];
    let nics: Value = serde_json::from_str(host.text("nics").expect("known")).expect("JSON");
    let mut ours = serde_json::Map::new();
    for nic in nics.as_array().expect("a list") {
        let addresses = nic["addresses"].as_array().expect("a list");
        let text = |address: &Value, key: &str| address[key].clone();
        let mut addresses: Vec<Value> = addresses
            .iter()
            .map(|found| {
                let keys = ["family", "address", "netmask", "broadcast"];
                Value::Array(keys.map(|key| text(found, key)).to_vec())
            })
            .collect();
        addresses.sort_by_key(Value::to_string);
        if !addresses.is_empty() {
            let name = nic["name"].as_str().expect("a name");
            ours.insert(name.to_owned(), Value::Array(addresses));
        }
    }
    let mut sorted = theirs["addresses"].clone();
    for list in sorted.as_object_mut().expect("an object").values_mut() {
        let list = list.as_array_mut().expect("a list");
        list.sort_by_key(Value::to_string);
    }
    assert_eq!(Value::Object(ours), sorted);
}

/// Names of lscpu and the columns with the same text.
const LSCPU: [(&str, &str); 5] = [
    ("CPU op-mode(s)", "cpu_op_modes"),
    ("Byte Order", "byte_order"),
    ("Address sizes", "address_sizes"),
    ("Thread(s) per core", "threads_per_core"),
    ("Core(s) per socket", "cores_per_socket"),
];

#[test]
fn facts_about_cpus_are_those_of_lscpu() {
    let output = Command::new("lscpu")
        .env("LC_ALL", "C")
        .output()
        .expect("lscpu");
    let lscpu = String::from_utf8(output.stdout).expect("UTF-8");
    let theirs = |name: &str| {
        let line = lscpu.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.strip_prefix(':')?.trim().to_owned())
    };
    let finished = Profiler::new()
        .args([
            "--node",
            "--source",
            "host,system",
            "-i",
            "100ms",
            "-d",
            "200ms",
        ])
        .finish();
    let data = finished.dataset();
    for (name, column) in LSCPU {
        let ours: Option<String> = data.value(&format!("SELECT {column}::VARCHAR FROM host"));
        assert_eq!(ours, theirs(name), "{name}");
    }
    let bogomips: f64 = data.value("SELECT bogomips FROM host");
    let known: Option<f64> = theirs("BogoMIPS").and_then(|text| text.parse().ok());
    assert_eq!(Some(bogomips), known);
}

/// Each baseline lies between two readings of psutil, one before and one after the first sample.
#[test]
fn baselines_lie_between_two_psutil_readings() {
    let before = python("psutil_totals.py", &[]);
    let finished = Profiler::new()
        .args([
            "--node",
            "--source",
            "baseline,system",
            "-i",
            "100ms",
            "-d",
            "200ms",
        ])
        .finish();
    let after = python("psutil_totals.py", &[]);
    let data = finished.dataset();
    let value = |table: &str, item: &str, column: &str| -> f64 {
        data.value(&format!(
            "SELECT sum(value)::DOUBLE FROM baseline WHERE table_name = '{table}' \
             AND instance = '{item}' AND column_name IN ({column})"
        ))
    };
    let between = |name: &str, ours: f64, pointer: &str, unit: f64| {
        let of = |reading: &Value| reading.pointer(pointer).and_then(Value::as_f64);
        let (low, high) = (of(&before).expect("known"), of(&after).expect("known"));
        // psutil's times are rounded to 10 ms.
        let room = if unit > 1.0 { 0.011 * unit } else { 0.0 };
        let range = low * unit - room..=high * unit + room;
        assert!(range.contains(&ours), "{name}: {ours} {range:?}");
    };
    // psutil's user time includes guests.
    for (column, key) in [
        ("'user_ns', 'guest_ns'", "user"),
        ("'system_ns'", "system"),
        ("'idle_ns'", "idle"),
        ("'softirq_ns'", "softirq"),
    ] {
        let ours = value("system", "", column);
        between(key, ours, &format!("/times/{key}"), 1e9);
        let first = value("cpu", "0", column);
        between(key, first, &format!("/cpus/0/{key}"), 1e9);
    }
    between(
        "ctxt",
        value("system", "", "'context_switches'"),
        "/ctx_switches",
        1.0,
    );
    between("sin", value("system", "", "'swap_in_bytes'"), "/sin", 1.0);
    let (lo_tx, lo_rx) = (
        value("netdev", "lo", "'tx_bytes'"),
        value("netdev", "lo", "'rx_packets'"),
    );
    between("lo", lo_tx, "/nics/lo/bytes_sent", 1.0);
    between("lo", lo_rx, "/nics/lo/packets_recv", 1.0);
    let disks = before["disks"].as_object().expect("disks");
    let used = disks
        .iter()
        .filter(|(_, counts)| counts["read_count"].as_u64() > Some(0));
    let used: Vec<&String> = used.map(|(name, _)| name).collect();
    assert!(!used.is_empty());
    for disk in used {
        for (column, key) in [("read_bytes", "read_bytes"), ("write_ops", "write_count")] {
            let ours = value("disk", disk, &format!("'{column}'"));
            between(disk, ours, &format!("/disks/{disk}/{key}"), 1.0);
        }
    }
    let rows: u64 = data.value("SELECT count(DISTINCT ts) FROM baseline");
    assert_eq!(rows, 1, "one sample");
}
