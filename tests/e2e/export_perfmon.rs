//! `profiler export perfmon`: what perfmon's documentation reads equals SQL.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    dataset::{Dataset, python},
    page::Page,
    setting,
    sysfs::Sysfs,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    export::export,
    report::profiler,
    summary::{gpu_run, replace},
    timeline::powered,
};

const MIB: f64 = 1_048_576.0;

/// Processes are also read at marks, between the samples.
const WORK: &str = "\
    \"$PROFILER\" mark start write; head -c 3M /dev/zero > \"$0\"; sync \"$0\"; \"$PROFILER\" mark end write; \
    head -c 20M /dev/zero | sha256sum >\"$0\"; sleep 0.3; head -c 20M /dev/zero | sha256sum >\"$0\"; sleep 0.3";

/// Runs the work as the node `host` of the run `both`.
pub fn record(directory: &Path, host: &str, options: &[&str]) {
    let status = Command::new(setting("PROFILER_BIN"))
        .args(["run", "-q", "-i", "100ms", "--run-id", "both"])
        .args(["--hostname", host, "--out"])
        .arg(directory)
        .args(options)
        .args(["--", "sh", "-c", WORK])
        .arg(directory.join("file"))
        .env("PROFILER", setting("PROFILER_BIN"))
        .status();
    assert!(status.expect("it starts").success());
}

/// What the script of perfmon's documentation finds in the files of a run.
fn exported(run: &Path) -> Value {
    let directory = TempDir::new().expect("a directory");
    let output = directory.path().join("files");
    let [run, output] = [run, &output].map(|path| path.to_str().expect("UTF-8"));
    let (code, stderr) = export(&["perfmon", run, "-o", output]);
    assert_eq!(code, 0, "{stderr}");
    python("perfmon.py", &[output])
}

/// Asserts that a list equals the only column of a query.
fn assert_equal(found: &Value, data: &Dataset, query: &str) {
    let expected: Vec<(Option<f64>,)> = data.rows(query);
    let found = found.as_array();
    let found = found.unwrap_or_else(|| panic!("no list: {query}"));
    assert_eq!(found.len(), expected.len(), "{query}");
    for (found, (expected,)) in found.iter().zip(&expected) {
        let same = match (found.as_f64(), expected) {
            (Some(found), Some(expected)) => (found - expected).abs() <= 1e-9 * expected.abs(),
            (found, expected) => found.is_none() && expected.is_none(),
        };
        assert!(same, "{found} instead of {expected:?}: {query}");
    }
    let known = expected.iter().filter(|(value,)| value.is_some());
    assert!(known.count() > 3, "{query}");
}

/// A query for a value at each sample of a host, from the rows of a table; `total` if they are added
/// up from the start of the run, also those between samples.
fn at_samples(host: &str, value: &str, rows: &str, total: bool) -> String {
    let rows =
        format!("SELECT ts, ({value})::DOUBLE AS v FROM {rows} AND host = '{host}' GROUP BY ts");
    let samples = format!("SELECT DISTINCT ts FROM timeline WHERE host = '{host}'");
    if total {
        format!(
            "SELECT (SELECT coalesce(sum(v), 0) FROM ({rows}) r WHERE r.ts <= t.ts) FROM ({samples}) t \
             ORDER BY t.ts"
        )
    } else {
        format!("SELECT v FROM ({samples}) LEFT JOIN ({rows}) USING (ts) ORDER BY ts")
    }
}

/// The values of the target and of the node.
fn assert_values_equal_sql(found: &Value, data: &Dataset, host: &str) {
    const PROCESSES: &str = "usage WHERE tid IS NULL";
    let metrics = &found["cpu_metrics"];
    let values = &metrics["values"][host];
    let assert = |key: &str, value: &str, rows: &str, total: bool| {
        assert_equal(&values[key], data, &at_samples(host, value, rows, total));
    };
    assert(
        "time_stamps",
        "epoch_us(ts) / 1e6",
        "timeline WHERE true",
        false,
    );
    assert("cpu_time", "sum(user_ns) / 1e9", PROCESSES, true);
    assert(
        "cpu_percent",
        "any_value(target_cpu_percent)",
        "timeline WHERE true",
        false,
    );
    assert("memory_info.rss", "sum(rss)", PROCESSES, false);
    assert("memory_info.vms", "sum(vms)", PROCESSES, false);
    assert("num_threads", "sum(threads)", PROCESSES, false);
    assert(
        "io_counters.write_bytes",
        "sum(write_bytes)",
        PROCESSES,
        true,
    );
    assert(
        "io_counters.read_count",
        "sum(read_syscalls)",
        PROCESSES,
        true,
    );
    let netdev = "netdev WHERE kind IS DISTINCT FROM 'virtual'";
    assert("net_io_counters.bytes_sent", "sum(tx_bytes)", netdev, true);
    let idle = "100 * (1 - sum(idle_ns + iowait_ns) / sum(user_ns + nice_ns + system_ns + idle_ns + \
         iowait_ns + irq_ns + softirq_ns + steal_ns + guest_ns + guest_nice_ns))";
    assert("cpu_percent_sys", idle, "system WHERE true", false);
    let share = "100 * sum(rss) / any_value(memory_total)";
    let joined = "usage JOIN system USING (host, ts) WHERE tid IS NULL";
    assert("memory_percent", share, joined, false);
    // All processes but the first are its descendants.
    let processes: u64 = data.value(&format!(
        "SELECT count(*) FROM process WHERE host = '{host}'"
    ));
    let descendants = found["descendants"][host].as_array().expect("a list");
    assert_eq!(descendants.len() as u64, processes - 1);
    assert_eq!(found["root"][host]["comm"], "sh");
    assert!(
        descendants
            .iter()
            .any(|process| process["comm"] == "sha256sum")
    );
    let events = &found["perf_metrics"]["values"][host];
    // Samples of counters have the time of their start.
    let start = "(epoch_us(ts) - round(any_value(interval_ns) / 1e3)) / 1e6";
    let query = at_samples(host, start, "timeline WHERE true", false);
    assert_equal(&events["time_stamps"], data, &query);
    let switches = "sum(voluntary_switches + involuntary_switches)";
    let query = at_samples(host, switches, PROCESSES, true);
    let all: Vec<(f64,)> = data.rows(&query);
    let counts = events["software_events.context-switches"]
        .as_array()
        .expect("a list");
    let sum: f64 = counts.iter().filter_map(Value::as_f64).sum();
    assert!(
        (sum - all.last().expect("rows").0).abs() < 0.5,
        "{sum}: {all:?}"
    );
}

#[test]
fn documented_values_equal_sql() {
    let powered = powered();
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    record(directory.path(), "node1", &["--sysfs", powered.path()]);
    record(directory.path(), "node2", &[]);
    let run = directory.path().join("both");
    let data = Dataset::new(run.clone());
    let found = exported(&run);
    let metrics = &found["cpu_metrics"];
    assert_eq!(metrics["sampling_frequency"], 0.1);
    for host in ["node1", "node2"] {
        assert_values_equal_sql(&found, &data, host);
    }
    // A node without meters has the same columns in the data frames, and no lists.
    let of_node1 = metrics["values"]["node1"].as_object().expect("lists");
    let of_node2 = metrics["values"]["node2"].as_object().expect("lists");
    let only: Vec<_> = of_node1
        .keys()
        .filter(|key| !of_node2.contains_key(*key))
        .collect();
    let energy = [
        "rapl_powercap.dram-0",
        "rapl_powercap.package-0",
        "rapl_powercap.package-1",
    ];
    for key in energy {
        assert!(only.iter().any(|name| *name == key), "{only:?}");
    }
    for key in only {
        assert!(key.starts_with("rapl_") || key.starts_with("ib_"), "{key}");
    }
    for (domain, condition, nominal) in [
        ("package-0", "domain = 'package' AND socket = 0", 50.0),
        ("package-1", "domain = 'package' AND socket = 1", 15.0),
        ("dram-0", "domain = 'dram'", 8.0),
    ] {
        let found = found["watts"][domain].as_f64().expect("a power");
        let watts: f64 = data.value(&format!(
            "SELECT sum(energy_uj) FILTER (ts > first) / 1e6 / (epoch(max(ts)) - epoch(any_value(first)))
             FROM energy, (SELECT min(ts) AS first FROM timeline WHERE host = 'node1') WHERE {condition}"
        ));
        assert!(
            (found / watts - 1.0).abs() < 1e-3,
            "{domain}: {found} W, not {watts} W"
        );
        assert!((found / nominal - 1.0).abs() < 0.3, "{domain}: {found} W");
    }
    for table in ["package 0", "dram 0"] {
        let header = Value::from(format!("RAPL {table} [uJ]"));
        let columns = metrics["columns"].as_array().expect("headers");
        assert!(columns.contains(&header), "{columns:?}");
    }
    let machine = &found["machine"]["node1"];
    let cpus: u64 = data.value("SELECT threads FROM host WHERE host = 'node1'");
    assert_eq!(machine["CPU(s)"], cpus);
    assert!(
        machine["L1d cache"].is_string() && machine["Flags"].is_string(),
        "{machine}"
    );
    assert_eq!(
        found["configs"],
        serde_json::json!(["node1_run_config.yml", "node2_run_config.yml"])
    );
    assert_eq!(
        found["events"]["software_events"]["context-switches"],
        serde_json::json!([])
    );
}

/// The queries of `docs/coming-from/perfmon.md` have the values of the files.
fn assert_queries_of_the_manual(data: &Dataset, metrics: &Value) {
    let page = Page::read("docs/coming-from/perfmon.md");
    let queries = page.programs("sql");
    for host in ["node1", "node2"] {
        let values = &metrics["values"][host];
        for (query, columns) in [
            (
                queries[0],
                &[
                    ("cpu_time", "cpu_time"),
                    ("cpu_percent", "cpu_percent"),
                    ("cpu_percent_sys", "cpu_percent_sys"),
                    ("rss", "memory_info.rss"),
                    ("vms", "memory_info.vms"),
                    ("shared", "memory_info.shared"),
                    ("swap", "memory_full_info.swap"),
                    ("memory_percent", "memory_percent"),
                    ("read_bytes", "io_counters.read_bytes"),
                    ("write_bytes", "io_counters.write_bytes"),
                    ("num_threads", "num_threads"),
                    ("num_fds", "num_fds"),
                ][..],
            ),
            (
                queries[1],
                &[
                    ("bytes_sent", "net_io_counters.bytes_sent"),
                    ("bytes_recv", "net_io_counters.bytes_recv"),
                    ("packets_sent", "net_io_counters.packets_sent"),
                    ("packets_recv", "net_io_counters.packets_recv"),
                ],
            ),
        ] {
            let query = query.trim().trim_end_matches(';');
            for (column, key) in columns {
                let query = format!("SELECT {column}::DOUBLE FROM ({query}) WHERE host = '{host}'");
                assert_equal(&values[key], data, &query);
            }
        }
    }
}

/// One node has power meters, the other a fabric and counters of memory.
#[test]
fn unequal_hosts_keep_their_columns() {
    let mut meters = Sysfs::without(&["infiniband", "powercap"]);
    meters.zone("intel-rapl:0", "package-0", 50);
    meters.zone("intel-rapl:0:0", "dram", 8);
    let mut fabric = Sysfs::without(&["infiniband", "powercap"]);
    for (file, text) in [("state", "4: ACTIVE"), ("rate", "100 Gb/sec (4X EDR)")] {
        fabric.put(&format!("infiniband/mlx5_0/ports/1/{file}"), text);
    }
    for name in ["port_xmit_data", "port_xmit_packets"] {
        fabric.rise(&format!("infiniband/mlx5_0/ports/1/counters/{name}"), 1000);
    }
    let [meters, fabric] = [meters.start(), fabric.start()];
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    record(directory.path(), "node1", &["--sysfs", meters.path()]);
    record(directory.path(), "node2", &["--sysfs", fabric.path()]);
    let run = directory.path().join("both");
    let data = Dataset::new(run.clone());
    // This machine has no counters.
    let table = run.join("perf_metric/host=node2");
    fs::create_dir_all(&table).expect("made");
    let _: Vec<(u64,)> = data.rows(&format!(
        "COPY (SELECT ts, interval_ns, 'LLC' AS \"group\", metric, 'B/s' AS unit, 'target' AS scope, \
         {MIB} * (row_number() OVER (PARTITION BY metric ORDER BY ts))::DOUBLE AS value, run \
         FROM timeline, (VALUES ('llc_miss_local_bw'), ('llc_miss_remote_bw')) m(metric) \
         WHERE host = 'node2' ORDER BY ts) TO '{}' (FORMAT parquet, COMPRESSION zstd)",
        table.join("part-00000.parquet").display()
    ));
    let found = exported(&run);
    let metrics = &found["cpu_metrics"];
    let columns = metrics["columns"].as_array().expect("headers");
    let samples: u64 = data.value("SELECT count(*) FROM timeline WHERE host = 'node2'");
    for (key, header, host, other) in [
        (
            "rapl_powercap.package-0",
            "RAPL package 0 [uJ]",
            "node1",
            "node2",
        ),
        ("rapl_powercap.dram-0", "RAPL dram 0 [uJ]", "node1", "node2"),
        (
            "ib_io_counters.port_xmit_data",
            "IB sent data [bytes]",
            "node2",
            "node1",
        ),
        (
            "memory_bw",
            "Memory (read) bandwidth [MiB/s]",
            "node2",
            "node1",
        ),
    ] {
        assert!(metrics["values"][host][key].is_array(), "{key}");
        assert!(metrics["values"][other][key].is_null(), "{key}");
        assert!(columns.contains(&Value::from(header)), "{columns:?}");
    }
    // Local and remote.
    let bandwidth = metrics["values"]["node2"]["memory_bw"]
        .as_array()
        .expect("a list");
    let sum: f64 = bandwidth.iter().filter_map(Value::as_f64).sum();
    let expected = (samples * (samples + 1)) as f64 * MIB;
    assert!((sum / expected - 1.0).abs() < 1e-9, "{sum} {expected}");
    // Words of 4 bytes.
    let query = at_samples("node2", "sum(tx_bytes)", "fabric WHERE true", true);
    let sent = &metrics["values"]["node2"]["ib_io_counters.port_xmit_data"];
    assert_equal(sent, &data, &query);

    assert_queries_of_the_manual(&data, metrics);

    let images = env::var("PROFILER_TEST_IMAGES").map(PathBuf::from);
    let plots = images.unwrap_or_else(|_| directory.path().join("plots"));
    let html = plots.join("perfmon.html");
    let [run, png, html] = [&run, &plots, &html].map(|path| path.to_str().expect("UTF-8"));
    profiler(&["report", run, "--like", "perfmon", "--png", png, "-o", html]);
    for name in [
        "Average_Memory_Bandwidth_(Read)_all_nodes",
        "Total_Interconnect_Output_Traffic_all_nodes",
        "Interconnect_Packets_Output_per_node",
        "RAPL_Package_Power_per_node",
        "Total_RAPL_DRAM_Power_all_nodes",
    ] {
        let image = fs::read(plots.join(format!("{name}.png"))).expect(name);
        assert!(image.starts_with(b"\x89PNG"), "{name}");
    }
    let pages = fs::read_to_string(html).expect("written");
    assert_eq!(pages.matches("<section class=\"page\">").count(), 8);
}

/// Counts of a CPU that this machine does not have.
#[test]
fn counters_have_their_names_and_units() {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    record(directory.path(), "node1", &["--groups", "SW"]);
    let run = directory.path().join("both");
    let data = Dataset::new(run.clone());
    let named =
        "CASE event WHEN 'context-switches' THEN 'HW' WHEN 'minor-faults' THEN 'L2' ELSE 'TMA' END";
    let event = "CASE event WHEN 'context-switches' THEN 'branch-instructions' WHEN 'minor-faults' THEN \
                 'L1D.REPLACEMENT' ELSE event END";
    replace(
        &data,
        "perf_event",
        &[&format!("{named} AS group"), &format!("{event} AS event")],
    );
    // Whose bytes are also those of another interface.
    let kind = "CASE kind WHEN 'loopback' THEN 'virtual' ELSE kind END AS kind";
    replace(&data, "netdev", &[kind, "1000 AS tx_bytes"]);
    let found = exported(&run);
    let sent = &found["cpu_metrics"]["values"]["node1"]["net_io_counters.bytes_sent"];
    let sent = sent.as_array().and_then(|list| list.last()).cloned();
    let others = "SELECT 1000 * count(*) FROM netdev WHERE kind <> 'virtual'";
    assert_eq!(
        sent.and_then(|sent| sent.as_f64()),
        Some(data.value(others))
    );
    let values = &found["perf_metrics"]["values"]["node1"];
    for (key, event) in [
        ("hardware_events.branches", "branch-instructions"),
        ("L2.L1D.REPLACEMENT", "L1D.REPLACEMENT"),
    ] {
        let rows = format!("perf_event WHERE tid IS NULL AND event = '{event}'");
        let found: f64 = values[key]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_f64)
            .sum();
        let all: f64 = data.value(&format!("SELECT sum(\"count\") FROM {rows}"));
        assert!(
            (found - all).abs() < 0.5 && all > 0.0,
            "{key}: {found}, not {all}"
        );
    }
    let keys = values.as_object().expect("lists").keys();
    let other: Vec<_> = keys.filter(|key| key.contains("task-clock")).collect();
    assert!(other.is_empty(), "{other:?}");
}

#[test]
fn gpus_are_hosts_of_their_own() {
    let finished = gpu_run([80, 40]);
    let data = finished.dataset();
    let found = exported(data.path());
    let host: String = data.value("SELECT DISTINCT host FROM gpu");
    let values = found["nv_gpu_metrics"]["values"].as_object().expect("GPUs");
    assert_eq!(values.len(), 2);
    for (index, utilization, used) in [(0, 80, 2_147_483_648_u64), (1, 40, 1_073_741_824)] {
        let gpu = &values[&format!("gpu-{index}.{host}")];
        let readings: u64 = data.value(&format!("SELECT count(*) FROM gpu WHERE index = {index}"));
        let list = |key: &str| {
            gpu[key]
                .as_array()
                .unwrap_or_else(|| panic!("no {key}: {gpu}"))
        };
        assert_eq!(list("time_stamps").len() as u64, readings);
        assert!(
            list("utilization_rates.gpu")
                .iter()
                .all(|value| *value == utilization)
        );
        assert!(
            list("memory_used.gpu_memory")
                .iter()
                .all(|value| *value == used)
        );
        assert!(
            list("power_usage")
                .iter()
                .all(|value| *value == [300_000, 100_000][index])
        );
    }
    let gpus = &found["machine"][&host]["gpus"];
    assert_eq!(
        (gpus[0]["uuid"].as_str(), gpus[1]["index"].as_u64()),
        (Some("GPU-0"), Some(1))
    );
    // Each process keeps the last reading of its private memory.
    let last = "SELECT ts, last_value(uss IGNORE NULLS) OVER (PARTITION BY pid, start_ts ORDER BY ts) AS uss \
         FROM usage WHERE tid IS NULL";
    let rows = format!(
        "SELECT ts, CASE WHEN count(*) = count(uss) THEN sum(uss) END::DOUBLE AS v FROM ({last}) GROUP BY ts"
    );
    let samples = "SELECT DISTINCT ts FROM timeline";
    let query = format!("SELECT v FROM ({samples}) LEFT JOIN ({rows}) USING (ts) ORDER BY ts");
    let private = &found["cpu_metrics"]["values"][&host]["memory_full_info.uss"];
    assert_equal(private, &data, &query);
}
