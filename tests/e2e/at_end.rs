//! What `profiler run` writes after a run: `--export`, `--report`, `--like`.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use e2e::{
    dataset::{Dataset, python},
    runs::Profiler,
    setting,
};
use tempfile::TempDir;

use crate::timeline::powered;

/// Runs a command in a directory, as the run `one` in `out`.
fn run(directory: &Path, options: &[&str], command: &[&str]) -> Output {
    Command::new(setting("PROFILER_BIN"))
        .args(["run", "--run-id", "one", "--out", "out"])
        .args(options)
        .arg("--")
        .args(command)
        .current_dir(directory)
        .env_remove("MLFLOW_TRACKING_URI")
        .output()
        .expect("it starts")
}

fn messages(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Names of all files below a directory, sorted.
pub fn files(directory: &Path) -> Vec<String> {
    fn add(directory: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                add(&path, files);
            } else {
                files.push(path);
            }
        }
    }
    let mut found = Vec::new();
    add(directory, &mut found);
    let names = found.iter().map(|path| {
        let name = path.strip_prefix(directory).expect("below it");
        name.to_str().expect("UTF-8").to_owned()
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn exports_and_report_are_of_the_whole_run() {
    let directory = TempDir::new().expect("a directory");
    let work = "head -c 20M /dev/zero | sha256sum; sleep 0.3; exit 7";
    let options = ["-i", "100ms", "--export", "csv,perfpy,prov,csv"];
    let report = ["--report", "report.html"];
    let output = run(
        directory.path(),
        &[options, [report[0], report[1], "--label", "a=b"]].concat(),
        &["sh", "-c", work],
    );
    let text = messages(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    let data = Dataset::new(directory.path().join("out/one"));
    let exports = data.path().join("exports");
    let names = files(&exports);
    let is_table = |name: &&String| name.starts_with("csv/");
    let tables = names.iter().filter(is_table).count();
    let others: Vec<_> = names.iter().filter(|name| !is_table(name)).collect();
    assert_eq!(
        others,
        ["perfpy/nodes.json", "perfpy/perf.json", "prov.json"]
    );
    assert!(
        text.contains(&format!("{tables} files in out/one/exports/csv/\n")),
        "{text}"
    );
    assert!(text.ends_with("report.html\n"), "{text}");
    for table in ["usage", "process", "run", "timeline"] {
        let csv = fs::read_to_string(exports.join(format!("csv/{table}.csv"))).expect(table);
        let rows: usize = data.value(&format!("SELECT count(*) FROM {table}"));
        // A header, and no line breaks in fields.
        assert_eq!(csv.lines().count(), rows + 1, "{table}");
    }
    // The run has ended in them, too.
    let csv = fs::read_to_string(exports.join("csv/run.csv")).expect("written");
    assert!(csv.contains("complete"), "{csv}");
    let html = fs::read_to_string(directory.path().join("report.html")).expect("written");
    assert!(
        html.contains("exit code 7"),
        "the report of a run that goes on"
    );
    let verify = Command::new(setting("PROFILER_BIN"))
        .arg("verify")
        .arg(data.path())
        .output()
        .expect("it starts");
    let verified = String::from_utf8_lossy(&verify.stdout);
    assert!(
        verified.ends_with("all is well\n") && !verified.contains("not of"),
        "{verified}"
    );

    // A run that is continued has its files again.
    let before = fs::read_to_string(exports.join("perfpy/perf.json")).expect("written");
    let output = run(
        directory.path(),
        &["-q", "-i", "100ms", "--export", "perfpy"],
        &["sleep", "0.3"],
    );
    assert_eq!(
        (output.status.code(), messages(&output)),
        (Some(0), String::new())
    );
    let after = fs::read_to_string(exports.join("perfpy/perf.json")).expect("written");
    assert!(after.len() > before.len(), "{after}");
}

/// Two nodes of one run. The first to end leaves the files to the other.
#[test]
fn last_node_writes_the_files() {
    let directory = TempDir::new().expect("a directory");
    let options = ["--export", "perfpy"];
    let out = directory.path().join("out");
    let first = Profiler::writing_to(&out)
        .args(["--run-id", "one", "--hostname", "node1", "-i", "100ms"])
        .args(options)
        .args(["--node"])
        .start();
    let second = run(
        directory.path(),
        &["--hostname", "node2", "-i", "100ms", options[0], options[1]],
        &["sleep", "0.2"],
    );
    let text = messages(&second);
    assert_eq!(second.status.code(), Some(0), "{text}");
    assert!(
        text.ends_with("node1 is still being profiled: its profiler writes exports and report\n"),
        "{text}"
    );
    let exports = out.join("one/exports");
    assert!(!exports.exists());
    let _finished = first.interrupt();
    let nodes = fs::read_to_string(exports.join("perfpy/nodes.json")).expect("written");
    let nodes: serde_json::Value = serde_json::from_str(&nodes).expect("JSON");
    assert_eq!(nodes, serde_json::json!({"0": "node1", "1": "node2"}));
}

#[test]
fn one_failure_leaves_the_other_files() {
    let directory = TempDir::new().expect("a directory");
    for (command, code) in [("true", 5), ("false", 1)] {
        let output = Command::new(setting("PROFILER_BIN"))
            .args(["run", "-q", "--out", "out", "--run-id", command])
            .args(["--export", "mlflow,prov", "--", command])
            .env("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
            .current_dir(directory.path())
            .output()
            .expect("it starts");
        let text = messages(&output);
        assert_eq!(
            (output.status.code(), text.lines().count()),
            (Some(code), 1),
            "{text}"
        );
        assert!(text.contains("Connection refused"), "{text}");
        let exports = directory.path().join("out").join(command).join("exports");
        assert_eq!(files(&exports), ["prov.json"]);
    }
}

/// Before the command starts.
#[test]
fn files_that_cannot_be_written_are_refused() {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("mine.html"), "mine").expect("written");
    for (options, code, why) in [
        (["--report", "none/report.html"], 5, "no such directory"),
        (["--report", "mine.html"], 5, "is not a report"),
        (["--report", "report.txt"], 2, ".html, .pdf or .md"),
        (["--export", "mlflow"], 2, "MLFLOW_TRACKING_URI"),
        (["--export", "xls"], 2, "chrome-trace"),
    ] {
        let output = run(directory.path(), &options, &["touch", "started"]);
        let text = messages(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(why), "{text}");
    }
    assert_eq!(files(directory.path()), ["mine.html"]);
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["run", "--node", "--split-by", "job", "--export", "csv"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(messages(&output).contains("omit --split-by"));
}

/// A run of root by `sudo` belongs to the user, with all its files.
#[test]
fn files_belong_to_the_user_of_sudo() {
    let directory = TempDir::new().expect("a directory");
    let user = 65534;
    std::os::unix::fs::chown(directory.path(), Some(user), Some(user)).expect("root");
    let output = Command::new(setting("PROFILER_BIN"))
        .args([
            "run", "-q", "--out", "out", "--run-id", "one", "--export", "csv,prov",
        ])
        .args(["--", "true"])
        .env("SUDO_UID", user.to_string())
        .env("SUDO_GID", user.to_string())
        .current_dir(directory.path())
        .output()
        .expect("it starts");
    assert_eq!(
        (output.status.code(), messages(&output)),
        (Some(0), String::new())
    );
    let exports = directory.path().join("out/one/exports");
    let names = files(&exports);
    assert!(names.len() > 10, "{names:?}");
    for name in names.iter().map(String::as_str).chain(["", "csv"]) {
        let found = fs::metadata(exports.join(name)).expect(name);
        assert_eq!((found.uid(), found.gid()), (user, user), "{name}");
    }
}

#[test]
fn like_perfmon() {
    let powered = powered();
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let work = "head -c 50M /dev/zero | sha256sum; sleep 0.3";
    let options = [
        "--like",
        "perfmon",
        "-i",
        "100ms",
        "--sysfs",
        powered.path(),
    ];
    let output = run(directory.path(), &options, &["sh", "-c", work]);
    let text = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let data = Dataset::new(directory.path().join("out/one"));
    let exported = data.path().join("exports/perfmon");
    let found = python("perfmon.py", &[exported.to_str().expect("UTF-8")]);
    let host: String = data.value("SELECT DISTINCT host FROM timeline");
    let events = &found["perf_metrics"]["values"][&host];
    let migrations: f64 = data.value(
        "SELECT sum(\"count\") FROM perf_event WHERE event = 'cpu-migrations' AND tid IS NULL",
    );
    let counts = events["software_events.cpu-migrations"].as_array();
    let sum: f64 = counts
        .expect("a list")
        .iter()
        .filter_map(serde_json::Value::as_f64)
        .sum();
    assert!((sum - migrations).abs() < 0.5, "{sum} {migrations}");
    let names = files(&exported);
    for name in [
        "job-report-one.html",
        "metrics/cpu_metrics.json",
        "cpu_metrics.csv",
        "plots/Average_CPU_Load_all_nodes.png",
        "plots/RAPL_Package_Power_per_node.png",
        "plots/Total_RAPL_DRAM_Power_all_nodes.png",
    ] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }

    // Its interval, unless another is given; the batch job, unless there is another target.
    let config = |options: &[&str]| {
        let directory = TempDir::new().expect("a directory");
        let output = run(directory.path(), options, &["true"]);
        assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
        let data = Dataset::new(directory.path().join("out/one"));
        data.manifest()["config"]["interval_ns"].as_u64()
    };
    assert_eq!(config(&["--like", "perfmon"]), Some(30_000_000_000));
    assert_eq!(config(&[]), Some(1_000_000_000));
    let outside = Command::new(setting("PROFILER_BIN"))
        .args(["run", "--like", "perfmon"])
        .output()
        .expect("it starts");
    assert_eq!(outside.status.code(), Some(2));
    assert!(messages(&outside).contains("not inside a batch job"));
}
