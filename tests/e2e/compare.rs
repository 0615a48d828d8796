//! `profiler compare`: real differences are found, equal programs are not said to differ.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{dataset::Dataset, setting};
use serde_json::Value;
use tempfile::TempDir;

use crate::WORKLOAD;

/// Options of most runs.
const OPTIONS: [&str; 4] = [
    "-i",
    "100ms",
    "--source",
    "process,usage,sched,system,timeline,host",
];

/// Records a command, with these options or [`OPTIONS`].
pub fn record(directory: &Path, name: &str, options: &[&str], command: &[&str]) -> PathBuf {
    let status = Command::new(setting("PROFILER_BIN"))
        .args(["run", "-q", "--run-id", name, "--out"])
        .arg(directory)
        .args(if options.is_empty() {
            &OPTIONS
        } else {
            options
        })
        .arg("--")
        .args(command)
        .env("PROFILER", setting("PROFILER_BIN"))
        .env("WORKLOAD", WORKLOAD)
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("it starts").success());
    directory.join(name)
}

pub fn compare(options: &[&str], a: &[&PathBuf], b: &[&PathBuf]) -> (Option<i32>, String, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("compare")
        .args(options)
        .args(a)
        .arg("--")
        .args(b)
        .output()
        .expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

pub fn document(a: &[&PathBuf], b: &[&PathBuf]) -> Value {
    let (code, stdout, stderr) = compare(&["--json"], a, b);
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// The summary of each run.
fn summaries(runs: &[&PathBuf]) -> Vec<Value> {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["summary", "--json"])
        .args(runs)
        .output();
    let found: Value = serde_json::from_slice(&output.expect("it starts").stdout).expect("JSON");
    found["runs"].as_array().expect("runs").clone()
}

/// A figure of a comparison.
pub fn figure<'a>(document: &'a Value, name: &str) -> &'a Value {
    let figures = document["figures"].as_array().expect("figures");
    let named = figures.iter().find(|figure| figure["name"] == name);
    named.unwrap_or_else(|| panic!("no {name}: {document}"))
}

/// Figures that are tested by themselves.
pub fn primary(document: &Value) -> Vec<&Value> {
    let figures = document["figures"].as_array().expect("figures").iter();
    figures.filter(|figure| figure["primary"] == true).collect()
}

/// The programs use a fixed CPU time by their own clock: other load changes how long they take, but
/// not the figure.
#[test]
fn five_percent_are_found_with_ten_runs() {
    let directory = TempDir::new().expect("a directory");
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for number in 0..10 {
        for (runs, side, time) in [(&mut a, "a", "400"), (&mut b, "b", "420")] {
            let name = format!("{side}{number}");
            let command = [WORKLOAD, "cpu", time];
            runs.push(record(directory.path(), &name, &[], &command));
        }
    }
    let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
    let found = document(&a, &b);
    let cpu = figure(&found, "cpu_s");
    assert_eq!(cpu["verdict"], "more", "{cpu}");
    assert_eq!(cpu["runs"], serde_json::json!([10, 10]));
    let low = cpu["ratio"]["interval"][0].as_f64();
    assert!(low > Some(1.0), "{cpu}");
    let found = ratio(&found, "cpu_s");
    assert!((1.03..1.07).contains(&found), "{cpu}");
    let (code, _, stderr) = compare(&["--fail-on", "cpu_s>+3%"], &a, &b);
    assert_eq!(code, Some(8), "{stderr}");
    assert!(stderr.contains("cpu_s differs by +"), "{stderr}");
    let (code, _, stderr) = compare(&["--fail-on", "cpu_s>+10%"], &a, &b);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let (code, _, stderr) = compare(&[], &a, &[b[0], &PathBuf::from("--fail-on")]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("--fail-on: options come before `--`"),
        "{stderr}"
    );
    let (code, _, stderr) = compare(&["--fail-on", "cpu>+5%"], &a, &b);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("unknown figure `cpu`; figures are cpu_s, "),
        "{stderr}"
    );
    let (_, text, _) = compare(&[], &a, &b);
    assert!(text.contains("▲"), "{text}");
}

/// A command that uses little CPU time on one side is matched, and ranks with each other.
#[test]
fn all_commands_are_matched_by_rank() {
    let script = r#"
        for name in a b c d e f; do "$WORKLOAD" cpu 60 "$name"; done
        "$WORKLOAD" cpu SMALL changed
        for rank in 0 1; do
            SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=$rank "$WORKLOAD" cpu $((30 + rank * RANK)) ranked
        done
        "$WORKLOAD" cpu 20 only-in-SIDE"#;
    let directory = TempDir::new().expect("a directory");
    let [a, b] = [("a", "20", "0"), ("b", "300", "170")].map(|(side, small, rank)| {
        let script = script.replace("SMALL", small).replace("RANK", rank);
        let script = script.replace("SIDE", side);
        record(directory.path(), side, &[], &["sh", "-c", &script])
    });
    let found = document(&[&a], &[&b]);
    let processes = found["processes"].as_array().expect("processes");
    let times = |end: &str| {
        let of = processes.iter().find(|process| {
            let name = process["name"].as_str().expect("a name");
            name.ends_with(end) && !name.starts_with("sh ")
        });
        let of = of.unwrap_or_else(|| panic!("no {end}: {found}"));
        ["a", "b"].map(|side| of[side]["value"].as_f64().expect("a time"))
    };
    // Their own clock ends the programs; starting them takes a few ms, and the hypervisor's time
    // counts.
    let stolen = [&a, &b].map(|run| Dataset::new(run.clone()).stolen_ns() as f64 / 1e9);
    for (end, expected) in [
        ("cpu # changed", [0.02, 0.3]),
        ("cpu # ranked (rank 0)", [0.03, 0.03]),
        ("cpu # ranked (rank 1)", [0.03, 0.2]),
        ("cpu # a", [0.06, 0.06]),
        ("cpu # f", [0.06, 0.06]),
    ] {
        for ((time, expected), stolen) in times(end).into_iter().zip(expected).zip(stolen) {
            assert!(
                time >= expected && time < expected + 0.06 + stolen,
                "{end}: {time} s instead of {expected}, {stolen} s stolen"
            );
        }
    }
    for side in ["a", "b"] {
        let only = found["only_in"][side].as_array().expect("names");
        let name = format!("{WORKLOAD} cpu # only-in-{side}");
        assert!(only.contains(&name.as_str().into()), "{name}: {only:?}");
        let changed = |name: &Value| name.as_str().is_some_and(|name| name.ends_with("changed"));
        assert!(!only.iter().any(changed), "{only:?}");
    }
}

/// Twice the rank of each value among all; equal values have the mean of their ranks.
fn double_ranks(values: &[f64]) -> Vec<usize> {
    let below = |of: f64| values.iter().filter(|value| **value < of).count();
    let until = |of: f64| values.iter().filter(|value| **value <= of).count();
    values
        .iter()
        .map(|of| below(*of) + until(*of) + 1)
        .collect()
}

/// All divisions of 12 runs into two groups of 6, as bits of those of the first group.
fn divisions() -> Vec<u32> {
    (0..1_u32 << 12).filter(|of| of.count_ones() == 6).collect()
}

/// The share of all divisions in which the rank sum of the first group is as far from its mean as in
/// this one.
fn permutation_p(ranks: &[usize], division: u32) -> f64 {
    let distance = |division: u32| {
        let ranks = ranks.iter().enumerate();
        let chosen = ranks.filter(|(run, _)| division >> run & 1 == 1);
        let sum: usize = chosen.map(|(_, rank)| rank).sum();
        // 6 doubled ranks have the mean 6 × 13.
        sum.abs_diff(78)
    };
    let own = distance(division);
    let all = divisions();
    let extreme = all.iter().filter(|other| distance(**other) >= own).count();
    extreme as f64 / all.len() as f64
}

/// The p-values of a comparison of equal programs are those of the permutation test, which this
/// function computes by enumeration. If the order in which the runs were recorded does not matter
/// (they are exchangeable), their division is one of 924 equally likely ones. By definition of the
/// p-value at most a share of 5 % of the divisions has one of at most 5 %; Holm's correction keeps the
/// share of divisions with an alarm in any primary figure at most 5 %. The unit test
/// `alarms_of_all_divisions` counts them.
#[test]
fn p_values_are_those_of_the_permutation_test() {
    let directory = TempDir::new().expect("a directory");
    let record = |number: u32| {
        let name = format!("r{number}");
        // Long enough for samples of the memory.
        let script = "\"$WORKLOAD\" cpu 20; sleep 0.4";
        record(directory.path(), &name, &[], &["sh", "-c", script])
    };
    let runs: Vec<_> = (0..12).map(record).collect();
    let summaries = summaries(&runs.iter().collect::<Vec<_>>());
    let values = |name: &str| -> Vec<f64> {
        let of = |run: &Value| match name {
            "wall_s" => run["seconds"].as_f64(),
            "storage_bytes" => {
                let bytes = |name: &str| run["total"][name].as_f64();
                Some(bytes("storage_read_bytes")? + bytes("storage_write_bytes")?)
            }
            name => run["total"][name].as_f64(),
        };
        let values = summaries.iter().map(of);
        values.map(|value| value.expect("a value")).collect()
    };
    let cpu = double_ranks(&values("cpu_s"));
    let lowest = |runs: &dyn Fn(usize) -> bool| -> u32 {
        (0..12).filter(|run| runs(*run)).map(|run| 1 << run).sum()
    };
    let mut order: Vec<usize> = (0..12).collect();
    order.sort_by_key(|run| cpu[*run]);
    let extreme = lowest(&|run| order[..6].contains(&run));
    let interleaved = lowest(&|run| run % 2 == 0);
    let early = lowest(&|run| run < 6);
    for division in [
        extreme,
        interleaved,
        early,
        divisions()[100],
        divisions()[500],
    ] {
        let side = |bit: u32| -> Vec<&PathBuf> {
            let runs = runs.iter().enumerate();
            let chosen = runs.filter(|(run, _)| division >> run & 1 == bit);
            chosen.map(|(_, run)| run).collect()
        };
        let found = document(&side(1), &side(0));
        let figures = primary(&found);
        let names = figures
            .iter()
            .map(|of| of["name"].as_str().expect("a name"));
        let names: Vec<_> = names.collect();
        assert_eq!(
            names,
            ["wall_s", "cpu_s", "peak_rss_bytes", "storage_bytes"]
        );
        let p = names
            .iter()
            .map(|name| permutation_p(&double_ranks(&values(name)), division));
        let p: Vec<f64> = p.collect();
        // Holm: the i-th smallest of m is multiplied by m - i + 1, and none is below a smaller one's.
        let mut order: Vec<_> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
        let mut adjusted = 0.0_f64;
        for (rank, index) in order.into_iter().enumerate() {
            adjusted = adjusted.max(p[index] * (p.len() - rank) as f64).min(1.0);
            let of = |name: &str| figures[index][name].as_f64().expect("a p-value");
            assert!((of("p") - p[index]).abs() < 1e-9, "{}", figures[index]);
            let of = of("p_corrected");
            assert!(
                (of - adjusted).abs() < 1e-9,
                "{} {division:b}: {of} instead of {adjusted}",
                names[index]
            );
        }
    }
}

#[test]
fn comparison_is_one_safe_file() {
    let script = r#"
        "$PROFILER" mark start '<b>solve'; "$WORKLOAD" cpu TIME
        "$PROFILER" mark end '<b>solve'
        "$PROFILER" mark start write; sleep 0.5; "$PROFILER" mark end write"#;
    let directory = TempDir::new().expect("a directory");
    let run = |name: &str, time: &str| {
        let script = script.replace("TIME", time);
        record(
            directory.path(),
            name,
            &["-i", "100ms"],
            &["sh", "-c", &script],
        )
    };
    let a = [
        run("<script>alert(1)", "300"),
        run("a2", "900"),
        run("a3", "500"),
    ];
    let b = [run("b1", "600")];
    let file = directory.path().join("comparison.html");
    let output = file.to_str().expect("UTF-8");
    let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
    let (code, stdout, stderr) = compare(&["-o", output], &a, &b);
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert_eq!(stderr.trim(), output);
    let html = fs::read_to_string(&file).expect("written");
    let text = html.replace("http://www.w3.org/2000/svg", "");
    for markup in [
        "<script",
        "<b>",
        "<img",
        "javascript:",
        "http:",
        "https:",
        " style=",
        " on",
    ] {
        let found = text.find(markup);
        // ` on` is an attribute only inside a tag: words have a letter before `=`.
        let is_attribute = |at: usize| markup != " on" || text[at..].starts_with(" onload=");
        assert!(!found.is_some_and(is_attribute), "{markup}");
    }
    let style = html.split("<style>").nth(1).expect("a style sheet");
    let style = style.split("</style>").next().expect("its end");
    let sheet = directory.path().join("style.css");
    fs::write(&sheet, style).expect("written");
    let hash = Command::new(setting("PROFILER_TEST_PYTHON"))
        .arg("-c")
        .arg(
            "import base64, hashlib, sys
print(base64.b64encode(hashlib.sha256(open(sys.argv[1], 'rb').read()).digest()).decode())",
        )
        .arg(&sheet)
        .output();
    let hash = String::from_utf8(hash.expect("it starts").stdout).expect("text");
    let policy = format!(
        "content=\"default-src 'none'; style-src 'sha256-{}'\"",
        hash.trim()
    );
    assert!(html.contains(&policy), "{policy}");
    let sections = [
        "machines",
        "figures",
        "processes",
        "regions",
        "time",
        "others",
    ];
    let places = sections.map(|section| {
        let place = html.find(&format!("<section id=\"{section}\">"));
        place.unwrap_or_else(|| panic!("no section {section}"))
    });
    assert!(places.is_sorted(), "{places:?}");
    // The run with the median wall time, in columns that begin at the regions.
    let mut walls: Vec<_> = summaries(&a)
        .iter()
        .map(|run| (run["seconds"].as_f64(), run["run_id"].to_string()))
        .collect();
    walls.sort_by(|a, b| a.0.partial_cmp(&b.0).expect("numbers"));
    let median = walls[1]
        .1
        .trim_matches('"')
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let shown = format!("A is run {median}, B is run b1, those with the median wall time");
    assert!(html.contains(&shown), "{shown}");
    assert!(html.contains("&lt;b&gt;solve<title>"), "{html}");
    assert!(html.contains(">write<title>"), "{html}");
    assert!(html.contains("<circle class=\"dot "), "{html}");
    let cpu = format!(
        "{:+.1} %",
        100.0 * (ratio(&document(&a, &b), "cpu_s") - 1.0)
    );
    assert!(html.contains(&cpu), "{cpu}: {html}");
    let (code, _, stderr) = compare(&["-o", "/proc/none", "--md"], &a, &b);
    assert_eq!(code, Some(2), "{stderr}");
    let (code, _, stderr) = compare(&["-o", "/proc/none"], &a, &b);
    assert_eq!(code, Some(5), "{stderr}");
}

fn ratio(document: &Value, name: &str) -> f64 {
    let ratio = &figure(document, name)["ratio"]["value"];
    ratio.as_f64().expect("a ratio")
}

#[test]
fn differences_of_settings_come_first() {
    let directory = TempDir::new().expect("a directory");
    let command = [WORKLOAD, "cpu", "300"];
    let a = record(directory.path(), "a", &[], &command);
    let b = record(
        directory.path(),
        "b",
        &["-i", "50ms", "--source", OPTIONS[3]],
        &command,
    );
    let found = document(&[&a], &[&b]);
    assert_eq!(figure(&found, "cpu_s")["verdict"], "unknown");
    let machines = found["machines"].as_array().expect("differences");
    let interval = machines
        .iter()
        .find(|difference| difference["what"] == "interval");
    assert_eq!(
        interval.expect("the interval")["a"],
        serde_json::json!(["100.0 ms"])
    );
    assert!(
        machines
            .iter()
            .all(|difference| difference["what"] != "CPU"),
        "{machines:?}"
    );
    let (_, text, _) = compare(&[], &[&a], &[&b]);
    let at = |text: &str, what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(at(&text, "interval") < at(&text, "cpu_s"), "{text}");
    assert!(
        text.contains("One run each: significance cannot be tested."),
        "{text}"
    );
    let (code, _, stderr) = compare(&["--fail-on", "cpu_s>+5%"], &[&a], &[&b]);
    assert_eq!(code, Some(9), "{stderr}");
    let why = "cpu_s>+5%: cannot be judged with 1 and 1 runs; record at least 4 on each side";
    assert!(stderr.contains(why), "{stderr}");
    let missing = directory.path().join("missing");
    let (code, _, stderr) = compare(&[], &[&a], &[&missing]);
    assert_eq!(code, Some(3), "{stderr}");
}
