//! Names that others choose, in all that the commands print: they neither control a terminal nor look
//! like a line of the profiler.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use e2e::{dataset::Dataset, mounts::Mounted, runs::wait_until, setting};
use serde_json::Value;
use tempfile::TempDir;

use super::process_names::{Waiting, workload};

/// Title of the window, a new line, and a direction of writing, in 15 bytes as in a name of a thread.
const NAME: &str = "\u{1b}]0;x\u{7}\nY\u{2066}\u{9b}c";
/// Begin of a line that only such a name can begin.
const FORGED: &str = "Y";

/// Whether a terminal shows the character where it is.
fn is_shown(char: char) -> bool {
    let moves = matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !char.is_control() && !moves || matches!(char, '\n' | '\t')
}

#[track_caller]
fn assert_harmless(what: &dyn std::fmt::Debug, text: &str) {
    let wrong = text.chars().find(|char| !is_shown(*char));
    assert_eq!(wrong, None, "{what:?}: {text:?}");
    let forged = text.lines().find(|line| line.starts_with(FORGED));
    assert_eq!(forged, None, "{what:?}: {text:?}");
}

/// Runs the profiler, all of whose output must be harmless.
#[track_caller]
fn run(words: &[&str]) -> String {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(words)
        .stdin(Stdio::null())
        .output();
    checked(&words, &output.expect("it starts"))
}

#[track_caller]
fn checked(what: &dyn std::fmt::Debug, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_harmless(what, &stdout);
    assert_harmless(what, &stderr);
    stdout
}

/// The commands that show a run; RUN is its directory.
const COMMANDS: [&[&str]; 9] = [
    &["summary", "RUN"],
    &["summary", "--md", "RUN"],
    &["summary", "--json", "RUN"],
    &["summary", "--by", "k", "RUN"],
    &["compare", "RUN", "--", "RUN"],
    &["compare", "--json", "RUN", "--", "RUN"],
    &["report", "-o", "-", "RUN"],
    &["verify", "RUN"],
    &["verify", "--json", "RUN"],
];

#[track_caller]
fn show(run_dir: &str) {
    for words in COMMANDS {
        let words = words
            .iter()
            .map(|word| if *word == "RUN" { run_dir } else { word });
        run(&words.collect::<Vec<_>>());
    }
}

/// Name, arguments and directory of a process, its mount, a mark, a label, the directory of the output.
#[test]
fn names_do_not_control_the_terminal() {
    let place = TempDir::new().expect("a directory");
    let named = place.path().join(NAME);
    let mounted = Mounted::tmpfs(&named);
    let (_directory, program) = workload();
    let copy = named.join(NAME);
    fs::copy(program, &copy).expect("a copy");
    let mut command = Command::new(&copy);
    command.args(["0", NAME]).current_dir(mounted.point());
    let process = Waiting::start(command.env("SLURM_JOB_NAME", NAME));
    let log = place.path().join("log");
    let (out, log, label) = (named.join("runs"), log.display().to_string(), "k=v\u{2066}");
    let script = "\"$0\" mark event \"$1\"; cat \"$2\" > /dev/null; exec sleep 0.5";
    for options in [&[][..], &["--log", &log], &["--verbose"]] {
        let output = Command::new(setting("PROFILER_BIN"))
            .args(["run", "-i", "100ms", "--label", label, "--out"])
            .arg(&out)
            .args(options)
            .args(["--", "sh", "-c", script])
            .arg(setting("PROFILER_BIN"))
            .args([NAME.as_ref(), copy.as_os_str()])
            .output();
        checked(&options, &output.expect("it starts"));
    }
    let logs = fs::read_dir(place.path()).expect("readable").flatten();
    let logs = logs.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"log"));
    let logs: Vec<_> = logs.map(|entry| fs::read_to_string(entry.path())).collect();
    assert_eq!(logs.len(), 1);
    assert_harmless(&"--log", logs[0].as_ref().expect("UTF-8"));
    let pid = process.pid().to_string();
    let profiler = Command::new(setting("PROFILER_BIN"))
        .args([
            "run", "-i", "100ms", "--pid", &pid, "--label", label, "--out",
        ])
        .arg(&out)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let own = format!("\"pid\": {}", profiler.id());
    wait_until("it is in the list", || {
        run(&["status", "--json"]).contains(&own)
    });
    run(&["status"]);
    drop(process);
    checked(&"run --pid", &profiler.wait_with_output().expect("it ends"));
    let runs = fs::read_dir(&out).expect("readable").flatten();
    let runs: Vec<_> = runs
        .filter(|entry| entry.path().join("run.json").exists())
        .collect();
    assert_eq!(runs.len(), 4);
    for entry in &runs {
        show(entry.path().to_str().expect("UTF-8"));
    }
    // The name is there: nothing was left out.
    let data = Dataset::new(runs[0].path());
    let labels = data.manifest()["labels"]["k"].clone();
    assert_eq!(labels.as_str(), Some("v\u{2066}"));
    let missing = named.join("missing");
    run(&["summary", missing.to_str().expect("UTF-8")]);
    run(&["upload", missing.to_str().expect("UTF-8"), "--to", NAME]);
    run(&["compact", out.to_str().expect("UTF-8")]);
    run(&[
        "run",
        "--config",
        missing.to_str().expect("UTF-8"),
        "--node",
    ]);
    run(&["run", "--pid", NAME]);
    run(&["run", "--", missing.to_str().expect("UTF-8")]);
    run(&["run", "--label", &format!("k={NAME}"), "--node"]);
    run(&[&format!("--{NAME}")]);
    run(&[NAME]);
    run(&["check"]);
}

/// Every text of `run.json`, one after the other.
fn each_text(value: &mut Value, change: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::String(_) => change(value),
        Value::Array(values) => values.iter_mut().for_each(|value| each_text(value, change)),
        Value::Object(map) => map.values_mut().for_each(|value| each_text(value, change)),
        _ => {}
    }
}

#[test]
fn texts_of_run_json_do_not_control_the_terminal() {
    let place = TempDir::new().expect("a directory");
    let out = place.path().join("runs");
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["run", "-i", "100ms", "--label", "k=v", "--out"])
        .arg(&out)
        .args(["--", "sleep", "0.3"])
        .output();
    assert!(output.expect("it starts").status.success());
    let run_dir = fs::read_dir(&out).expect("readable").flatten();
    let run_dir = run_dir.map(|entry| entry.path());
    let run_dir = run_dir
        .into_iter()
        .find(|path| path.join("run.json").exists());
    let run_dir = run_dir.expect("a run");
    let file = manifest(&run_dir);
    let known: Value = serde_json::from_slice(&fs::read(&file).expect("readable")).expect("JSON");
    let mut texts = 0;
    each_text(&mut known.clone(), &mut |_| texts += 1);
    assert!(texts > 20, "{texts}");
    for number in 0..texts {
        let (mut changed, mut index) = (known.clone(), 0);
        each_text(&mut changed, &mut |value| {
            if index == number {
                *value = format!("{}{NAME}", value.as_str().unwrap_or_default()).into();
            }
            index += 1;
        });
        fs::write(&file, changed.to_string()).expect("written");
        let run_dir = run_dir.to_str().expect("UTF-8");
        for command in ["summary", "verify"] {
            run(&[command, run_dir]);
        }
    }
}

/// The `run.json` of the only host.
fn manifest(run_dir: &Path) -> std::path::PathBuf {
    let mut files = Dataset::new(run_dir.to_owned()).files();
    files.retain(|path| path.file_name().is_some_and(|name| name == "run.json"));
    files.into_iter().next().expect("a run.json")
}
