//! `timeline` equals the aggregates of the other tables.

use e2e::{
    dataset::Dataset,
    runs::{Finished, Profiler},
    setting,
    sysfs::{Rising, Sysfs},
};

/// Simulated RAPL zones (packages of 50 W and 15 W, memory of 8 W), two ports and two GPUs.
pub fn powered() -> Rising {
    let mut sysfs = Sysfs::without(&["drm", "infiniband", "powercap"]);
    sysfs.zone("intel-rapl:0", "package-0", 50);
    sysfs.zone("intel-rapl:0:0", "dram", 8);
    sysfs.zone("intel-rapl:1", "package-1", 15);
    for device in ["mlx5_0", "mlx5_1"] {
        let port = format!("infiniband/{device}/ports/1");
        sysfs.put(&format!("{port}/state"), "4: ACTIVE");
        for name in ["port_xmit_data", "port_rcv_data"] {
            sysfs.rise(&format!("{port}/counters/{name}"), 1000);
        }
    }
    for (card, busy, microwatts) in [("card0", 90, 250_000_000), ("card1", 40, 100_000_000)] {
        let put = |file: &str, text: &str| sysfs.put(&format!("drm/{card}/device/{file}"), text);
        put(
            "uevent",
            &format!("DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c1:00.{busy}"),
        );
        put("gpu_busy_percent", &busy.to_string());
        put("mem_info_vram_used", "1048576");
        put("hwmon/hwmon0/power1_average", &microwatts.to_string());
    }
    sysfs.start()
}

/// Computes, uses files, TCP and UDP, and has children that do the same, in regions, so that
/// processes are also read between the samples.
const WORK: &str = r"
import json, os, socket, sys, time
marks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def mark(**what): marks.sendto(json.dumps(what).encode(), os.environ['PROFILER_SOCKET'])
def work(path):
    mark(op='start', name='work')
    with open(path, 'wb') as file:
        file.write(bytes(3 << 20)); file.flush(); os.fsync(file.fileno())
    with open(path, 'rb') as file:
        while file.read(1 << 16): pass
    a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname()); c, _ = a.accept()
    for _ in range(50):
        b.sendall(bytes(10000)); c.recv(10000, socket.MSG_WAITALL)
    u = socket.socket(type=socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); u.sendto(b'datagram', u.getsockname()); u.recv(100)
    end = time.monotonic() + 0.2
    while time.monotonic() < end: pass
    mark(op='end', name='work')
for n in range(3):
    if (pid := os.fork()) == 0:
        work(sys.argv[1] + str(n)); os._exit(0)
    work(sys.argv[1]); os.waitpid(pid, 0); time.sleep(0.25)
";

fn run(extra: &[&str]) -> Finished {
    let powered = powered();
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = directory.path().join("file");
    let file = file.to_str().expect("UTF-8");
    let finished = Profiler::new()
        .args(["-i", "100ms", "--sysfs", powered.path()])
        .args(extra)
        .command(&[&setting("PROFILER_TEST_PYTHON"), "-c", WORK, file])
        .finish();
    finished.dataset().assert_complete();
    finished
}

/// Each column as a query over the rows of the sample; for counters, including the readings since
/// the previous sample. A source without rows has seen no activity.
const COLUMNS: [(&str, &str); 26] = [
    (
        "target_cpu_percent",
        "SELECT coalesce(sum(user_ns + system_ns), 0) * 100.0 / t.interval_ns FROM usage WHERE tid IS NULL",
    ),
    (
        "target_runqueue_ns",
        "SELECT coalesce(sum(runqueue_ns), 0) FROM sched WHERE tid IS NULL",
    ),
    (
        "target_rss_sum",
        "SELECT sum(rss) FROM usage WHERE tid IS NULL",
    ),
    (
        "target_minor_faults",
        "SELECT coalesce(sum(minor_faults), 0) FROM usage WHERE tid IS NULL",
    ),
    (
        "target_major_faults",
        "SELECT coalesce(sum(major_faults), 0) FROM usage WHERE tid IS NULL",
    ),
    (
        "target_file_read_bytes",
        "SELECT CASE WHEN (SELECT count(*) FROM file_io WHERE method = 'accounting') = 0 \
         THEN coalesce(sum(read_bytes), 0) END FROM file_io WHERE tid IS NULL",
    ),
    (
        "target_file_write_bytes",
        "SELECT CASE WHEN (SELECT count(*) FROM file_io WHERE method = 'accounting') = 0 \
         THEN coalesce(sum(write_bytes), 0) END FROM file_io WHERE tid IS NULL",
    ),
    (
        "target_block_read_bytes",
        "SELECT coalesce(sum(bytes) FILTER (WHERE op = 'read'), 0) FROM block_io WHERE tid IS NULL",
    ),
    (
        "target_block_write_bytes",
        "SELECT coalesce(sum(bytes) FILTER (WHERE op = 'write'), 0) FROM block_io WHERE tid IS NULL",
    ),
    (
        "target_net_tx_bytes",
        "SELECT coalesce(sum(tx_bytes), 0) FROM net_io WHERE tid IS NULL AND protocol <> 'unix'",
    ),
    (
        "target_net_rx_bytes",
        "SELECT coalesce(sum(rx_bytes), 0) FROM net_io WHERE tid IS NULL AND protocol <> 'unix'",
    ),
    (
        "target_cycles",
        "SELECT sum(\"count\") FROM events WHERE \"group\" = 'HW' AND event = 'cpu-cycles'",
    ),
    (
        "target_instructions",
        "SELECT sum(\"count\") FROM events WHERE \"group\" = 'HW' AND event = 'instructions'",
    ),
    (
        "target_dp_flop_per_s",
        "SELECT sum(value) FROM metrics WHERE metric = 'dp_flops' AND scope = 'target'",
    ),
    (
        "node_cpu_percent",
        "SELECT (user_ns + nice_ns + system_ns + guest_ns + guest_nice_ns) * 100.0 / interval_ns FROM system WHERE true",
    ),
    (
        "node_memory_bytes",
        "SELECT memory_used FROM system WHERE true",
    ),
    (
        "node_block_read_bytes",
        "SELECT sum(read_bytes) FROM disk WHERE kind = 'physical' AND NOT partition",
    ),
    (
        "node_block_write_bytes",
        "SELECT sum(write_bytes) FROM disk WHERE kind = 'physical' AND NOT partition",
    ),
    (
        "node_net_tx_bytes",
        "SELECT sum(tx_bytes) FROM netdev WHERE kind IN ('physical', 'container')",
    ),
    (
        "node_net_rx_bytes",
        "SELECT sum(rx_bytes) FROM netdev WHERE kind IN ('physical', 'container')",
    ),
    (
        "node_mem_bw_bytes_per_s",
        "SELECT sum(value) FROM metrics WHERE metric = 'mem_bw' AND scope = 'node'",
    ),
    (
        "package_power_w",
        "SELECT sum(energy_uj * 1000.0 / interval_ns) FROM energy WHERE domain = 'package'",
    ),
    (
        "dram_power_w",
        "SELECT sum(energy_uj * 1000.0 / interval_ns) FROM energy WHERE domain = 'dram'",
    ),
    (
        "fabric_tx_bytes",
        "SELECT sum(tx_bytes) FROM fabric WHERE true",
    ),
    (
        "fabric_rx_bytes",
        "SELECT sum(rx_bytes) FROM fabric WHERE true",
    ),
    (
        "target_energy_uj",
        "SELECT (SELECT sum(energy_uj) FROM energy WHERE domain = 'package' AND ts = t.ts) * coalesce(sum(user_ns + system_ns), 0) \
         / greatest(1, sum(user_ns + system_ns), (SELECT user_ns + nice_ns + system_ns + guest_ns + guest_nice_ns FROM system \
         WHERE ts = t.ts)) FROM usage WHERE tid IS NULL",
    ),
];

/// For each column, its value and that computed by DuckDB from the other tables.
type Tick = Vec<(Option<f64>, Option<f64>)>;

/// The ticks of a run in the order of time.
fn ticks(data: &Dataset) -> Vec<(Tick,)> {
    let tables = data.manifest()["tables"].clone();
    // Without a PMU, the tables of hardware counters have no files.
    let or_none = |table: &str, columns: &str| match tables.get(table) {
        Some(_) => format!("SELECT * FROM {table}"),
        None => format!("SELECT {columns} WHERE false"),
    };
    let events = or_none(
        "perf_event",
        "now() AS ts, 0.0 AS \"count\", '' AS \"group\", '' AS event",
    );
    let metrics = or_none(
        "perf_metric",
        "now() AS ts, 0.0 AS value, '' AS metric, '' AS scope",
    );
    let pairs = COLUMNS.map(|(column, sql)| {
        let when = if column == "target_rss_sum" {
            "ts = t.ts"
        } else {
            "ts > t.before AND ts <= t.ts"
        };
        format!("[t.{column}::DOUBLE, ({sql} AND {when})::DOUBLE]")
    });
    data.rows(&format!(
        "WITH events AS ({events}), metrics AS ({metrics}) SELECT [{}] FROM \
         (SELECT *, coalesce(lag(ts) OVER (ORDER BY ts), '1970-01-01') AS before FROM timeline) t ORDER BY ts",
        pairs.join(", ")
    ))
}

/// Asserts the columns of GPUs. Their readings are stored with the next sample, at the end with the
/// last one.
#[track_caller]
fn assert_gpu_columns(data: &Dataset) {
    let (ticks, with_gpus): (u64, u64) =
        data.row("SELECT count(*), count(gpu_utilization_sum) FROM timeline");
    let of_gpus: [Option<f64>; 5] = data.row(
        "SELECT max(gpu_utilization_sum), min(gpu_utilization_max), \
         min(gpu_memory_sum_bytes), min(gpu_power_sum_w), max(gpu_power_max_w) FROM timeline",
    );
    assert!(with_gpus * 2 > ticks, "{with_gpus} of {ticks}");
    let expected = [130.0, 90.0, 2.0 * 1_048_576.0, 350.0, 250.0];
    assert_eq!(of_gpus, expected.map(Some));
}

#[test]
fn timeline_columns_match_duckdb_over_the_other_tables() {
    for extra in [&[][..], &["--threads"]] {
        let run = run(extra);
        let data = run.dataset();
        let ticks = ticks(&data);
        let due = ticks.len() as u64 + data.missed_samples();
        assert!(due >= 15, "{} of {due} ticks", ticks.len());
        // There were readings between the samples.
        let boundaries: u64 = data.value(
            "SELECT count(DISTINCT ts) FROM usage WHERE ts NOT IN (SELECT ts FROM timeline)",
        );
        // One reading can serve several of the twelve marks.
        assert!(boundaries >= 3, "{boundaries} readings at regions");
        for (place, (column, _)) in COLUMNS.iter().enumerate() {
            let rows: Vec<_> = ticks.iter().map(|(tick,)| tick[place]).collect();
            for (index, (ours, theirs)) in rows.iter().enumerate() {
                let equal = match (ours, theirs) {
                    (Some(ours), Some(theirs)) => (ours - theirs).abs() <= 1e-9 * theirs.abs(),
                    (ours, theirs) => ours.is_none() && theirs.is_none(),
                };
                assert!(equal, "{column}, tick {index}: {ours:?}, not {theirs:?}");
            }
            let positive = rows.iter().filter(|row| row.0 > Some(0.0)).count();
            let rare = [
                "major_faults",
                "read_bytes",
                "net_",
                "cycles",
                "instructions",
                "flop_per_s",
                "mem_bw",
            ];
            // file_io has only the method `accounting` here.
            let unknown =
                column.starts_with("target_file_") && rows.iter().all(|row| row.0.is_none());
            assert!(
                positive > 0 || unknown || rare.iter().any(|rare| column.contains(rare)),
                "{column} is 0 in all of {} ticks",
                rows.len()
            );
        }
        assert_gpu_columns(&data);
        // The meters rise in steps, which are longer on a busy machine.
        let (package, dram): (f64, f64) = data.row(
            "SELECT sum(package_power_w * interval_ns) / sum(interval_ns), \
             sum(dram_power_w * interval_ns) / sum(interval_ns) FROM timeline WHERE dram_power_w IS NOT NULL",
        );
        assert!((package / 65.0 - 1.0).abs() < 0.15, "{package} W");
        assert!((dram / 8.0 - 1.0).abs() < 0.15, "{dram} W");
    }
}

#[test]
fn process_energies_sum_to_the_target_energy() {
    let run = run(&[]);
    let data = run.dataset();
    let (processes, target, known): (f64, f64, u64) = data.row(
        "SELECT (SELECT sum(energy_uj) FROM process), (SELECT sum(target_energy_uj) FROM timeline), \
         (SELECT count(energy_uj) FROM process)",
    );
    assert_eq!(known, 4);
    assert!(
        target > 0.0 && (processes - target).abs() < target * 1e-6,
        "{processes}, not {target}"
    );
}
