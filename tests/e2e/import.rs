//! `profiler import`: runs of files that other programs, and exports of the profiler, have written.

use std::{fs, path::Path, process::Command};

use e2e::{dataset::Dataset, setting};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{export::export, export_perfmon, summary::gpu_run, timeline::powered};

/// Exit code and stderr of `profiler import`.
pub fn import(format: &str, path: &Path, run: &Path) -> (i32, String) {
    import_with(format, path, run, &[])
}

fn import_with(format: &str, path: &Path, run: &Path, options: &[&str]) -> (i32, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["import", format])
        .args(options)
        .arg(path)
        .arg("-o")
        .arg(run)
        .args(["--label", "origin=old"])
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("an exit code"), stderr)
}

/// Imports a file that `profiler export` writes. The result is complete, and has the label.
fn import_exported(format: &str, run: &Path, directory: &Path) -> Dataset {
    let [file, imported] = ["exported", "imported"].map(|name| directory.join(name));
    let [run, output] = [run, &file].map(|path| path.to_str().expect("UTF-8"));
    let (code, stderr) = export(&[format, run, "-o", output]);
    assert_eq!(code, 0, "{stderr}");
    let (code, stderr) = import(format, &file, &imported);
    assert_eq!(code, 0, "{stderr}");
    let verified = Command::new(setting("PROFILER_BIN"))
        .arg("verify")
        .arg(&imported)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success(), "{text}");
    let data = Dataset::new(imported);
    let labels: String = data.value("SELECT DISTINCT labels FROM run");
    assert!(labels.contains("\"origin\":\"old\""), "{labels}");
    data
}

/// Asserts that a query has the same rows in both runs, numbers within a rounding error.
fn assert_same(old: &Dataset, new: &Dataset, query: &str) {
    let [old, new] = [old, new].map(|data| data.rows::<Vec<Value>>(query));
    assert_eq!(old.len(), new.len(), "{query}: {old:?} {new:?}");
    assert!(
        old.iter().flatten().any(|value| !value.is_null()),
        "{query}"
    );
    for (old, new) in old.iter().flatten().zip(new.iter().flatten()) {
        let same = match (old.as_f64(), new.as_f64()) {
            (Some(old), Some(new)) => (old - new).abs() <= 1e-6 * old.abs().max(1.0),
            _ => old == new,
        };
        assert!(same, "{query}: {old} became {new}");
    }
}

fn figures(data: &Dataset) -> Value {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["summary", "--json"])
        .arg(data.path())
        .output()
        .expect("it starts");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    summary["runs"][0].clone()
}

#[test]
fn exports_of_perfmon_come_back() {
    let powered = powered();
    let directory = TempDir::new().expect("a directory");
    export_perfmon::record(directory.path(), "node1", &["--sysfs", powered.path()]);
    export_perfmon::record(directory.path(), "node2", &[]);
    let old = Dataset::new(directory.path().join("both"));
    let new = import_exported("perfmon", old.path(), directory.path());
    for query in [
        // Processes are also read between the samples, which perfmon's files do not have.
        "SELECT host, sum(user_ns) / 1e9, sum(read_bytes), sum(write_bytes), sum(read_syscalls), \
         sum(write_syscalls) FROM usage GROUP BY host ORDER BY host",
        "SELECT host, epoch_us(ts), target_cpu_percent, target_rss_sum FROM timeline ORDER BY host, ts",
        "SELECT host, sum(tx_bytes), sum(rx_packets) FROM netdev WHERE kind IS DISTINCT FROM 'virtual' GROUP BY host ORDER BY host",
        "SELECT host, domain, socket, sum(energy_uj) FROM energy GROUP BY ALL ORDER BY ALL",
        "SELECT host, pid, ppid, uid, comm, exit_code FROM process ORDER BY host, pid, start_ts",
    ] {
        assert_same(&old, &new, query);
    }
    // Files have the times of the samples, and not those of the reading of each meter. The energies
    // above are equal, and power in the time of the samples is this energy.
    for (domain, column) in [("package", "package_power_w"), ("dram", "dram_power_w")] {
        let (power, energy): (f64, f64) = new.row(&format!(
            "SELECT (SELECT sum({column} * interval_ns) / 1e3 FROM timeline WHERE host = 'node1'), \
             (SELECT sum(energy_uj) FROM energy WHERE host = 'node1' AND domain = '{domain}')"
        ));
        assert!(
            (power / energy - 1.0).abs() < 1e-6,
            "{domain}: {power} of {energy} µJ"
        );
    }
    let [of_old, of_new] = [&old, &new].map(figures);
    for figure in ["user_s", "storage_write_bytes", "processes"] {
        let [old, new] = [&of_old, &of_new].map(|all| all["total"][figure].as_f64().expect(figure));
        // Sums of the same values in another order.
        assert!((new - old).abs() <= 1e-9 * old, "{figure}: {old}, {new}");
    }
    let peak: u64 = old.value("SELECT max(target_rss_sum) FROM timeline");
    assert_eq!(
        of_new["total"]["peak_rss_bytes"].as_f64(),
        Some(peak as f64)
    );
    // What perfmon does not know is not 0.
    // perfmon has the CPU time of the target as its use over time.
    let [old_cpu, new_cpu] = [&of_old, &of_new].map(|all| all["total"]["cpu_s"].as_f64());
    let ratio = new_cpu.expect("known") / old_cpu.expect("known");
    assert!((0.8..1.25).contains(&ratio), "{old_cpu:?} {new_cpu:?}");
    assert!(of_old["total"]["runqueue_s"].is_f64() && of_new["total"]["runqueue_s"].is_null());
    for name in ["command", "user", "start", "end"] {
        assert_eq!(of_old[name].is_null(), of_new[name].is_null(), "{name}");
    }
    let compared = Command::new(setting("PROFILER_BIN"))
        .arg("compare")
        .args([old.path(), Path::new("--"), new.path()])
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&compared.stdout);
    assert!(
        compared.status.success() && text.contains("peak_rss_bytes"),
        "{text}"
    );
}

#[test]
fn exported_gpus_come_back() {
    let directory = TempDir::new().expect("a directory");
    let finished = gpu_run([80, 40]);
    let old = finished.dataset();
    let new = import_exported("perfmon", old.path(), directory.path());
    let query = "SELECT index, epoch_us(ts), utilization, memory_used, power_w, sm_clock_hz, temperature FROM gpu \
                 ORDER BY index, ts";
    assert_same(&old, &new, query);
}

/// Counters since boot, integer seconds, two samples in a second, a child whose time vanishes with it,
/// an energy counter that wraps, and no settings of a profiler.
#[test]
fn files_of_perfmon_itself_are_read() {
    let directory = TempDir::new().expect("a directory");
    let metrics = json!({
        "host_names": ["h0"], "sampling_frequency": 30,
        "h0": {
            "time_stamps": [1_700_000_000, 1_700_000_030, 1_700_000_030, 1_700_000_060, 1_700_000_090],
            "cpu_time": [100.5, 130.5, 130.5, 120.0, 150.0],
            "cpu_percent": [90.0, 100.0, 100.0, 95.0, 99.5],
            "memory_info": {"rss": [1000, 2000, 2000, 3000, 2500], "vms": [1, 2, 2, 3, 4], "shared": [1, 1, 1, 1, 1]},
            "memory_full_info": {"uss": [10, 20, 20, 30, 40], "swap": ["0", "0", "0", "0", "0"]},
            "net_io_counters": {"bytes_sent": [5_000, 6_000, 6_000, 7_500, 7_500]},
            "rapl_powercap": {"package-0": [262_000_000_000_u64, 262_003_000_000_u64, 262_003_000_000_u64, 1_000_000, 4_000_000]},
            "num_threads": [4, 4, 4, null, 4],
        },
    });
    let counters = json!({
        "host_names": ["h0"], "sampling_frequency": 30,
        "h0": {
            "time_stamps": [1_700_000_000, 1_700_000_030],
            "hardware_events": {"cycles": [1000.0, 2000.0], "branches": [null, 5.0]},
            "FLOPS_DP": {"derv_dp_flops": [1.5, 2.5]},
        },
    });
    let files = directory.path().join("job/metrics");
    fs::create_dir_all(&files).expect("made");
    for (name, content) in [("cpu_metrics", metrics), ("perf_metrics", counters)] {
        fs::write(files.join(format!("{name}.json")), content.to_string()).expect("written");
    }
    let run = directory.path().join("old");
    let (code, stderr) = import("perfmon", &directory.path().join("job"), &run);
    assert_eq!(code, 0, "{stderr}");
    let data = Dataset::new(run);
    let usage: Vec<(i64, Option<f64>, u64, Option<u32>)> =
        data.rows("SELECT epoch(ts)::BIGINT, user_ns / 1e9, rss, threads FROM usage ORDER BY ts");
    assert_eq!(
        usage,
        [
            (1_700_000_000, None, 1000, Some(4)),
            (1_700_000_030, Some(30.0), 2000, Some(4)),
            (1_700_000_060, None, 3000, None),
            (1_700_000_090, Some(30.0), 2500, Some(4)),
        ]
    );
    let watts: Vec<(Option<f64>,)> = data.rows("SELECT package_power_w FROM timeline ORDER BY ts");
    assert_eq!(watts, [(None,), (Some(0.1),), (None,), (Some(0.1),)]);
    let events: Vec<(String, String, i64, f64)> = data
        .rows("SELECT \"group\", event, epoch(ts)::BIGINT, \"count\" FROM perf_event ORDER BY ALL");
    let event = |name: &str, ts, value| ("HW".to_owned(), name.to_owned(), ts, value);
    assert_eq!(
        events,
        [
            event("branch-instructions", 1_700_000_060, 5.0),
            event("cpu-cycles", 1_700_000_030, 1000.0),
            event("cpu-cycles", 1_700_000_060, 2000.0),
        ]
    );
    let flops: Vec<(f64,)> =
        data.rows("SELECT value FROM perf_metric WHERE metric = 'dp_flops' ORDER BY ts");
    assert_eq!(flops, [(1.5e6,), (2.5e6,)]);
    let sent: Vec<(Option<u64>,)> = data.rows("SELECT tx_bytes FROM netdev ORDER BY ts");
    assert_eq!(sent, [(Some(1000),), (Some(1500),), (Some(0),)]);
}

#[test]
fn exports_of_perfpy_come_back() {
    let directory = TempDir::new().expect("a directory");
    for host in ["node1", "node2"] {
        export_perfmon::record(directory.path(), host, &[]);
    }
    let old = Dataset::new(directory.path().join("both"));
    let [file, run, without] =
        ["perf.json", "run", "without"].map(|name| directory.path().join(name));
    let [path, output] = [old.path(), &file].map(|path| path.to_str().expect("UTF-8"));
    assert_eq!(export(&["perfpy", path, "-o", output]).0, 0);
    let (cpus, memory): (u64, u64) = old.row("SELECT max(cpus), max(memory_total) FROM system");
    let [cpus, memory] = [cpus, memory].map(|number| number.to_string());
    let options = ["--cpus", &cpus, "--memory", &memory];
    let (code, stderr) = import_with("perfpy", &file, &run, &options);
    assert_eq!(code, 0, "{stderr}");
    let new = Dataset::new(run);
    for query in [
        "SELECT host, sum(read_bytes), sum(write_bytes) FROM disk WHERE NOT partition AND kind = 'physical' \
         GROUP BY host ORDER BY host",
        "SELECT host, kind, sum(tx_bytes), sum(rx_bytes) FROM netdev WHERE kind <> 'virtual' \
         GROUP BY host, kind ORDER BY host, kind",
        "SELECT host, epoch_us(ts), memory_used, memory_total, cpus FROM system ORDER BY host, ts",
    ] {
        assert_same(&old, &new, query);
    }
    // The mean of the CPUs whose times have advanced; none if the interval was too short for that.
    let mean = |data: &Dataset, value: &str, rows: &str| -> Vec<(String, i64, Option<f64>)> {
        data.rows(&format!(
            "SELECT host, epoch_us(ts), ({value})::DOUBLE FROM {rows} GROUP BY host, ts ORDER BY host, ts"
        ))
    };
    let idle = "100 - 100 * avg((idle_ns + iowait_ns) / nullif(user_ns + nice_ns + system_ns + idle_ns + \
                iowait_ns + irq_ns + softirq_ns + steal_ns + guest_ns + guest_nice_ns, 0))";
    let found = mean(
        &new,
        "100 * max(user_ns) / nullif(max(user_ns + idle_ns), 0)",
        "system",
    );
    let of_old = mean(&old, idle, "cpu");
    assert!(found.len() > 10, "{found:?}");
    assert_eq!(found.len(), of_old.len());
    for (now, before) in found.iter().zip(&of_old) {
        assert_eq!((&now.0, now.1), (&before.0, before.1));
        match (now.2, before.2) {
            (Some(now), Some(before)) => assert!((now - before).abs() < 1e-6, "{now} {before}"),
            (now, before) => assert_eq!(now, before),
        }
    }
    let [of_old, of_new] = [&old, &new].map(figures);
    for node in 0..2 {
        let memory = |all: &Value| all["nodes"][node]["node_max_memory_percent"].as_f64();
        let (before, now) = (
            memory(&of_old).expect("known"),
            memory(&of_new).expect("known"),
        );
        assert!((now - before).abs() < 1e-6, "{before} {now}");
        assert!(of_new["nodes"][node]["node_cpu_utilization_percent"].is_f64());
    }
    let compared = Command::new(setting("PROFILER_BIN"))
        .arg("compare")
        .args([old.path(), Path::new("--"), new.path()])
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success(), "{text}");
    crate::report::profiler(&["report", new.path().to_str().expect("UTF-8"), "-o", "-"]);

    // Percentages of an unknown machine are unknown.
    let (code, stderr) = import("perfpy", &file, &without);
    assert_eq!(code, 0, "{stderr}");
    let without = Dataset::new(without);
    let tables: (u64, Option<f64>, u64) = without.row(
        "SELECT (SELECT count(*) FROM netdev), (SELECT max(node_cpu_percent) FROM timeline), \
         (SELECT count(*) FROM system)",
    );
    assert!(
        tables.0 > 0 && tables.1.is_none() && tables.2 == 0,
        "{tables:?}"
    );
}

/// Totals since boot, one of which has decreased; a report twice, and one without a value.
#[test]
fn files_of_perfpy_itself_are_read() {
    let directory = TempDir::new().expect("a directory");
    let [file, run] = ["perf.json", "run"].map(|name| directory.path().join(name));
    let report = |ts: f64, cpu: f64, written: f64, sent: Option<f64>| {
        json!({
            "cpu_pct_per_cpu_avg": cpu, "cpu_pct_per_cpu_min": 0.0, "cpu_pct_per_cpu_max": cpu,
            "mem_percent": 25.0, "disk_usage_percent": 50.0, "disk_io_read_mb": 7000.5,
            "disk_io_write_mb": written, "net_io_lo_sent_mb": 1.0, "net_io_ext_sent_mb": sent,
            "net_io_lo_recv_mb": 1.0, "net_io_ext_recv_mb": 3.0, "timestamp": ts,
        })
    };
    let reports = json!({"0": [
        report(1_700_000_000.5, 50.0, 100.0, Some(10.0)),
        report(1_700_000_001.5, 100.0, 101.5, Some(12.0)),
        report(1_700_000_001.5, 100.0, 101.5, Some(12.0)),
        report(1_700_000_002.5, 25.0, 90.0, None),
        report(1_700_000_003.5, 25.0, 91.0, Some(13.0)),
    ]});
    fs::write(&file, reports.to_string()).expect("written");
    let options = ["--cpus", "4", "--memory", "8G"];
    let (code, stderr) = import_with("perfpy", &file, &run, &options);
    assert_eq!(code, 0, "{stderr}");
    let data = Dataset::new(run);
    let hosts: Vec<(String,)> = data.rows("SELECT DISTINCT host FROM system");
    assert_eq!(hosts, [("node0".to_owned(),)]);
    let written: Vec<(Option<f64>, u64)> =
        data.rows("SELECT write_bytes / 1048576, read_bytes FROM disk ORDER BY ts");
    assert_eq!(written, [(Some(1.5), 0), (None, 0), (Some(1.0), 0)]);
    let sent: Vec<(Option<u64>,)> =
        data.rows("SELECT tx_bytes FROM netdev WHERE device = 'all' ORDER BY ts");
    assert_eq!(sent, [(Some(2 << 20),), (None,), (None,)]);
    let cpu: Vec<(f64, f64, u64)> = data.rows(
        "SELECT user_ns / 1e9, node_cpu_percent, memory_used FROM system JOIN timeline USING (host, ts) ORDER BY ts",
    );
    let memory = 2 << 30;
    assert_eq!(
        cpu,
        [
            (2.0, 200.0, memory),
            (4.0, 400.0, memory),
            (1.0, 100.0, memory),
            (1.0, 100.0, memory)
        ]
    );
}

#[test]
fn exports_of_flowcept_come_back() {
    let directory = TempDir::new().expect("a directory");
    let work = "\"$PROFILER\" mark start outer --attr n=1; \"$PROFILER\" mark start inner --used in.csv; \
                head -c 30M /dev/zero | sha256sum > \"$0\"; \"$PROFILER\" mark end inner --generated out.csv; \
                \"$PROFILER\" mark event saved; \"$PROFILER\" mark phase late 0.05; \"$PROFILER\" mark end outer";
    let run = crate::report::record(
        directory.path(),
        &["--label", "campaign=c"],
        &work.replace("$0", "file"),
    );
    let old = Dataset::new(run.into());
    let new = import_exported("flowcept", old.path(), directory.path());
    let numbers = "dense_rank() OVER (ORDER BY region_start_ts, region_id)";
    for query in [
        format!(
            "SELECT {numbers}, name, op, coalesce(kind, op) = op, epoch_us(region_start_ts), epoch_us(region_end_ts), \
             used LIKE '%in.csv%', generated LIKE '%out.csv%' FROM region ORDER BY region_start_ts, region_id"
        ),
        "SELECT name, sum(user_ns), sum(system_ns), sum(write_chars), sum(oncpu_ns) FROM region_usage \
         WHERE interval_ns IS NOT NULL GROUP BY name ORDER BY name"
            .to_owned(),
        "SELECT DISTINCT json_extract_string(labels, '$.campaign') FROM run".to_owned(),
    ] {
        assert_same(&old, &new, &query);
    }
    // Counters of the node between the first and the last task, whose totals begin with the run.
    let grown = "SELECT (SELECT sum(write_bytes) FROM disk WHERE NOT partition AND kind IS DISTINCT FROM 'virtual'), (SELECT sum(user_ns) FROM system)";
    let [whole, part]: [(u64, u64); 2] = [&old, &new].map(|data| data.row(grown));
    assert!(
        part.0 <= whole.0 && part.1 <= whole.1 && part.1 > 0,
        "{part:?} of {whole:?}"
    );
    let lives: (bool,) = new.row("SELECT bool_and(start_ts >= (SELECT min(start_ts) FROM run) AND start_ts <= ts) FROM process");
    assert!(lives.0, "a process that starts before the file");
    let parents = "SELECT r.name, p.name FROM region r LEFT JOIN region p ON r.parent_region_id = p.region_id ORDER BY r.name";
    assert_same(&old, &new, parents);
}

#[test]
fn bad_input_is_one_line_and_leaves_nothing() {
    let directory = TempDir::new().expect("a directory");
    let [text, lines, fifo, reports, run] =
        ["text", "lines", "fifo", "reports", "run"].map(|name| directory.path().join(name));
    fs::write(
        &text,
        "{\"host_names\": [\"a\"], \"a\": {\"time_stamps\": [\"x\"]}}",
    )
    .expect("written");
    fs::write(&lines, "{\"type\": \"task\"\n").expect("written");
    fs::write(&reports, "{\"0\": [{\"mem_percent\": 1}]}").expect("written");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("it starts").success());
    for (format, path, why) in [
        ("perfmon", &text, "a time stamp is not a time in seconds"),
        ("perfmon", &lines, "not a file of perfmon"),
        ("flowcept", &lines, "line 1: not JSON"),
        ("flowcept", &fifo, "not a regular file"),
        ("flowcept", &run, "No such file"),
        ("perfpy", &text, "not a file of perf.py"),
        ("perfpy", &lines, "not a file of perf.py"),
        ("perfpy", &reports, "node 0: a report without a timestamp"),
    ] {
        let (code, stderr) = import(format, path, &run);
        assert_eq!((code, stderr.lines().count()), (3, 1), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
    fs::create_dir(&run).expect("made");
    fs::write(
        &lines,
        "{\"type\":\"task\",\"activity_id\":\"a\",\"started_at\":1700000000.0}\n",
    )
    .expect("written");
    let (code, stderr) = import("flowcept", &lines, &run);
    assert_eq!((code, stderr.contains("exists")), (5, true), "{stderr}");
    let names = fs::read_dir(directory.path()).expect("there").count();
    assert_eq!(names, 5);
}
