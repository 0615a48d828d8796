//! `profiler report`: one file that needs nothing, with escaped names.

use std::{fs, path::Path, process::Command};

use e2e::setting;
use tempfile::TempDir;

pub fn profiler(arguments: &[&str]) -> String {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(arguments)
        .output();
    let output = output.expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Records a script and returns the directory of the run.
pub fn record(directory: &Path, options: &[&str], script: &str) -> String {
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
