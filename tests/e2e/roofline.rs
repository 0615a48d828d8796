//! `profiler ceilings`, and the roofline of a report: its points are those of the SQL beside it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use e2e::{
    dataset::{Dataset, python},
    runs::ProcessGroup,
    setting,
};
use serde_json::Value;
use tempfile::TempDir;

const USAGE: i32 = 2;
const TARGET: i32 = 3;

fn profiler(arguments: &[&str]) -> Output {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(arguments)
        .output();
    output.expect("it starts")
}

fn html(arguments: &[&str]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = profiler(&[&["report", "-o", "-"], arguments].concat());
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("UTF-8")
}

/// A run with three regions: two at the same time with one name, and one that is open at the end.
fn record(directory: &Path) -> String {
    let script = "mark() { \"$PROFILER\" mark \"$@\"; }
        mark start solve --id a; sleep 0.25; mark start solve --id b; sleep 0.3
        mark end solve --id a; mark end solve --id b; sleep 0.3
        mark start '<io>'; sleep 0.4";
    let status = Command::new(setting("PROFILER_BIN"))
        .args(["run", "-q", "-i", "50ms", "--run-id", "run", "--out"])
        .arg(directory)
        .args(["--", "bash", "-c", script])
        .env("PROFILER", setting("PROFILER_BIN"))
        .status();
    assert!(status.expect("it starts").success());
    directory.join("run").to_str().expect("UTF-8").to_owned()
}

/// Values of counters, which this machine may not have. Every fifth is unknown.
const COUNTS: &str = "1e9 * (2 + epoch_us(ts) % 7) AS target_dp_flop_per_s, \
    CASE WHEN row_number() OVER (ORDER BY ts) % 5 = 0 THEN NULL ELSE 3e8 END AS target_sp_flop_per_s, \
    1e9 * (1 + epoch_us(ts) % 3) AS node_mem_bw_bytes_per_s";

/// Operations, bytes and seconds.
type Sums = (f64, f64, f64);

const SITE: &str = "
    flops = [
        { precision = 'double', name = 'peak', per_second = 5e10 },
        { precision = 'single', per_second = 1e11 },
    ]
    bandwidth = [{ level = 'DRAM', per_second = 2e10 }]";

/// Name, intensity and FLOP/s of the marks in a plot.
fn marks(figure: &str) -> Vec<(String, f64, f64)> {
    let marks = figure.split("data-name=\"").skip(1).map(|mark| {
        let value = |name: &str| {
            let rest = mark.split(&format!("data-{name}=\"")).nth(1).expect("it");
            let text = rest.split('"').next().expect("an end");
            text.parse().expect("a number")
        };
        let name = mark.split('"').next().expect("an end").to_owned();
        (name, value("intensity"), value("flops"))
    });
    marks.collect()
}

fn assert_near(found: f64, expected: f64, what: &str) {
    let off = (found - expected).abs();
    assert!(off <= 1e-9 * expected, "{what}: {found}, not {expected}");
}

#[test]
fn points_are_those_of_the_sql() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path());
    assert!(
        !html(&[&run]).contains("id=\"roofline\""),
        "nothing was counted"
    );
    assert_eq!(python("rewrite.py", &[&run, "timeline", COUNTS]), 1);
    let site = directory.path().join("site.toml");
    fs::write(&site, SITE).expect("written");
    let site = site.to_str().expect("UTF-8");
    let html = html(&["--ceilings", site, &run]);
    let section = html.split("<section id=\"roofline\">").nth(1);
    let section = section.expect("the section").split("</section>").next();
    let section = section.expect("its end");
    let sql = section.split("<pre>").nth(1).expect("SQL");
    let sql = sql.split("</pre>").next().expect("its end");
    let sql = sql
        .replace("&#39;", "'")
        .replace("&lt;", "<")
        .replace("&gt;", ">");
    let queries: Vec<&str> = sql.split(";\n").collect();
    let [samples, whole, nodes, regions] = queries[..] else {
        panic!("four queries: {sql}");
    };
    let data = Dataset::new(run.clone().into());
    let all: u64 = data.value("SELECT count(*) FROM timeline");
    let known: u64 = data.value(&format!("SELECT count(*) FROM ({samples})"));
    assert!(known > 5 && known < all, "{known} of {all} samples");
    assert!(
        section.contains(&format!("</svg> {known} samples <")),
        "{section}"
    );
    let marks = marks(section);
    let assert_mark = |name: &str, (flop, bytes, seconds): Sums| {
        let mark = marks.iter().find(|(found, ..)| found == name);
        let (_, intensity, flops) = mark.unwrap_or_else(|| panic!("{name}: {marks:?}"));
        assert_near(*intensity, flop / bytes, name);
        assert_near(*flops, flop / seconds, name);
    };
    let run_sums: Sums = data.row(whole);
    assert_mark("run", run_sums);
    let of_node: Vec<(String, f64, f64, f64)> = data.rows(nodes);
    assert_eq!(of_node.len(), 1);
    assert_eq!((of_node[0].1, of_node[0].3), (run_sums.0, run_sums.2));
    let of_regions: Vec<(String, f64, f64, f64)> = data.rows(regions);
    let names: Vec<_> = of_regions.iter().map(|region| region.0.as_str()).collect();
    assert_eq!(names, ["<io>", "solve"]);
    for (name, flop, bytes, seconds) in &of_regions {
        let lasted: f64 = data.value(&format!(
            "SELECT (epoch_ns(max(coalesce(region_end_ts, (SELECT max(ts) FROM timeline)))) \
             - epoch_ns(min(region_start_ts))) / 1e9 FROM region WHERE name = '{name}'"
        ));
        let name = name.replace('<', "&lt;").replace('>', "&gt;");
        assert_mark(&name, (*flop, *bytes, *seconds));
        // Time in two regions counts once. That of samples with unknown counts is left out.
        assert!(
            *seconds > 0.0 && *seconds <= lasted + 1e-6,
            "{name}: {seconds} of {lasted}"
        );
    }
    assert_eq!(marks.len(), 3);
    assert!(section.contains(&format!("file {site}")), "{section}");
    assert!(section.contains("double precision, peak"), "{section}");
    assert!(
        section.contains("of the whole node, other processes included"),
        "{section}"
    );
}

#[test]
fn invalid_ceilings_are_an_error() {
    let directory = TempDir::new().expect("a directory");
    let site = directory.path().join("site.toml");
    fs::write(&site, "flops = [{ precision = 'double' }]").expect("written");
    let output = profiler(&["report", "--ceilings", site.to_str().expect("UTF-8"), "/"]);
    assert_eq!(output.status.code(), Some(USAGE));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("site.toml: line 1: missing field `per_second`"),
        "{stderr}"
    );
}

#[test]
fn busy_node_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("ceilings.toml");
    let file = file.to_str().expect("UTF-8");
    let busy: Vec<_> = (0..2)
        .map(|_| ProcessGroup::spawn(&["sh", "-c", "while :; do :; done"]))
        .collect();
    let output = profiler(&["ceilings", "-o", file]);
    drop(busy);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(TARGET), "{stderr}");
    assert!(stderr.contains("profiler: the node is busy: "), "{stderr}");
    assert!(
        stderr.contains("wait until it has ended, or use --force"),
        "{stderr}"
    );
    assert!(!Path::new(file).exists());
}

#[test]
fn cpus_must_be_allowed() {
    let output = profiler(&["ceilings", "--cpus", "1021"]);
    assert_eq!(output.status.code(), Some(USAGE));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("--cpus 1021: this process may not use CPU 1021"),
        "{stderr}"
    );
}

/// The first CPU on which this process may run.
fn first_cpu() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.expect("the line").trim();
    list.split([',', '-']).next().expect("a CPU").to_owned()
}

/// Takes half a minute. The node may be busy with other tests: only large differences are compared.
#[test]
fn measured_ceilings_are_in_the_report() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("new/ceilings.toml");
    let file = path.to_str().expect("UTF-8");
    let cpu = first_cpu();
    let output = profiler(&["ceilings", "--force", "--json", "--cpus", &cpu, "-o", file]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("measuring ") && stderr.contains(file),
        "{stderr}"
    );
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["cpus"], cpu);
    let rate = |list: &str, wanted: &[(&str, &str)]| {
        let rows = json[list].as_array().expect("a list").iter();
        let mut rows = rows.filter(|row| wanted.iter().all(|(key, value)| row[key] == *value));
        let row = rows
            .next()
            .unwrap_or_else(|| panic!("{wanted:?}: {json:#}"));
        assert!(row["spread"].as_f64().expect("a spread") >= 0.0, "{row}");
        assert_eq!(row["cpus"], 1);
        row["per_second"].as_f64().expect("a rate")
    };
    // Every loop of the test program, which compiles the same files.
    let list = Command::new(env!("CARGO_BIN_EXE_workload-flops"))
        .arg("--list")
        .output();
    let list = String::from_utf8(list.expect("it starts").stdout).expect("UTF-8");
    let rows = list
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let kernels: Vec<_> = rows.filter(|row| row[0] != "triad").collect();
    assert_eq!(json["flops"].as_array().map(Vec::len), Some(kernels.len()));
    let rates = kernels
        .iter()
        .map(|row| rate("flops", &[("name", row[0]), ("precision", row[1])]));
    let rates: Vec<_> = rates.collect();
    // No core computes less than 10 MFLOP/s or more than 1 TFLOP/s.
    assert!(
        rates.iter().all(|rate| (1e7..1e12).contains(rate)),
        "{rates:?}"
    );
    let most = rates.iter().copied().fold(0.0, f64::max);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(
        most > 2.0 * least,
        "vectors have several elements: {rates:?}"
    );
    let bandwidth = |level, access| rate("bandwidth", &[("level", level), ("access", access)]);
    let [first, memory] = ["L1", "DRAM"].map(|level| bandwidth(level, "load"));
    assert!(first > memory && memory > 1e8, "{first}, {memory}");
    // Without optimization, the triad is as fast at each level.
    for level in ["L1", "DRAM"] {
        let triad = bandwidth(level, "triad");
        assert!((1e8..first).contains(&triad), "{level}: {triad}, {first}");
    }

    let run = record(directory.path());
    assert_eq!(python("rewrite.py", &[&run, "timeline", COUNTS]), 1);
    let html = html(&["--ceilings", file, &run]);
    let date = &json["measured"].as_str().expect("a date")[..10];
    assert!(html.contains(&format!("measured {date}")), "{html}");
    assert!(html.contains("(measured)"), "{html}");
    // Another microcode, for example, has other ceilings.
    let text = fs::read_to_string(&path).expect("the file");
    let other = text.replacen("sockets = \"", "sockets = \"9", 1);
    assert_ne!(text, other);
    fs::write(&path, other).expect("written");
    let html = self::html(&["--ceilings", file, &run]);
    assert!(!html.contains(&format!("measured {date}")), "{html}");
}
