//! Programs that differ by a known amount.

use serde_json::{Value, json};

use super::Recording;
use crate::analysis::{
    compare::{Comparison, Judgement, Measured, Threshold, compare, document, judge, page},
    summary::{Thresholds, summarize},
};

/// Commands of a script, most of them small: CPU time in ms.
const SMALL: [(&str, f64); 16] = [
    ("bash pyenv exec", 2.0),
    ("bash pyenv-hooks exec", 3.4),
    ("bash pyenv-hooks which", 5.4),
    ("bash pyenv-hooks version-name", 5.0),
    ("bash pyenv-which", 3.3),
    ("bash pyenv-latest", 2.0),
    ("bash pyenv-version-name", 5.7),
    ("bash pyenv-version-file", 4.2),
    ("bash pyenv-version-file-read", 3.8),
    ("bash pyenv-prefix", 2.1),
    ("readlink conda.bash", 0.79),
    ("readlink python-config.bash", 0.77),
    ("readlink system-site-packages.bash", 0.75),
    ("readlink pip-rehash.bash", 0.81),
    ("readlink pyenv", 0.81),
    ("basename versions", 0.86),
];

/// Relative noise of run `number` in its command `of`: within 3 %, and the same for both sides on average.
fn noise(number: usize, of: usize) -> f64 {
    let steps = (7 * number + 5 * of + number * of) % 11;
    1.0 + 0.006 * (steps as f64 - 5.0)
}

/// Runs with commands that use the CPU times of `of`, by number of the run.
fn runs(
    numbers: std::ops::Range<usize>,
    of: impl Fn(usize) -> Vec<(String, f64)>,
) -> Vec<Measured> {
    let run = |number: usize| {
        let commands = of(number);
        let all: f64 = commands.iter().map(|(_, seconds)| seconds).sum();
        let mut recording = Recording::new(1.05 * all);
        for (pid, (command, seconds)) in (100..).zip(&commands) {
            let user = (seconds * 0.95e9).round();
            recording = recording.process(pid, command, json!({})).of(
                pid,
                "usage",
                1.0,
                json!({"user_ns": user, "system_ns": (seconds * 1e9 - user).round()}),
            );
        }
        let directory = tempfile::tempdir().expect("a directory");
        let run = recording.store(directory.path(), &format!("run{number}"));
        Measured::new(&run, summarize(&run, &Thresholds::default()))
    };
    numbers.map(run).collect()
}

/// Runs of a script whose program uses `seconds`.
fn scripts(numbers: std::ops::Range<usize>, seconds: f64) -> Vec<Measured> {
    runs(numbers, |number| {
        let small = SMALL.iter().zip(1..);
        let small =
            small.map(|((name, ms), of)| ((*name).to_owned(), ms / 1e3 * noise(number, of)));
        let program = ("python w.py".to_owned(), seconds * noise(number, 0));
        small.chain([program]).collect()
    })
}

fn compared(a: &[Measured], b: &[Measured]) -> Comparison {
    let [a, b] = [a, b].map(|runs| runs.iter().collect::<Vec<_>>());
    compare(["a".to_owned(), "b".to_owned()], [&a, &b])
}

fn verdicts(all: &Value) -> Vec<(&str, &str)> {
    let rows = all.as_array().expect("rows").iter();
    rows.map(|row| {
        let text = |of: &str| row[of].as_str().expect("a text");
        (text("name"), text("verdict"))
    })
    .collect()
}

fn named<'a>(all: &'a Value, name: &str) -> &'a Value {
    let mut rows = all.as_array().expect("rows").iter();
    rows.find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no {name}: {all}"))
}

fn judged(comparison: &Comparison, thresholds: &[&str]) -> Vec<Judgement> {
    let thresholds: Vec<Threshold> = thresholds
        .iter()
        .map(|text| text.parse().expect("a threshold"))
        .collect();
    judge(&thresholds, comparison).expect("figures of the runs")
}

/// 40 % more work in one run cannot be told from chance: no interval, no verdict, and no passed test.
#[test]
fn one_run_of_each_is_not_judged() {
    let comparison = compared(&scripts(0..1, 1.0), &scripts(0..1, 1.4));
    let found = document(&comparison);
    let cpu = named(&found["figures"], "cpu_s");
    assert!(
        (cpu["ratio"]["value"].as_f64().unwrap() - 1.38).abs() < 0.01,
        "{cpu}"
    );
    assert_eq!(cpu["ratio"]["interval"], Value::Null);
    for list in ["figures", "processes"] {
        let verdicts = verdicts(&found[list]);
        assert!(
            verdicts.iter().all(|(_, of)| *of == "unknown"),
            "{verdicts:?}"
        );
    }
    let text = page(&comparison).text();
    assert!(text.contains("One run each: significance cannot be tested."));
    let line = text
        .lines()
        .find(|line| line.ends_with(" cpu_s"))
        .expect("a line");
    assert!(line.contains('?') && line.contains("+38"), "{line}");
    let [Judgement::Unknown(why)] = &judged(&comparison, &["cpu_s>+5%"])[..] else {
        panic!("judged");
    };
    assert_eq!(
        why,
        "cpu_s>+5%: cannot be judged with 1 and 1 runs; record at least 4 on each side"
    );
}

/// 30 % more work in the program of a script is found in five runs: in the total, in its parts, and in the
/// command that causes it, however many small commands there are.
#[test]
fn the_command_that_causes_a_difference_is_found() {
    let comparison = compared(&scripts(0..5, 1.0), &scripts(5..10, 1.3));
    let found = document(&comparison);
    for (list, name) in [
        ("figures", "cpu_s"),
        ("figures", "user_s"),
        ("processes", "python w.py"),
    ] {
        let row = named(&found[list], name);
        assert_eq!(row["verdict"], "more", "{row}");
        assert_eq!(row["runs_needed"], Value::Null, "{row}");
        let (p, corrected) = (row["p"].as_f64(), row["p_corrected"].as_f64());
        assert!((p.unwrap() - 2.0 / 252.0).abs() < 1e-9, "{row}");
        assert!(corrected >= p && corrected <= Some(0.05), "{row}");
    }
    for (name, verdict) in verdicts(&found["processes"]) {
        assert!(
            name == "python w.py" || verdict != "more" && verdict != "less",
            "{name}"
        );
        let row = named(&found["processes"], name);
        assert!(
            row["runs_needed"].as_u64().is_none_or(|needed| needed > 5),
            "{row}"
        );
    }
    let judged = judged(&comparison, &["cpu_s>+5%", "cpu_s>+40%"]);
    let [Judgement::Exceeded(why), Judgement::Within] = &judged[..] else {
        panic!("{judged:?}");
    };
    assert!(why.starts_with("cpu_s>+5%: cpu_s differs by +28."), "{why}");
    let text = page(&comparison).text();
    let line = text
        .lines()
        .find(|line| line.ends_with("python w.py"))
        .expect("a line");
    assert!(line.contains("0.008") && line.contains('▲'), "{line}");
}

#[test]
fn equal_programs_do_not_differ() {
    let comparison = compared(&scripts(0..6, 1.0), &scripts(11..17, 1.0));
    let found = document(&comparison);
    for list in ["figures", "processes"] {
        for (name, verdict) in verdicts(&found[list]) {
            assert!(!["more", "less"].contains(&verdict), "{name}: {verdict}");
        }
    }
    assert_eq!(judged(&comparison, &["cpu_s>+5%"]), [Judgement::Within]);
}

/// One command uses more, another one less, and the total stays as it was.
#[test]
fn differences_that_cancel_each_other_are_found() {
    let of = |numbers, first: f64, second: f64| {
        runs(numbers, move |number| {
            vec![
                ("assemble".to_owned(), first * noise(number, 0)),
                ("solve".to_owned(), second * noise(number, 1)),
            ]
        })
    };
    let found = document(&compared(&of(0..6, 1.0, 1.0), &of(6..12, 1.2, 0.8)));
    assert_eq!(
        verdicts(&found["processes"]),
        [("assemble", "more"), ("solve", "less")]
    );
    assert_eq!(named(&found["figures"], "cpu_s")["verdict"], "same");
}

/// The change is that of the medians that stand beside it.
#[test]
fn the_change_is_that_of_the_shown_values() {
    let of = |numbers, values: [f64; 7]| {
        runs(numbers, move |number| {
            vec![("solve".to_owned(), values[number % 7])]
        })
    };
    let a = of(0..7, [58.7, 58.8, 58.9, 40.0, 41.0, 59.0, 42.0]);
    let b = of(7..14, [54.9, 55.0, 54.8, 60.0, 61.0, 54.0, 62.0]);
    let found = document(&compared(&a, &b));
    for row in [
        named(&found["figures"], "cpu_s"),
        named(&found["processes"], "solve"),
    ] {
        let number = |value: &Value| value.as_f64().expect("a number");
        let (a, b) = (number(&row["a"]["value"]), number(&row["b"]["value"]));
        let ratio = number(&row["ratio"]["value"]);
        assert!((ratio - b / a).abs() < 1e-9 && ratio < 0.95, "{row}");
        let [low, high] = [0, 1].map(|end| number(&row["ratio"]["interval"][end]));
        assert!(low <= ratio && ratio <= high, "{row}");
        assert_eq!(row["verdict"], "same", "{row}");
    }
}

/// A command that most runs of a side do not start has no CPU time in these.
#[test]
fn a_command_that_did_not_run_used_nothing() {
    let of = |numbers, rebuilds: fn(usize) -> bool| {
        runs(numbers, move |number| {
            let mut commands = vec![("make".to_owned(), noise(number, 0))];
            if rebuilds(number) {
                commands.push(("cc main.c".to_owned(), 5.0 * noise(number, 1)));
            }
            commands
        })
    };
    let found = document(&compared(
        &of(0..6, |_| true),
        &of(6..12, |number| number == 6),
    ));
    let row = named(&found["processes"], "cc main.c");
    assert_eq!(row["b"]["value"], 0.0, "{row}");
    assert_eq!(row["verdict"], "less", "{row}");
    assert_eq!(row["runs"], json!([6, 6]));
}

/// Bytes of files are not compared with those of storage: where one side does not know the first, both have
/// the second.
#[test]
fn bytes_of_files_and_storage_are_not_mixed() {
    let run = |files: Option<u64>| {
        let usage = json!({"user_ns": 1, "system_ns": 1, "read_bytes": 1000, "write_bytes": 500});
        let mut recording = Recording::new(1.0)
            .process(10, "solve", json!({}))
            .of(10, "usage", 1.0, usage);
        if let Some(bytes) = files {
            let row = json!({"method": "calls", "read_bytes": bytes, "write_bytes": 0});
            recording = recording.of(10, "file_io", 1.0, row);
        }
        let directory = tempfile::tempdir().expect("a directory");
        let run = recording.store(directory.path(), "run");
        Measured::new(&run, summarize(&run, &Thresholds::default()))
    };
    let primary = |a: Option<u64>, b: Option<u64>| {
        let found = document(&compared(&[run(a)], &[run(b)]));
        let figures = found["figures"].as_array().expect("figures").clone();
        let bytes = |of: &&Value| {
            of["name"]
                .as_str()
                .is_some_and(|name| name.ends_with("_bytes"))
        };
        let moved =
            |of: &&Value| of["primary"] == true && bytes(of) && of["name"] != "peak_rss_bytes";
        let moved = figures.iter().find(moved).expect("a figure").clone();
        ["name", "a", "b"].map(|key| {
            moved[key]["value"]
                .as_f64()
                .map_or(moved[key].clone(), Value::from)
        })
    };
    assert_eq!(
        primary(Some(9_000_000), None),
        [json!("storage_bytes"), json!(1500.0), json!(1500.0)]
    );
    assert_eq!(
        primary(Some(9_000_000), Some(9_000_000)),
        [json!("file_bytes"), json!(9_000_000.0), json!(9_000_000.0)]
    );
}
