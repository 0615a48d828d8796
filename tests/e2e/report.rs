//! `profiler report`: one file that needs nothing, with escaped names; and verdicts about workloads of
//! known bottleneck.

use std::{fs, path::Path, process::Command};

use e2e::setting;
use serde_json::Value;
use tempfile::TempDir;

fn profiler(arguments: &[&str]) -> String {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(arguments)
        .output();
    let output = output.expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Records a script and returns the directory of the run.
fn record(directory: &Path, options: &[&str], script: &str) -> String {
    let status = Command::new(setting("PROFILER_BIN"))
        .args(["run", "-q", "-i", "100ms", "--run-id", "run", "--out"])
        .arg(directory)
        .args(options)
        .args(["--", "bash", "-c", script])
        .env("PROFILER", setting("PROFILER_BIN"))
        .current_dir(directory)
        .status();
    assert!(status.expect("it starts").code().is_some());
    directory.join("run").to_str().expect("UTF-8").to_owned()
}

/// Names of the findings, the first one first.
fn findings(options: &[&str], script: &str) -> Vec<String> {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), options, script);
    let document: Value =
        serde_json::from_str(&profiler(&["summary", "--json", &run])).expect("JSON");
    let findings = document["runs"][0]["findings"].as_array().expect("a list");
    let names = findings
        .iter()
        .map(|finding| finding["name"].as_str().expect("a name").to_owned());
    names.collect()
}

fn assert_bound_by(expected: &str, script: &str) {
    let found = findings(&[], script);
    assert_eq!(
        found.first().map(String::as_str),
        Some(expected),
        "{found:?}"
    );
}

/// Uses a CPU for the given CPU seconds.
const BURN: &str = "burn() { (ulimit -t $1; while :; do :; done) 2>/dev/null; }; ";

#[test]
fn compute() {
    assert_bound_by("compute", &format!("{BURN} burn 2"));
}

#[test]
fn run_queue() {
    let more = "for i in $(seq $((3 * $(nproc)))); do burn 1 & done; wait";
    assert_bound_by("run queue", &format!("{BURN} {more}"));
}

#[test]
fn storage() {
    let script = "dd if=/dev/zero of=file bs=1M count=200 2>/dev/null; sync
        for i in 1 2 3 4 5 6; do dd if=file of=/dev/null bs=64k iflag=direct 2>/dev/null; done";
    assert_bound_by("storage", script);
}

#[test]
fn process_creation() {
    let script = "end=$((SECONDS + 3)); while [ $SECONDS -lt $end ]; do /bin/true; done";
    assert_bound_by("process creation", script);
}

#[test]
fn imbalance() {
    let ranks = "for rank in $(seq 0 15); do
            SLURM_JOB_ID=77 SLURM_PROCID=$rank SLURM_STEP_ID=0 bash -c \
                'burn() { (ulimit -t $1; while :; do :; done) 2>/dev/null; }
                 if [ $SLURM_PROCID = 5 ]; then burn 3; else timeout 0.05 sh -c \"while :; do :; done\"; fi' &
        done; wait; true";
    assert_bound_by("imbalance", ranks);
}

#[test]
fn asleep() {
    assert_bound_by("asleep", "sleep 2");
}

#[test]
fn quiet_node_has_no_verdict() {
    let directory = TempDir::new().expect("a directory");
    // A cgroup without work, in which only a shell waits for a moment.
    let run = record(directory.path(), &["--source", "system"], "sleep 0.5");
    let document: Value =
        serde_json::from_str(&profiler(&["summary", "--json", &run])).expect("JSON");
    assert_eq!(document["runs"][0]["findings"], serde_json::json!([]));
    let html = profiler(&["report", "-o", "-", &run]);
    assert!(
        html.contains("Not known: no resource was used so much"),
        "{html}"
    );
}

#[test]
fn report_is_one_safe_file() {
    let directory = TempDir::new().expect("a directory");
    let run = record(
        directory.path(),
        &["--label", "title=<img src=x>"],
        "cp /bin/sleep '<script>alert(1)'
         \"$PROFILER\" mark start '<b>region'
         './<script>alert(1)' 0.4
         \"$PROFILER\" mark end '<b>region'",
    );
    let html = profiler(&["report", "-o", "-", &run]);
    // The only address is the name of an XML namespace.
    let text = html.replace("http://www.w3.org/2000/svg", "");
    for markup in [
        "<script>alert",
        "<img",
        "<b>region",
        "javascript:",
        "http:",
        "https:",
        " style=",
        " onload=",
    ] {
        assert!(!text.contains(markup), "{markup}");
    }
    for text in [
        "&lt;script&gt;alert(1)",
        "&lt;b&gt;region",
        "title=&lt;img src=x&gt;",
    ] {
        assert!(html.contains(text), "{text}");
    }
    let policy = html.split("Content-Security-Policy\" content=\"").nth(1);
    let policy = policy
        .and_then(|rest| rest.split('"').next())
        .expect("a policy");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    // The hashes are those of the style sheet and the script: another program computes them.
    for (directive, element) in [("style-src", "style"), ("script-src", "script")] {
        let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
        let content = html
            .split(&begin)
            .nth(1)
            .and_then(|rest| rest.split(&end).next());
        let file = directory.path().join(element);
        fs::write(&file, content.expect("the element")).expect("written");
        let hash = Command::new(setting("PROFILER_TEST_PYTHON"))
            .arg("-c")
            .arg(
                "import base64, hashlib, sys
print(base64.b64encode(hashlib.sha256(open(sys.argv[1], 'rb').read()).digest()).decode())",
            )
            .arg(&file)
            .output()
            .expect("it starts");
        let hash = String::from_utf8_lossy(&hash.stdout);
        let allowed = format!("{directive} 'sha256-{}'", hash.trim());
        assert!(
            !hash.trim().is_empty() && policy.contains(&allowed),
            "{allowed}: {policy}"
        );
    }
    for section in [
        "verdict",
        "facts",
        "time",
        "cpu",
        "memory",
        "processes",
        "regions",
        "quality",
    ] {
        assert!(
            html.contains(&format!("<section id=\"{section}\">")),
            "{section}"
        );
        assert!(html.contains(&format!("href=\"#{section}\"")), "{section}");
    }
    assert!(html.len() < 500_000, "{} bytes", html.len());
}

#[test]
fn redacted_report_has_no_command_lines() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], "sleep 0.4321; true");
    assert!(profiler(&["report", "-o", "-", &run]).contains("sleep 0.4321"));
    let html = profiler(&["report", "--redact", "-o", "-", &run]);
    assert!(html.contains("sleep") && !html.contains("0.4321"), "{html}");
    assert!(!html.contains("run: root"), "the user: {html}");
}

#[test]
fn values_over_time_equal_their_sql() {
    let directory = TempDir::new().expect("a directory");
    let run = record(
        directory.path(),
        &[],
        "head -c 100000000 /dev/zero | gzip >file; sleep 0.3",
    );
    let html = profiler(&["report", "-o", "-", &run]);
    let data = e2e::dataset::Dataset::new(run.into());
    let figure = html
        .split("<figure id=\"plot-memory\">")
        .nth(1)
        .expect("a plot");
    let sql = figure
        .split("<pre>")
        .nth(1)
        .and_then(|rest| rest.split("</pre>").next());
    let sql = sql
        .expect("SQL")
        .replace("&quot;", "\"")
        .replace("&#39;", "'");
    for name in ["node_memory", "peak_rss_bytes"] {
        let query = sql.split(";\n").find(|query| query.contains(name));
        let query = query.expect("a query");
        let max: f64 = data.value(&format!("SELECT max({name})::DOUBLE FROM ({query})"));
        let (mut size, mut unit) = (max / 1024.0, "KiB");
        for larger in ["MiB", "GiB"] {
            if size >= 1024.0 {
                (size, unit) = (size / 1024.0, larger);
            }
        }
        let shown = format!("max {size:.1} {unit}");
        assert!(figure.contains(&shown), "{shown}: {figure}");
    }
}
