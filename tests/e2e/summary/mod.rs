//! `profiler summary`: each figure equals the result of its SQL in DuckDB, and known counts.

mod node_and_gpus;

use std::{collections::BTreeSet, path::Path, process::Command};

use e2e::{
    dataset::Dataset,
    runs::{Profiler, wait_until},
    setting,
    sysfs::Rising,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub use self::node_and_gpus::gpu_run;
use crate::waits_for_cpus::{run_beside_a_loop, run_with_a_quota};

fn profiler(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(arguments)
        .output();
    let output = output.expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn summary(arguments: &[&str]) -> String {
    let (code, stdout, stderr) = profiler(&[&["summary"], arguments].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    stdout
}

fn document(arguments: &[&str]) -> Value {
    let text = summary(&[&["--json"], arguments].concat());
    serde_json::from_str(&text).expect("JSON")
}

/// Runs a script as the node `host` of the run `name`.
fn record(directory: &Path, name: &str, host: &str, label: &str, script: &str) {
    let status = Command::new(setting("PROFILER_BIN"))
        .args([
            "run",
            "-q",
            "-i",
            "100ms",
            "--run-id",
            name,
            "--hostname",
            host,
        ])
        .args(["--label", label, "--out"])
        .arg(directory)
        .args(["--", "sh", "-c", script])
        .env("PROFILER", setting("PROFILER_BIN"))
        .status();
    assert!(status.expect("it starts").code().is_some());
}

const SCRIPT: &str = r#"
"$PROFILER" mark start compress
head -c 5000000 /dev/zero | gzip | wc -c >/dev/null
"$PROFILER" mark end compress
"$PROFILER" mark start compress
sleep 0.2
"$PROFILER" mark end compress
"$PROFILER" mark gauge jax_peak_bytes 10485760
head -c 3000000 /dev/zero > "$0"; sync "$0"
dd if="$0" of=/dev/null bs=1M iflag=direct 2>/dev/null
/bin/false
sh -c 'kill -9 $$'
sleep 0.3
exit 3"#;

fn two_hosts() -> (TempDir, Dataset) {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    let script = SCRIPT.replace("\"$0\"", file.to_str().expect("UTF-8"));
    for host in ["node1", "node2"] {
        record(directory.path(), "both", host, "size=large", &script);
    }
    let data = Dataset::new(directory.path().join("both"));
    (directory, data)
}

/// A figure of a document, with the name of its group.
type Found = (String, String, Option<f64>);

/// The values of a list of figures, by the SQL that the document names.
fn recomputed(data: &Dataset, declared: &Value, key: Option<&str>) -> Vec<Found> {
    let declared = declared.as_object().expect("figures");
    let queries: Vec<_> = declared
        .iter()
        .map(|(name, figure)| {
            let sql = figure["sql"].as_str().expect("SQL");
            let key = key.unwrap_or("''");
            format!("SELECT '{name}', {key}, {name}::DOUBLE FROM ({sql})")
        })
        .collect();
    data.rows(&queries.join(" UNION ALL "))
}

/// Asserts that the figures in `found` are those recomputed for the group `key`.
fn assert_same(found: &Value, key: &str, recomputed: &[Found]) -> usize {
    let mut known = 0;
    for (name, _, expected) in recomputed.iter().filter(|(_, of, _)| of == key) {
        let value = found[name].as_f64();
        match (value, expected) {
            (None, None) => {}
            (Some(value), Some(expected)) => {
                known += 1;
                let error = (value - expected).abs();
                assert!(
                    error <= 1e-9 * expected.abs(),
                    "{key} {name}: {value} instead of {expected}"
                );
            }
            _ => panic!("{key} {name}: {value:?} instead of {expected:?}"),
        }
    }
    known
}

#[test]
fn figures_equal_their_sql() {
    let (_directory, data) = two_hosts();
    let document = document(&[data.path().to_str().expect("UTF-8")]);
    let (run, declared) = (&document["runs"][0], &document["figures"]);
    let target = recomputed(&data, &declared["target"], None);
    assert!(assert_same(&run["total"], "", &target) > 15);
    let nodes = recomputed(&data, &declared["node"], Some("host"));
    let resources = recomputed(&data, &declared["pytyche"], Some("host"));
    for node in run["nodes"].as_array().expect("nodes") {
        let host = node["host"].as_str().expect("a host");
        assert!(assert_same(node, host, &nodes) > 18);
        let rounded = node["compat"]["pytyche"]["cpu_idle_mean_pct"].as_f64();
        let exact = resources.iter().find_map(|(name, of, value)| {
            (name == "cpu_idle_mean_pct" && of == host).then_some(*value)
        });
        let difference = rounded.zip(exact.flatten()).map(|(a, b)| (a - b).abs());
        assert!(difference.expect("a value") <= 0.05 + 1e-9);
        assert_eq!(node["compat"]["pytyche"]["jax_peak_bytes_mb"], 10.0);
        // No GPU: not 0.
        assert_eq!(node["compat"]["pytyche"]["gpu_util_mean_pct"], Value::Null);
    }
    let regions = recomputed(&data, &declared["region"], Some("name"));
    assert!(assert_same(&run["regions"][0], "compress", &regions) > 8);
    assert_eq!(run["regions"][0]["count"], 4.0);
}

/// The groups of declared figures: name in `figures`, and the column that divides it.
const GROUPS: [(&str, Option<&str>); 13] = [
    ("target", None),
    ("node", Some("host")),
    ("perfpy", Some("host")),
    ("pytyche", Some("host")),
    ("gpu", Some("host || ' ' || bdf")),
    ("mount", Some("mount")),
    ("neighbour", Some("comm")),
    ("rank", Some("task_rank::VARCHAR")),
    ("disk", Some("device")),
    ("latency", Some("kind")),
    ("syscall", Some("syscall")),
    ("thread", Some("host || ' ' || pid || ' ' || tid")),
    ("region", Some("name")),
];

/// The members of a list of a run, with their names.
fn listed<'a>(run: &'a Value, list: &str, key: &str) -> Vec<(String, &'a Value)> {
    let all = run[list].as_array().expect("a list").iter();
    all.map(|of| (of[key].as_str().expect("a text").to_owned(), of))
        .collect()
}

/// Figures of a document that are not null: group and name. Asserts that each is the result of its
/// SQL, and that it is null if that is null.
fn assert_recomputed(data: &Dataset) -> BTreeSet<(String, String)> {
    let path = data.path().to_str().expect("UTF-8");
    let document = document(&[path]);
    let (run, declared) = (&document["runs"][0], &document["figures"]);
    assert_eq!(run["problems"], serde_json::json!([]));
    let declared_groups = declared.as_object().expect("groups").keys();
    let known_groups: BTreeSet<_> = GROUPS
        .iter()
        .map(|(group, _)| (*group).to_owned())
        .collect();
    assert_eq!(
        declared_groups.cloned().collect::<BTreeSet<_>>(),
        known_groups
    );
    let mut known = BTreeSet::new();
    for (group, key) in GROUPS {
        let text = |value: &Value, name: &str| value[name].as_str().expect("a text").to_owned();
        let nodes = run["nodes"].as_array().expect("nodes");
        let found: Vec<(String, &Value)> = match group {
            "target" => vec![(String::new(), &run["total"])],
            "node" => nodes
                .iter()
                .map(|node| (text(node, "host"), node))
                .collect(),
            "perfpy" | "pytyche" => nodes
                .iter()
                .map(|node| (text(node, "host"), &node["compat"][group]))
                .collect(),
            "gpu" => {
                let mut gpus = Vec::new();
                for node in nodes {
                    for gpu in node["gpus"].as_array().expect("GPUs") {
                        let (host, bdf) = (text(node, "host"), text(gpu, "bdf"));
                        gpus.push((format!("{host} {bdf}"), gpu));
                    }
                }
                gpus
            }
            "mount" => match &run["top_mount"] {
                Value::Null => Vec::new(),
                mount => vec![(text(mount, "mount"), mount)],
            },
            "rank" => {
                let ranks = run["ranks"].as_array().expect("ranks").iter();
                // Others have no marks.
                let marked = ranks.filter(|rank| !rank["mpi_s"].is_null());
                marked.map(|of| (of["rank"].to_string(), of)).collect()
            }
            "thread" => {
                let threads = run["threads"].as_array().expect("threads").iter();
                let name = |of: &Value| format!("{} {} {}", text(of, "host"), of["pid"], of["tid"]);
                threads.map(|of| (name(of), of)).collect()
            }
            "neighbour" => listed(run, "neighbours", "comm"),
            "disk" => listed(run, "disks", "device"),
            "latency" => listed(run, "latencies", "kind"),
            "syscall" => listed(run, "syscalls", "syscall"),
            "region" => listed(run, "regions", "name"),
            group => panic!("no group {group}"),
        };
        // Those of `ResourceSummary` have one digit after the point, or are absent.
        let margin = if group == "pytyche" { 0.05 } else { 0.0 };
        let sql = recomputed(data, &declared[group], key);
        for (key, found) in found {
            let mut count = 0;
            for (name, _, expected) in sql.iter().filter(|(_, of, _)| *of == key) {
                count += 1;
                match (found[name].as_f64(), expected) {
                    (None, None) => {}
                    (Some(value), Some(expected)) => {
                        let error = (value - expected).abs();
                        assert!(
                            error <= margin + 1e-9 * expected.abs().max(1.0),
                            "{key} {name}: {value} instead of {expected}"
                        );
                        known.insert((group.to_owned(), name.clone()));
                    }
                    (value, _) => panic!("{group} {key} {name}: {value:?} instead of {expected:?}"),
                }
            }
            assert!(count > 0, "no {group} {key} in {sql:?}");
        }
    }
    known
}

/// All declared figures: group and name.
fn declared(data: &Dataset) -> BTreeSet<(String, String)> {
    let document = document(&[data.path().to_str().expect("UTF-8")]);
    let groups = document["figures"].as_object().expect("groups").clone();
    let names = groups.into_iter().flat_map(|(group, figures)| {
        let figures = figures.as_object().expect("figures").clone();
        figures
            .into_iter()
            .map(move |(name, _)| (group.clone(), name))
    });
    names.collect()
}

/// A run with simulated power meters, ports and GPUs of AMD, system calls, and all that [`SCRIPT`]
/// does.
pub fn powered_run() -> (Rising, TempDir, Dataset) {
    let powered = crate::timeline::powered();
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = directory.path().join("file");
    let script = SCRIPT.replace("\"$0\"", file.to_str().expect("UTF-8"));
    let python = setting("PROFILER_TEST_PYTHON");
    let script = format!("{python} -c '{EXCHANGE}'\n{script}");
    let status = Command::new(setting("PROFILER_BIN"))
        .args(["run", "-q", "-i", "100ms", "--run-id", "run", "--sysfs"])
        .args([powered.path(), "--source", "+syscalls", "--out"])
        .arg(directory.path())
        .args(["--", "sh", "-c", &script])
        .env("PROFILER", setting("PROFILER_BIN"))
        .status();
    assert_eq!(status.expect("it starts").code(), Some(3));
    let data = Dataset::new(directory.path().join("run"));
    (powered, directory, data)
}

/// TCP within the host.
const EXCHANGE: &str = "import socket
a = socket.create_server((\"127.0.0.1\", 0)); b = socket.create_connection(a.getsockname()); c, _ = a.accept()
b.sendall(bytes(100000)); c.recv(100000, socket.MSG_WAITALL)";

/// Values that not every machine has: those of hardware counters, of all methods of counting file and
/// network I/O, of other hosts, and of GPUs whose driver reports more. Each expression replaces a
/// column of the table.
const MADE: [(&str, &[&str]); 6] = [
    (
        "latency",
        &["CASE kind WHEN 'block_read' THEN 'file_read' ELSE kind END AS kind"],
    ),
    (
        "process",
        &["1.5 AS quota_cpus", "hash(pid) % 1000 AS memory_limit"],
    ),
    (
        "timeline",
        &[
            "1e9 * hash(ts) / 2e19 AS target_flop_per_s",
            "2e9 * hash(ts) / 2e19 AS target_dp_flop_per_s",
            "3e9 * hash(ts) / 2e19 AS target_sp_flop_per_s",
            "4e9 * hash(ts) / 2e19 AS target_hp_flop_per_s",
            "5e9 * hash(ts) / 2e19 AS node_mem_bw_bytes_per_s",
            "hash(ts) % 1000000 AS target_cycles",
            "hash(ts) % 3000000 AS target_instructions",
            "hash(ts) % 70000 AS target_energy_cycle_share_uj",
        ],
    ),
    (
        "file_io",
        &[
            "'vfs' AS method",
            "'/made' AS mount",
            "hash(ts, pid) % 100 AS fsyncs",
        ],
    ),
    (
        "net_io",
        &[
            "'remote' AS scope",
            "hash(ts, pid) % 1000 AS tx_segments",
            "hash(ts, pid) % 30 AS retransmits",
        ],
    ),
    ("gpu", &["hash(ts, bdf) % 101 AS memory_utilization"]),
];

/// Replaces columns of the Parquet files of a table. Their types remain.
pub fn replace(data: &Dataset, table: &str, columns: &[&str]) {
    let typed = columns.iter().map(|column| {
        let (value, name) = column.rsplit_once(" AS ").expect("a name");
        format!("({value})::TYPE AS \"{name}\"")
    });
    let typed: Vec<_> = typed.collect();
    let directory = data.path().join(table);
    let mut files = data.files();
    files.retain(|file| file.starts_with(&directory));
    assert!(!files.is_empty(), "no {table}");
    for file in files {
        let file = file.to_str().expect("UTF-8");
        let source = format!("read_parquet('{file}', hive_partitioning = false)");
        let types: Vec<(String, String)> = data.rows(&format!(
            "SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {source})"
        ));
        let typed = typed.iter().map(|column| {
            let name = column.rsplit('"').nth(1);
            let of = types
                .iter()
                .find(|(column, _)| Some(column.as_str()) == name);
            let (_, of) = of.unwrap_or_else(|| panic!("no {name:?} in {table}"));
            column.replace("TYPE", of)
        });
        let typed: Vec<_> = typed.collect();
        let new = format!("{file}.new");
        let _: Vec<(u64,)> = data.rows(&format!(
            "COPY (SELECT * REPLACE ({}) FROM {source}) TO '{new}' (FORMAT parquet, COMPRESSION zstd)",
            typed.join(", ")
        ));
        std::fs::rename(new, file).expect("renamed");
    }
}

/// Every declared figure is recomputed from its SQL in a run in which it is not null: a run of two
/// nodes, one with simulated devices, and the same with values that this machine cannot have.
#[test]
fn every_figure_is_recomputed() {
    let (_directory, data) = two_hosts();
    let mut known = assert_recomputed(&data);
    let (_powered, _other, data) = powered_run();
    known.append(&mut assert_recomputed(&data));
    for expected in [
        ("target", "target_energy_j"),
        ("target", "energy_j"),
        ("target", "syscalls"),
        ("node", "package_energy_j"),
        ("node", "dram_energy_j"),
        ("node", "gpu_energy_j"),
        ("node", "fabric_tx_bytes"),
        ("gpu", "energy_j"),
        ("node", "gpu_utilization_mean_percent"),
        ("pytyche", "gpu_util_mean_pct"),
    ] {
        let expected = (expected.0.to_owned(), expected.1.to_owned());
        assert!(known.contains(&expected), "{expected:?} is null");
    }
    for (table, columns) in MADE {
        replace(&data, table, columns);
    }
    known.append(&mut assert_recomputed(&data));
    for record in [run_beside_a_loop, |directory: &TempDir| {
        run_with_a_quota(directory).0
    }] {
        let directory = TempDir::new().expect("a directory");
        let data = Dataset::new(record(&directory).into());
        known.append(&mut assert_recomputed(&data));
    }
    let (_directory, data) = crate::verdict::marked_ranks();
    known.append(&mut assert_recomputed(&data));
    let finished = gpu_run([80, 40]);
    let data = finished.dataset();
    replace(&data, "gpu_process", &["hash(ts) % 101 AS sm_utilization"]);
    known.append(&mut assert_recomputed(&data));
    let never: Vec<_> = declared(&data).difference(&known).cloned().collect();
    assert!(never.is_empty(), "null in all runs: {never:?}");
}

/// What is recorded only on request is shown if it is recorded.
#[test]
fn threads_system_calls_and_latencies_are_shown() {
    let shown = |options: &[&str]| {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let script = "dd if=/dev/zero of=file bs=1M count=4 oflag=direct 2>/dev/null; sleep 0.3";
        summary(&[&crate::report::record(directory.path(), options, script)])
    };
    let has = |text: &str, heading: &str| text.lines().any(|line| line.ends_with(heading));
    let plain = shown(&[]);
    assert!(
        has(&plain, "  operation") && has(&plain, "  write request of a disk"),
        "{plain}"
    );
    // Of O_DIRECT, too: nothing of it is dirtied.
    assert!(plain.contains(" 4.0 MiB written or dirtied"), "{plain}");
    assert!(
        !has(&plain, "  thread of") && !has(&plain, "  system call"),
        "{plain}"
    );
    let all = shown(&["--threads", "--source", "+syscalls"]);
    assert!(
        has(&all, "  thread of") && has(&all, "  system call"),
        "{all}"
    );
    assert!(all.contains("dd "), "{all}");
}

#[test]
fn summary_has_known_counts() {
    let (_directory, data) = two_hosts();
    let path = data.path().to_str().expect("UTF-8");
    let run = document(&[path])["runs"][0].clone();
    assert_eq!(run["run_id"], "both");
    assert_eq!(run["labels"]["size"], "large");
    assert_eq!(run["exit_code"], 3);
    assert_eq!(run["hosts"], 2);
    // `false` and the script itself, on both nodes.
    assert_eq!(run["total"]["failed_processes"], 4.0);
    assert_eq!(run["total"]["killed_processes"], 2.0);
    assert!(run["total"]["storage_write_bytes"].as_f64() >= Some(6_000_000.0));
    let text = summary(&[path]);
    for expected in [
        "both: root · 2 nodes · size=large",
        "complete, exit code 3",
        "4 failed, 2 killed by signals",
        "compress",
        "node2",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let losses = run["losses"].as_array().expect("a list");
    let missed_only = losses.iter().all(|loss| loss["what"] == "samples");
    assert!(missed_only, "{losses:?}");
    assert_eq!(text.contains("No losses."), losses.is_empty(), "{text}");
    assert!(text.lines().count() <= 40, "one screen: {text}");
    let markdown = summary(&["--md", path]);
    assert!(markdown.starts_with("# both: root"), "{markdown}");
    assert!(markdown.contains("| compress |"), "{markdown}");
}

#[test]
fn runs_are_added_up_by_label() {
    let directory = TempDir::new().expect("a directory");
    for (name, label) in [("a", "kind=x"), ("b", "kind=x"), ("c", "kind=y")] {
        record(
            directory.path(),
            name,
            "node",
            label,
            "head -c 1000000 /dev/zero >/dev/null",
        );
    }
    let paths = ["a", "b", "c"].map(|name| directory.path().join(name));
    let paths = paths.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let document = document(&[&["--by", "kind"][..], &paths].concat());
    let groups = document["runs"].as_array().expect("groups");
    let found: Vec<_> = groups
        .iter()
        .map(|group| {
            (
                group["kind"].as_str(),
                group["runs"].as_u64(),
                group["processes"].as_f64(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (Some("x"), Some(2), Some(4.0)),
            (Some("y"), Some(1), Some(2.0))
        ]
    );
    let text = summary(&[&["--by", "kind"][..], &paths].concat());
    assert!(text.starts_with("3 runs by kind"), "{text}");
}

#[test]
fn tags_appear_only_for_exceeded_thresholds() {
    let directory = TempDir::new().expect("a directory");
    record(directory.path(), "run", "node", "a=b", "sleep 0.3");
    let run = directory.path().join("run");
    let run = run.to_str().expect("UTF-8");
    let config = directory.path().join("profiler.toml");
    let tags = |text: &str| {
        std::fs::write(&config, text).expect("written");
        let config = config.to_str().expect("UTF-8");
        document(&["--config", config, run])["runs"][0]["nodes"][0]["tags"].clone()
    };
    assert_eq!(tags(""), serde_json::json!([]));
    let low = "interval = \"1s\"\n[report.thresholds]\nmemory_bytes = 1000\ncpu_seconds = 1e6\n";
    assert_eq!(tags(low), serde_json::json!(["high_memory"]));
    let config = config.to_str().expect("UTF-8");
    std::fs::write(config, "[report.thresholds]\nmemory = 1\n").expect("written");
    let (code, _, stderr) = profiler(&["summary", "--config", config, run]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("unknown setting `memory`; settings are "),
        "{stderr}"
    );
    // `run` ignores the table.
    std::fs::write(config, low).expect("written");
    let run = Profiler::new()
        .args(["--config", config])
        .command(&["true"])
        .finish();
    assert_eq!(run.code(), 0, "{}", run.stderr);
}

#[test]
fn unfinished_and_damaged_runs_are_summarized() {
    let running = Profiler::new()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", "sleep 0.2; sleep 600"])
        .start();
    let run = running.run_dir();
    let data = Dataset::new(run.clone());
    wait_until("all processes have rows", || {
        let rows = data.so_far("process");
        let pids: BTreeSet<_> = rows.iter().map(|row| row.u64("pid")).collect();
        pids.len() == 3
    });
    let path = run.to_str().expect("UTF-8");
    let text = summary(&[path]);
    assert!(text.contains("The run has not ended"), "{text}");
    let found = document(&[path])["runs"][0].clone();
    assert_eq!(found["total"]["processes"], 3.0);
    running.signal(Signal::KILL);
    drop(running);

    let part = run.join("usage").join("host=gone");
    std::fs::create_dir_all(&part).expect("a directory");
    std::fs::write(part.join("part-00000.parquet"), "no Parquet").expect("written");
    let text = summary(&[path]);
    assert!(
        text.contains("usage/host=gone/part-00000.parquet: "),
        "{text}"
    );

    let empty = TempDir::new().expect("a directory");
    let (code, _, stderr) = profiler(&["summary", empty.path().to_str().expect("UTF-8")]);
    assert_eq!(code, Some(3));
    assert!(stderr.contains("not the directory of a run"), "{stderr}");
}

#[test]
fn runs_of_older_versions_are_summarized() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/version-2/complete");
    let path = run.to_str().expect("UTF-8");
    let text = summary(&[path]);
    assert!(
        text.contains("The run has version 2 of the schema"),
        "{text}"
    );
    let found = document(&[path])["runs"][0].clone();
    assert!(found["total"]["processes"].as_f64() > Some(0.0), "{found}");
    assert!(found["total"]["cpu_s"].as_f64().is_some(), "{found}");
    let killed = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/version-2/killed");
    let text = summary(&[killed.to_str().expect("UTF-8")]);
    assert!(text.contains("The run has not ended"), "{text}");
}
