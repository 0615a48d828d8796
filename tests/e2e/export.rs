//! `profiler export`: which rows it writes, and what it does if it cannot. That libraries read all
//! values is tested in `engines.rs`.

use std::{fs, path::Path, process::Command};

use e2e::{
    dataset::{Dataset, python},
    setting,
};
use tempfile::TempDir;

use crate::{
    full_disk::Disk,
    report::record,
    summary::{gpu_run, replace},
};

/// Exit code and stderr of `profiler export`.
pub fn export(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("export")
        .args(arguments)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("an exit code"), stderr)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

const SCRIPT: &str = "\
    sleep 0.3; SLURM_JOB_ID=77 sleep 0.4; \
    $PROFILER mark start phase; head -c 20M /dev/zero | sha256sum; sleep 0.3; $PROFILER mark end phase; \
    sleep 0.3";

fn run(directory: &TempDir) -> String {
    record(directory.path(), &[], SCRIPT)
}

/// Names with separators, quotes and line breaks, the largest numbers, and no number.
#[test]
fn unusual_names_and_values_are_kept_in_every_format() {
    const NAME: &str = "re,g\"ion;\n\t'1";
    let directory = TempDir::new().expect("a directory");
    let script = "cp /bin/sleep $'a,\"b\n'; $'./a,\"b\n' 0.1; name=$'re,g\"ion;\n\t\\'1'; \
                  \"$PROFILER\" mark start \"$name\" --used \"$name=$name\" --attr \"$name=$name\"; \
                  \"$PROFILER\" mark gauge \"$name\" 18446744073709551615 --unit \"$name\"; sleep 0.3; \
                  \"$PROFILER\" mark end \"$name\"; sleep 0.2";
    let run = record(directory.path(), &["--label", "a=b,c=d"], script);
    let data = Dataset::new(run.clone().into());
    let named: u64 = data.value(&format!(
        "SELECT count(*) FROM region WHERE name = '{}'",
        NAME.replace('\'', "''")
    ));
    assert_eq!(named, 1);
    replace(
        &data,
        "usage",
        &[
            "18446744073709551615 AS rss",
            "18446744073709551614 AS read_bytes",
        ],
    );
    replace(&data, "region_gauge", &["'NaN'::DOUBLE AS value"]);
    for format in [
        "csv",
        "json",
        "ndjson",
        "feather",
        "parquet",
        "perfmon",
        "chrome-trace",
        "flowcept",
        "perfpy",
        "prov",
        "pytyche",
    ] {
        let output = directory.path().join(format);
        let option = format!("{}/", text(&output));
        let (code, stderr) = export(&[format, &run, "-o", &option]);
        assert_eq!(code, 0, "{format}: {stderr}");
        assert!(!stderr.contains("panicked"), "{format}: {stderr}");
        let mut names = 0;
        for path in crate::at_end::files(&output) {
            let path = output.join(path);
            let content = match path.extension().and_then(|extension| extension.to_str()) {
                Some("gz") => {
                    Command::new("gzip")
                        .arg("-dc")
                        .arg(&path)
                        .output()
                        .expect("it starts")
                        .stdout
                }
                Some("json" | "jsonl" | "ndjson" | "yml") => fs::read(&path).expect("written"),
                _ => continue,
            };
            let stream = serde_json::Deserializer::from_slice(&content).into_iter();
            for document in stream {
                let document: serde_json::Value = document.expect("strict JSON");
                let escaped = serde_json::to_string(NAME).expect("a text");
                names += document.to_string().matches(&escaped).count();
            }
        }
        if [
            "json",
            "ndjson",
            "chrome-trace",
            "flowcept",
            "prov",
            "pytyche",
        ]
        .contains(&format)
        {
            assert!(names > 0, "{format}");
        }
    }
    let csv = directory.path().join("csv");
    let rows: u64 = data.value(&format!(
        "SELECT count(*) FROM read_csv('{}/process.csv', all_varchar = true)",
        csv.display()
    ));
    assert_eq!(rows, data.value::<u64>("SELECT count(*) FROM process"));
    let largest: String = data.value(&format!(
        "SELECT DISTINCT rss FROM read_csv('{}/usage.csv', all_varchar = true)",
        csv.display()
    ));
    assert_eq!(largest, u64::MAX.to_string());
}

/// A job of 64 ranks that runs for ten minutes, from the rows of one process.
#[test]
fn trace_of_a_job_is_small() {
    let directory = TempDir::new().expect("a directory");
    let run = record(
        directory.path(),
        &[],
        "head -c 30M /dev/zero | sha256sum; sleep 0.5",
    );
    let data = Dataset::new(run.clone().into());
    let host: String = data.value("SELECT DISTINCT host FROM process");
    for table in ["process", "usage", "sched"] {
        let part = data
            .path()
            .join(format!("{table}/host={host}/part-00000.parquet"));
        let part = text(&part);
        // Values differ from sample to sample, as they do.
        let (samples, values) = match table {
            "process" => ("VALUES (1)", "rank::UINTEGER AS task_rank"),
            "usage" => (
                "SELECT unnest(range(600))",
                "(abs(hash(rank, s)) % 900000000)::UBIGINT AS user_ns, (abs(hash(s, rank)) % 100000000)::UBIGINT AS rss",
            ),
            _ => (
                "SELECT unnest(range(600))",
                "(abs(hash(rank, s)) % 10000000)::UBIGINT AS runqueue_ns",
            ),
        };
        let _: Vec<(u64,)> = data.rows(&format!(
            "COPY (SELECT p.* REPLACE ((1000 + rank)::UINTEGER AS pid, p.ts + to_seconds(s) AS ts, {values}) \
             FROM (SELECT * FROM read_parquet('{part}', hive_partitioning = false) WHERE start_ts = \
             (SELECT min(start_ts) FROM process) LIMIT 1) p, ({samples}) t(s), range(64) r(rank) ORDER BY ts) \
             TO '{part}.new' (FORMAT parquet, COMPRESSION zstd)"
        ));
        fs::rename(format!("{part}.new"), part).expect("renamed");
    }
    let [plain, compressed] =
        ["trace.json", "trace.json.gz"].map(|name| directory.path().join(name));
    for path in [&plain, &compressed] {
        let (code, stderr) = export(&["chrome-trace", &run, "-o", text(path)]);
        assert_eq!(code, 0, "{stderr}");
    }
    let unpacked = Command::new("gzip")
        .arg("-dc")
        .arg(&compressed)
        .output()
        .expect("it starts");
    let trace = fs::read(&plain).expect("written");
    assert!(unpacked.stdout == trace, "another trace");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let counters = events
        .iter()
        .filter(|event| event["name"] == "CPU" && event["pid"].as_u64() < Some(10_000));
    assert_eq!(counters.count(), 64 * 600);
    let size = fs::metadata(&compressed).expect("written").len();
    assert!(size < 50_000_000, "{size} bytes");
    println!(
        "{size} bytes, {} uncompressed",
        fs::metadata(&plain).expect("written").len()
    );
}

/// Rows of an exported table and of the same selection in SQL.
fn assert_selects(run: &str, options: &[&str], table: &str, condition: &str) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("rows.ndjson");
    let arguments = [
        &["ndjson", run, "--table", table, "-o", text(&path)],
        options,
    ]
    .concat();
    let (code, stderr) = export(&arguments);
    assert_eq!(code, 0, "{stderr}");
    let exported = fs::read_to_string(&path).expect("written").lines().count() as u64;
    let data = Dataset::new(run.into());
    let [all, expected]: [u64; 2] = ["true", condition]
        .map(|condition| data.value(&format!("SELECT count(*) FROM {table} t WHERE {condition}")));
    assert_eq!(exported, expected, "{options:?} {table}, of {all}");
    assert!(
        expected > 0 && expected < all,
        "{options:?} {table}: {expected} of {all}"
    );
}

#[test]
fn rows_are_selected_by_time_region_and_job() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let data = Dataset::new(run.clone().into());
    let start = "(SELECT min(start_ts) FROM run)";
    // When half of the samples were taken, and when the marked phase began.
    let (middle, phase): (u64, u64) = data.row(&format!(
        "SELECT date_diff('ms', {start}, (SELECT quantile_disc(ts, 0.5) FROM usage)), \
         date_diff('ms', {start}, (SELECT max(region_start_ts) FROM region))"
    ));
    let at = |ms: u64| format!("{start} + INTERVAL {ms} MILLISECOND");
    let option = |ms: u64| format!("{ms}ms");
    let begin = "ts - to_microseconds((interval_ns // 1000)::BIGINT)";
    let from = format!("ts > {}", at(middle));
    assert_selects(&run, &["--from", &option(middle)], "usage", &from);
    let to = format!("{begin} < {}", at(middle));
    assert_selects(&run, &["--to", &option(middle)], "usage", &to);
    let lives = format!(
        "coalesce(end_ts, 'infinity') > {} AND start_ts < {}",
        at(phase),
        at(phase + 100)
    );
    let options = ["--from", &option(phase), "--to", &option(phase + 100)];
    assert_selects(&run, &options, "process", &lives);
    let region = format!(
        "EXISTS (FROM region r WHERE r.name = 'phase' AND {begin} < r.region_end_ts \
         AND t.ts > r.region_start_ts)"
    );
    assert_selects(
        &run,
        &["--region", "phase"],
        "system",
        &region
            .replace("ts - ", "t.ts - ")
            .replace("interval_ns", "t.interval_ns"),
    );
    let job = "(pid, start_ts) IN (SELECT (pid, start_ts) FROM process WHERE job_id = '77')";
    assert_selects(&run, &["--jobid", "77"], "usage", job);
    let time: String = data.value(&format!(
        "SELECT strftime({}, '%Y-%m-%dT%H:%M:%S.%fZ')",
        at(middle)
    ));
    assert_selects(&run, &["--from", &time], "usage", &from);
}

#[test]
fn existing_files_remain_and_nothing_is_half_written() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let path = directory.path().join("usage.csv");
    fs::write(&path, "mine").expect("written");
    let arguments = ["csv", &run, "--table", "usage", "-o", text(&path)];
    let (code, stderr) = export(&arguments);
    assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    assert!(stderr.contains("--force"), "{stderr}");
    assert_eq!(fs::read_to_string(&path).expect("there"), "mine");
    assert_eq!(export(&[&arguments[..], &["--force"]].concat()).0, 0);
    assert!(fs::read_to_string(&path).expect("there").starts_with("ts,"));

    // All tables or none.
    let tables = directory.path().join("tables");
    fs::create_dir(&tables).expect("made");
    fs::write(tables.join("usage.json"), "mine").expect("written");
    let (code, stderr) = export(&["json", &run, "-o", text(&tables)]);
    assert_eq!(code, 5, "{stderr}");
    assert_eq!(fs::read_dir(&tables).expect("there").count(), 1);

    let (code, stderr) = export(&["csv", &run, "--table", "nothing", "-o", "-"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("usage"), "{stderr}");
    assert_eq!(export(&["csv", &run, "-o", "-"]).0, 2);
    assert_eq!(
        export(&["csv", &run, "-o", "/nonexistent/x", "--table", "usage"]).0,
        5
    );
    assert_eq!(export(&["csv", "/nonexistent", "-o", text(&tables)]).0, 3);
    assert_eq!(
        export(&["csv", &run, "-o", text(&tables), "--from", "yesterday"]).0,
        2
    );
}

#[test]
fn full_disk_leaves_no_files() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let disk = Disk::new("32k");
    let output = disk.path().join("tables");
    let (code, stderr) = export(&["json", &run, "-o", text(&output)]);
    assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert_eq!(fs::read_dir(&output).expect("there").count(), 0);
}

#[test]
fn damaged_files_are_named_and_the_others_exported() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let data = Dataset::new(run.clone().into());
    let usage = data
        .files()
        .into_iter()
        .find(|path| text(path).contains("/usage/"));
    let damaged = usage.expect("a file");
    let length = fs::metadata(&damaged).expect("there").len();
    let file = fs::OpenOptions::new().write(true).open(&damaged);
    file.and_then(|file| file.set_len(length / 2))
        .expect("truncated");
    let output = directory.path().join("tables");
    let (code, stderr) = export(&["csv", &run, "-o", text(&output)]);
    assert_eq!(code, 5, "{stderr}");
    let name = damaged
        .file_name()
        .expect("a name")
        .to_str()
        .expect("UTF-8");
    assert!(
        stderr.contains("usage/host=") && stderr.contains(name),
        "{stderr}"
    );
    let sched = fs::read_to_string(output.join("sched.csv")).expect("written");
    assert!(sched.lines().count() > 1);
}

/// Reports of perf.py, in the order of [`KEYS`].
const QUERY: &str = "
    WITH c AS (SELECT host, ts, 100.0 * (user_ns + nice_ns + system_ns + irq_ns + softirq_ns + steal_ns
          + guest_ns + guest_nice_ns) / nullif(user_ns + nice_ns + system_ns + idle_ns + iowait_ns + irq_ns
          + softirq_ns + steal_ns + guest_ns + guest_nice_ns, 0) AS pct FROM cpu),
      cc AS (SELECT host, ts, avg(pct) AS mean, min(pct) AS least, max(pct) AS most FROM c GROUP BY ALL),
      m AS (SELECT host, ts, 100.0 * memory_used / memory_total AS memory FROM system),
      d AS (SELECT host, ts, sum(sum(write_bytes)) OVER w / 1048576.0 AS written FROM disk
        WHERE NOT partition AND kind IS DISTINCT FROM 'virtual' GROUP BY host, ts WINDOW w AS (PARTITION BY host ORDER BY ts)),
      n AS (SELECT host, ts, sum(sum(tx_bytes) FILTER (kind = 'loopback')) OVER w / 1048576.0 AS lo
        FROM netdev GROUP BY host, ts WINDOW w AS (PARTITION BY host ORDER BY ts)),
      f AS (SELECT host, ts, 100.0 * used / (used + available) AS disk FROM filesystem WHERE mount = '/')
    SELECT mean, least, most, memory, disk, written, lo, epoch(cc.ts) FROM cc LEFT JOIN m USING (host, ts)
      LEFT JOIN d USING (host, ts) LEFT JOIN n USING (host, ts)
      ASOF LEFT JOIN f ON f.host = cc.host AND cc.ts >= f.ts ORDER BY cc.ts";
const KEYS: [&str; 8] = [
    "cpu_pct_per_cpu_avg",
    "cpu_pct_per_cpu_min",
    "cpu_pct_per_cpu_max",
    "mem_percent",
    "disk_usage_percent",
    "disk_io_write_mb",
    "net_io_lo_sent_mb",
    "timestamp",
];

/// Reports of a run as perfpy has them.
fn reports(run: &str, options: &[&str]) -> Vec<serde_json::Value> {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("perf.json");
    let arguments = [&["perfpy", run, "-o", text(&path)], options].concat();
    assert_eq!(export(&arguments).0, 0);
    let host: String = Dataset::new(run.into()).value("SELECT DISTINCT host FROM system");
    let nodes = fs::read_to_string(directory.path().join("nodes.json")).expect("written");
    assert!(nodes.contains(&format!("\"0\": \"{host}\"")), "{nodes}");
    json(&path)["0"].as_array().expect("reports").clone()
}

/// Exports the reports of a run, and asserts that they equal their SQL.
fn assert_reports(run: &str) -> Vec<serde_json::Value> {
    let mut expected: Vec<[Option<f64>; 8]> = Dataset::new(run.into()).rows(QUERY);
    // Samples too short to have CPU time are part of the next one, and at the end of the last one,
    // which then has the last values of file systems and the totals of the run.
    let last = expected.last().expect("samples")[4..7].to_vec();
    expected.retain(|values| values[0].is_some());
    expected.last_mut().expect("samples")[4..7].copy_from_slice(&last);
    let reports = reports(run, &[]);
    assert_eq!(reports.len(), expected.len());
    for (report, values) in reports.iter().zip(&expected) {
        for (key, value) in KEYS.iter().zip(values) {
            let found = report[*key].as_f64();
            let same = match (found, value) {
                (Some(found), Some(value)) => (found - value).abs() <= 1e-9 * value.abs(),
                (found, value) => found.is_none() && value.is_none(),
            };
            assert!(same, "{key}: {found:?} instead of {value:?}");
        }
    }
    reports
}

#[test]
fn reports_of_perfpy_equal_their_sql() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let all = assert_reports(&run);
    let thinned = reports(&run, &["--every", "500ms"]);
    // Samples until they cover the time, but for a hundredth.
    let intervals: Vec<(f64,)> = Dataset::new(run.clone().into()).rows(
        "SELECT interval_ns / 1e9 FROM system WHERE ts IN \
         (SELECT ts FROM cpu WHERE user_ns + nice_ns + system_ns + idle_ns + iowait_ns + irq_ns \
         + softirq_ns + steal_ns + guest_ns + guest_nice_ns > 0) ORDER BY ts",
    );
    let (mut covered, mut count) = (0.0, 0);
    for (seconds,) in intervals {
        count += usize::from(covered == 0.0);
        covered += seconds;
        if covered >= 0.495 {
            covered = 0.0;
        }
    }
    assert_eq!(thinned.len(), count);
    assert!(count * 2 < all.len());
    let last =
        |reports: &[serde_json::Value]| reports.last().map(|last| last["disk_io_write_mb"].clone());
    assert_eq!(last(&thinned), last(&all));
}

/// The kernel counts CPU time in ticks of 10 ms, so that a short sample can have none.
#[test]
fn samples_without_cpu_time_are_joined_with_the_next() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let data = Dataset::new(run.clone().into());
    let times: Vec<(i64,)> = data.rows("SELECT DISTINCT epoch_us(ts) FROM cpu ORDER BY 1");
    let at = |number: usize| times[number].0;
    let last = times.len() - 1;
    assert!(last > 7, "{times:?}");
    let without = [2, 3, 6, last].map(|number| at(number).to_string());
    let user = format!(
        "if(epoch_us(ts) IN ({}), 0, 10000000) AS user_ns",
        without.join(", ")
    );
    let others = [
        "nice",
        "system",
        "idle",
        "iowait",
        "irq",
        "softirq",
        "steal",
        "guest",
        "guest_nice",
    ];
    let others = others.map(|name| format!("0 AS {name}_ns"));
    let times_of_cpu: Vec<&str> = others.iter().chain([&user]).map(String::as_str).collect();
    replace(&data, "cpu", &times_of_cpu);
    replace(&data, "disk", &["1048576 AS write_bytes"]);
    // Far shorter than the time between two samples, so that no sample is at the edge of the selection.
    for table in ["cpu", "system", "disk", "netdev", "filesystem"] {
        replace(&data, table, &["1000 AS interval_ns"]);
    }
    assert_eq!(assert_reports(&run).len(), times.len() - without.len());

    // Samples 3 to 6, of which the first and the last have no CPU time.
    let between = |number: usize| -> String {
        let middle = i64::midpoint(at(number), at(number + 1));
        data.value(&format!(
            "SELECT strftime(make_timestamp({middle}), '%Y-%m-%dT%H:%M:%S.%fZ')"
        ))
    };
    let disks: f64 = data.value(&format!(
        "SELECT count(*) FROM disk WHERE NOT partition AND kind IS DISTINCT FROM 'virtual' AND epoch_us(ts) = {}",
        at(4)
    ));
    let selected = reports(&run, &["--from", &between(2), "--to", &between(6)]);
    let written = selected
        .iter()
        .map(|report| report["disk_io_write_mb"].as_f64());
    let written: Vec<_> = written.collect();
    assert_eq!(written, [Some(2.0 * disks), Some(4.0 * disks)]);
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("written")).expect("JSON")
}

#[test]
fn parser_of_pytyche_finds_the_same_summary() {
    let finished = gpu_run([80, 40]);
    let data = finished.dataset();
    let directory = TempDir::new().expect("a directory");
    let output = directory.path().join("pytyche");
    let (code, stderr) = export(&["pytyche", text(data.path()), "-o", text(&output)]);
    assert_eq!(code, 0, "{stderr}");
    let parsed = python("pytyche.py", &[text(&output)]);
    let summary = json(&output.join("resource_summary.json"));
    for (key, value) in summary.as_object().expect("an object") {
        let found = parsed[key].as_f64().expect(key);
        let difference = (found - value.as_f64().expect(key)).abs();
        assert!(difference <= 0.1, "{key}: {found}, not {value}");
    }
    let known = [
        "peak_vram_mb",
        "gpu_util_mean_pct",
        "gpu_util_max_pct",
        "power_watts_mean",
        "mem_util_max_pct",
    ];
    let known = known.map(|key| summary[key].as_f64());
    assert_eq!(
        known,
        [
            Some(2048.0),
            Some(60.0),
            Some(80.0),
            Some(200.0),
            Some(30.0)
        ]
    );
}

#[test]
fn log_of_pytyche_has_the_marks_in_order() {
    const MARKS: &str = "\
        \"$PROFILER\" mark start fit --attr epoch=3; sleep 0.2; \"$PROFILER\" mark end fit; \
        \"$PROFILER\" mark event checkpoint --attr ts=mine; \"$PROFILER\" mark phase compile 3.25; \
        \"$PROFILER\" mark gauge jax_peak_bytes 10485760 --unit bytes; sleep 0.2";
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], MARKS);
    let output = directory.path().join("pytyche");
    assert_eq!(export(&["pytyche", &run, "-o", text(&output)]).0, 0);
    let log = fs::read_to_string(output.join("run_log.jsonl")).expect("written");
    let entries = log.lines().map(serde_json::from_str::<serde_json::Value>);
    let entries: Vec<_> = entries.map(|entry| entry.expect("JSON")).collect();
    let types: Vec<_> = entries.iter().map(|entry| entry["type"].as_str()).collect();
    assert_eq!(types, ["phase", "event", "phase", "gauge"].map(Some));
    assert_eq!(
        (&entries[0]["name"], &entries[0]["epoch"]),
        (&"fit".into(), &3.into())
    );
    let seconds = entries[0]["seconds"].as_f64().expect("a number");
    assert!((0.2..2.0).contains(&seconds), "{seconds}");
    assert_eq!(
        (&entries[1]["event"], &entries[1]["data"]["ts"]),
        (&"checkpoint".into(), &"mine".into())
    );
    assert_eq!(entries[2]["seconds"], 3.25);
    assert_eq!(entries[3]["value"], 10_485_760.0);
    let times: Vec<_> = entries.iter().map(|entry| entry["ts"].as_str()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let summary = json(&output.join("resource_summary.json"));
    assert_eq!(summary["jax_peak_bytes_mb"], 10.0);
}

/// `docs/switching/pytyche.py`, and the query that users of pytyche have for its log.
#[test]
fn monitor_of_pytyche_runs() {
    let directory = TempDir::new().expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(setting("PROFILER_TEST_PYTHON"))
        .arg(root.join("docs/switching/pytyche.py"))
        .arg("profiles")
        .env("PROFILER", setting("PROFILER_BIN"))
        .env("PYTHONPATH", root.join("python/src"))
        .current_dir(directory.path())
        .output()
        .expect("python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let files = directory.path().join("files");
    let phases = Command::new("jq")
        .args(["-c", "select(.type==\"phase\") | [.name, .epoch]"])
        .arg(files.join("run_log.jsonl"))
        .output()
        .expect("it starts");
    let phases = String::from_utf8_lossy(&phases.stdout);
    assert_eq!(phases, "[\"fit\",0]\n[\"fit\",1]\n");
    let summary = json(&files.join("resource_summary.json"));
    assert_eq!(summary["jax_peak_bytes_mb"], 1024.0);
    // The summary has one decimal.
    let parsed = python("pytyche.py", &[text(&files)]);
    let [parsed, stored] = [&parsed, &summary].map(|of| of["cpu_usr_mean_pct"].as_f64());
    let difference = parsed.expect("a number") - stored.expect("a number");
    assert!(difference.abs() <= 0.1, "{parsed:?} {stored:?}");
}
