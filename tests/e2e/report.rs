//! `profiler report`: one file that needs nothing, with escaped names.

use std::{fs, path::Path, process::Command};

use e2e::setting;
use serde_json::Value;
use tempfile::TempDir;

use crate::summary::{powered_run, replace};

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

/// Every value of every plot over time, recomputed by another program from the SQL beside the plot.
#[test]
fn plots_equal_their_sql() {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let script = "for rank in 0 1; do
            SLURM_JOB_ID=7 SLURM_PROCID=$rank bash -c 'head -c 200000000 /dev/zero | gzip >$0' file$rank &
        done
        dd if=/dev/zero of=direct bs=1M count=20 oflag=direct 2>/dev/null; wait; sync direct; sleep 0.3";
    for host in ["node1", "node2"] {
        record(directory.path(), &["--hostname", host], script);
    }
    let run = directory.path().join("run");
    let plots = [
        "thread-time",
        "node-cpu",
        "cpu-heat",
        "switches",
        "memory",
        "faults",
        "process-time",
        "storage",
        "block",
        "disk-write",
        "nodes-cpu",
        "ranks-cpu",
    ];
    assert_plots_equal_their_sql(run.to_str().expect("UTF-8"), &plots);
}

/// The same with simulated power meters and ports, and with mounts, which need a kernel that counts
/// them.
#[test]
fn plots_of_devices_equal_their_sql() {
    let (_powered, _directory, data) = powered_run();
    replace(&data, "file_io", &["'vfs' AS method", "'/made' AS mount"]);
    let plots = [
        "power",
        "target-power",
        "domain-energy",
        "adapter-tx",
        "mount-write",
    ];
    assert_plots_equal_their_sql(data.path().to_str().expect("UTF-8"), &plots);
}

/// All plots of a run, of which these must have values.
pub fn assert_plots_equal_their_sql(run: &str, plots: &[&str]) {
    let directory = TempDir::new().expect("a directory");
    let report = directory.path().join("report.html");
    let report = report.to_str().expect("UTF-8");
    profiler(&["report", "-o", report, run]);
    let compared = e2e::dataset::python("report_values.py", &[run, report]);
    let compared: Vec<(String, String, usize, f64)> =
        serde_json::from_value(compared).expect("comparisons");
    for (plot, line, _, difference) in &compared {
        assert!(*difference < 1e-3, "{plot}, {line}: {difference}");
    }
    for plot in plots {
        let of_plot = compared.iter().filter(|(name, ..)| name == plot);
        let values: usize = of_plot.map(|(_, _, values, _)| values).sum();
        assert!(values > 2, "{plot}: {compared:?}");
    }
}

/// Runs Python with a program and arguments, and returns what it prints.
fn python(program: &str, arguments: &[&Path]) -> String {
    let output = Command::new(setting("PROFILER_TEST_PYTHON"))
        .args(["-c", program])
        .args(arguments)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn names(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).expect("a directory");
    let name = |file: std::io::Result<fs::DirEntry>| file.expect("a file").file_name();
    let mut names: Vec<_> = files
        .map(|file| name(file).into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

#[test]
fn plots_are_files_for_papers() {
    let directory = TempDir::new().expect("a directory");
    let run = record(
        directory.path(),
        &[],
        "head -c 100000000 /dev/zero | gzip >file",
    );
    let (svg, png) = (directory.path().join("svg"), directory.path().join("png"));
    let [svg_option, png_option] = [&svg, &png].map(|path| path.to_str().expect("UTF-8"));
    let md = directory.path().join("report.md");
    let arguments = [
        "report",
        &run,
        "--svg",
        svg_option,
        "--png",
        png_option,
        "--md",
        md.to_str().expect("UTF-8"),
        "--width",
        "85",
        "--font-size",
        "6",
        "--dpi",
        "300",
    ];
    profiler(&arguments);
    assert!(!directory.path().join("report.html").exists());
    let files = names(&svg);
    let pictures = names(&png);
    assert!(files.contains(&"thread-time.svg".to_owned()), "{files:?}");
    assert_eq!(files.len(), pictures.len());
    let text = fs::read_to_string(&md).expect("Markdown");
    for file in &files {
        assert!(text.contains(&format!("](<svg/{file}>)")), "{file}: {text}");
    }
    let facts = python(
        "import struct, sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1] + '/thread-time.svg').getroot()
text = open(sys.argv[1] + '/thread-time.svg').read()
data = open(sys.argv[2] + '/thread-time.png', 'rb').read()
width, = struct.unpack('>I', data[16:20])
at = data.index(b'pHYs') + 4
per_metre, = struct.unpack('>I', data[at:at + 4])
print(float(root.get('width')), 'var(' in text, 'font-size: 8.00px' in text, width, per_metre)",
        &[&svg, &png],
    );
    // 85 mm are 321.3 CSS pixels and 1004 of 300 per inch; 6 points are 8 CSS pixels.
    assert_eq!(facts, "321.3 False True 1004 11811");
}

#[test]
fn one_plot_is_selected_by_name() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], "sleep 0.3");
    let out = directory.path().join("plots");
    let out = out.to_str().expect("UTF-8");
    profiler(&[
        "report",
        &run,
        "--svg",
        out,
        "--plot",
        "node-cpu",
        "--no-title",
    ]);
    assert_eq!(names(Path::new(out)), ["node-cpu.svg"]);
    let svg = fs::read_to_string(Path::new(out).join("node-cpu.svg")).expect("the file");
    assert!(!svg.contains("class=\"title\""), "{svg}");
    // Options of files without files would have no effect.
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["report", &run, "--plot", "node-cpu"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["report", &run, "--svg", out, "--plot", "no-such"])
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("no-such") && stderr.contains("node-cpu"),
        "{stderr}"
    );
}

#[test]
fn pdf_without_a_browser_says_what_to_do() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], "sleep 0.2");
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["report", &run, "--pdf", "report.pdf"])
        .env("PATH", directory.path())
        .current_dir(directory.path())
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(
        stderr.contains("Chromium") && stderr.contains("print it"),
        "{stderr}"
    );
}

#[test]
fn several_runs_are_one_file() {
    let directory = TempDir::new().expect("a directory");
    let runs = ["a", "b"].map(|name| {
        let directory = directory.path().join(name);
        fs::create_dir(&directory).expect("a directory");
        record(&directory, &[], "sleep 0.3")
    });
    let html = profiler(&["report", "-o", "-", &runs[0], &runs[1]]);
    assert_eq!(html.matches("<article ").count(), 2);
    let mut ids: Vec<&str> = html
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "{ids:?}");
    for id in ["run1-verdict", "run2-verdict", "run2-plot-node-cpu"] {
        assert!(ids.contains(&id), "{ids:?}");
    }
    assert!(html.contains("href=\"#run2-verdict\""));
    // Both have the id "run": no plot replaces another.
    let plots = directory.path().join("plots");
    let option = plots.to_str().expect("UTF-8");
    profiler(&[
        "report", "--svg", option, "--plot", "node-cpu", &runs[0], &runs[1],
    ]);
    assert_eq!(names(&plots), ["run1", "run2"]);
}

#[test]
fn selected_values_equal_the_tables() {
    let directory = TempDir::new().expect("a directory");
    let script = "\"$PROFILER\" mark start work; head -c 900000000 /dev/zero | gzip >file
        \"$PROFILER\" mark end work; sleep 0.2";
    let run = record(directory.path(), &[], script);
    let html = profiler(&["report", "-o", "-", &run]);
    let after = |text: &str, begin: &str, end: &str| {
        let rest = text.split(begin).nth(1).expect("the beginning");
        rest.split(end).next().expect("the end").to_owned()
    };
    let seconds: f64 = after(&html, "data-seconds=\"", "\"")
        .parse()
        .expect("a number");
    let subjects = after(&html, "class=\"subjects\">", "</script>");
    let subjects: Value = serde_json::from_str(&subjects).expect("JSON");
    let data = e2e::dataset::Dataset::new(run.into());
    let (pid, user): (u32, f64) = data.row(
        "SELECT pid, sum(u.user_ns)::DOUBLE / 1e9 FROM usage u JOIN process USING (pid, start_ts) \
         WHERE comm = 'gzip' AND tid IS NULL GROUP BY pid",
    );
    let all = subjects.as_object().expect("an object");
    let gzip = all
        .iter()
        .find(|(name, _)| name.starts_with("process ") && name.contains(&format!(" {pid} ")));
    let (name, gzip) = gzip.expect("the process");
    let values = gzip["figures"]["user_s"].as_array().expect("values");
    let sum: f64 = values.iter().filter_map(Value::as_f64).sum();
    let shown = sum * seconds / values.len() as f64;
    // Intervals in which it started and ended have the mean of the time that it lived.
    let step = seconds / values.len() as f64;
    let most = values.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    assert!(
        shown > 0.98 * user && shown < 1.02 * user + 2.0 * step * most,
        "{shown} s, not {user} s"
    );
    assert!(
        html.contains(&format!("<tr data-subject=\"{name}\">")),
        "{name}"
    );
    // The region covers the same part of the run.
    let (begin, end): (f64, f64) = data.row(
        "SELECT epoch_us(region_start_ts)::DOUBLE, epoch_us(region_end_ts)::DOUBLE FROM region",
    );
    let times = &subjects["region work"]["times"][0];
    let length = times[1].as_f64().expect("a number") - times[0].as_f64().expect("a number");
    let expected = (end - begin) / 1e6;
    assert!(
        (length * seconds - expected).abs() < 0.01,
        "{times} of {seconds} s: {expected} s"
    );
    // Once in each plot over time.
    let bands = html
        .matches("<title>work</title><rect class=\"band\"")
        .count();
    assert!(bands >= 5, "{bands}");
}

#[test]
fn latencies_over_time_equal_their_sql() {
    let directory = TempDir::new().expect("a directory");
    let script = "for i in 1 2 3 4; do head -c 60000000 /dev/zero | gzip >file & done; wait";
    let run = record(directory.path(), &[], script);
    let html = profiler(&["report", "-o", "-", &run]);
    let figure = html
        .split("<figure id=\"plot-latency-runqueue\">")
        .nth(1)
        .expect("a plot");
    let part = |begin: &str, end: &str| {
        let rest = figure.split(begin).nth(1).expect("the beginning");
        rest.split(end).next().expect("the end").to_owned()
    };
    let data: Value = serde_json::from_str(&part("class=\"data\">", "</script>")).expect("JSON");
    let seconds: f64 = html
        .split("data-seconds=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next()?.parse().ok())
        .expect("a number");
    let mut drawn = 0.0;
    for row in data["lines"].as_array().expect("rows") {
        let values = row[1].as_array().expect("values");
        let sum: f64 = values.iter().filter_map(Value::as_f64).sum();
        drawn += sum * seconds / values.len() as f64;
    }
    let sql = part("<pre>", "</pre>")
        .replace("&#39;", "'")
        .replace("&quot;", "\"");
    let dataset = e2e::dataset::Dataset::new(run.into());
    let counted: f64 = dataset.value(&format!("SELECT sum(count)::DOUBLE FROM ({sql})"));
    assert!(counted > 100.0, "{counted}");
    assert!(
        (drawn - counted).abs() < 0.02 * counted,
        "{drawn}, not {counted}"
    );
}

#[test]
fn plots_of_perfmon_have_its_names_and_the_values_of_the_tables() {
    let directory = TempDir::new().expect("a directory");
    let script = "head -c 300000000 /dev/zero | gzip >file; sleep 0.3";
    let run = record(directory.path(), &[], script);
    let out = directory.path().join("plots");
    let option = out.to_str().expect("UTF-8");
    profiler(&["report", &run, "--like", "perfmon", "--svg", option]);
    let found = names(&out);
    for stem in [
        "Average_CPU_Load_all_nodes",
        "CPU_Load_per_node",
        "Average_Memory_all_nodes",
        "Memory_per_node",
        "Total_Output_Traffic_all_nodes",
        "Input_Traffic_per_node",
        "Total_Packets_Output_all_nodes",
        "Packets_Input_per_node",
    ] {
        assert!(found.contains(&format!("{stem}.svg")), "{stem}: {found:?}");
    }
    // There is no such device here.
    assert!(!found.iter().any(|name| name.contains("RAPL")), "{found:?}");
    let data = e2e::dataset::Dataset::new(run.clone().into());
    let (mean, max): (f64, f64) = data.row(
        "SELECT sum(target_cpu_percent * interval_ns) / sum(interval_ns) FILTER (target_cpu_percent IS NOT NULL), \
         max(target_cpu_percent) FROM timeline",
    );
    let svg = fs::read_to_string(out.join("CPU_Load_per_node.svg")).expect("the file");
    let shown = |name: &str| -> f64 {
        let rest = svg
            .split(&format!("{name} CPU Load/Node: "))
            .nth(1)
            .expect("a title");
        rest.split(' ')
            .next()
            .expect("a number")
            .parse()
            .expect("a number")
    };
    assert!(
        (shown("Average") - mean).abs() < 0.002 * mean + 0.001,
        "{mean}: {svg}"
    );
    assert!((shown("Max") - max).abs() < 0.001, "{max}: {svg}");
    let html = profiler(&["report", &run, "--like", "perfmon", "-o", "-"]);
    // CPU and network, for all nodes and for each; pages without plots are left out.
    assert_eq!(html.matches("<section class=\"page\">").count(), 4);
    assert!(
        html.contains("Job ID: run User: root # Nodes: 1 Date: 20"),
        "{html}"
    );
}
