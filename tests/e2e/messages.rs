//! Errors of files and directories: what was attempted, the cause in words, and the remedy.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use e2e::setting;
use serde_json::Value;
use tempfile::TempDir;

const USAGE: i32 = 2;
const TARGET: i32 = 3;
const OUTPUT: i32 = 5;

/// A profiler that has none of the settings of its environment.
fn profiler(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(setting("PROFILER_BIN"))
        .current_dir(directory)
        .env_remove("PROFILER_OUT")
        // Nothing listens there.
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        .env("AWS_ACCESS_KEY_ID", "none")
        .env("AWS_SECRET_ACCESS_KEY", "none")
        .args(arguments)
        .output()
        .expect("it starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Records a run without processes.
fn record(directory: &Path, out: &str, id: &str) {
    let arguments = [
        "run", "-q", "-o", out, "--run-id", id, "--source", "system", "--", "true",
    ];
    let output = profiler(directory, &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// The run that cases read.
const RUN: &str = "profiles/one";

/// Arguments, exit code, and texts of the error.
type Case = (&'static [&'static str], i32, &'static [&'static str]);

const CASES: &[Case] = &[
    (
        &["run", "-o", "/proc/x", "--node", "-d", "100ms"],
        OUTPUT,
        &["cannot create output directory /proc/x: No such file or directory; use --out DIR\n"],
    ),
    (
        &["run", "-o", "file/x", "--node", "-d", "100ms"],
        OUTPUT,
        &["cannot create output directory ", "; use --out DIR\n"],
    ),
    (
        &["run", "--log", "/proc/x/log", "--node", "-d", "100ms"],
        OUTPUT,
        &["cannot open log /proc/x/log", "; use --log FILE\n"],
    ),
    (
        &["run", "--config", "absent.toml", "--node", "-d", "100ms"],
        USAGE,
        &["cannot read settings absent.toml: No such file or directory\n"],
    ),
    (
        &["run", "--config", "broken.toml", "--node", "-d", "100ms"],
        USAGE,
        &["broken.toml: line 1: unknown setting `intervall`; settings are interval, "],
    ),
    (
        &["run", "--perfevents", "absent", "--node", "-d", "100ms"],
        USAGE,
        &["--perfevents absent: ", "No such file or directory"],
    ),
    (
        &["run", "--pid", "4194304"],
        TARGET,
        &["no process 4194304 (already exited?)\n"],
    ),
    (
        &["run", "--job", "--scheduler", "slurm"],
        USAGE,
        &["not inside a batch job; use --job ID\n"],
    ),
    (
        &["summary", "absent"],
        TARGET,
        &["cannot read run absent: No such file or directory\n"],
    ),
    (
        &["summary", "profiles"],
        TARGET,
        &[
            "cannot read run profiles: not the directory of a run",
            "; runs below it: profiles/one\n",
        ],
    ),
    (
        &["verify", "."],
        TARGET,
        &[
            "cannot read run .: not the directory of a run",
            "; runs below it: ./profiles/one\n",
        ],
    ),
    (
        &["report", "file"],
        TARGET,
        &["cannot read run file: Not a directory\n"],
    ),
    (
        &["report", RUN, "-o", "absent/report.html"],
        OUTPUT,
        &["cannot write absent/report.html: No such file or directory\n"],
    ),
    (
        &["compare", "absent", "--", RUN],
        TARGET,
        &["cannot read run absent: "],
    ),
    (
        &["compare", RUN, "--", RUN, "-o", "x"],
        USAGE,
        &["-o: options come before `--`\n"],
    ),
    (
        &["compare", RUN, "--", RUN, "--fail-on", "cpu_s>5%"],
        USAGE,
        &["--fail-on: options come before `--`\n"],
    ),
    (
        &["compare", "--fail-on", "cpus>5", RUN, "--", RUN],
        USAGE,
        &["`cpus>5` is not a threshold", "; figures are cpu_s, "],
    ),
    (
        &["export", "csv", "absent", "-o", "x"],
        TARGET,
        &["cannot read run absent: "],
    ),
    (
        &["export", "perfmon", RUN, "-o", "-"],
        USAGE,
        &["this format has several files: use -o DIRECTORY\n"],
    ),
    (
        &["export", "pytyche", RUN, "-o", "-"],
        USAGE,
        &["this format has several files: use -o DIRECTORY\n"],
    ),
    (
        &["export", "perfpy", RUN, "-o", "-"],
        USAGE,
        &["this format has several files: use -o FILE, beside which nodes.json is written\n"],
    ),
    (
        &["export", "csv", RUN, "-o", "-"],
        USAGE,
        &["add --table NAME\n"],
    ),
    (
        &["export", "json", RUN, "--table", "run", "-o", "absent/x"],
        OUTPUT,
        &["cannot write absent/x: No such file or directory\n"],
    ),
    (
        &["import", "flowcept", "absent", "-o", "new"],
        TARGET,
        &["cannot read absent: No such file or directory\n"],
    ),
    (
        &["recover", "profiles"],
        TARGET,
        &[
            "cannot recover profiles: not a run directory: no run.json; runs below it: profiles/one\n",
        ],
    ),
    (
        &["recover", "absent"],
        TARGET,
        &["cannot recover absent: not a run directory: no run.json\n"],
    ),
    (
        &["run", "--stop-file", "file/below", "--", "true"],
        TARGET,
        &["cannot read --stop-file file/below: Not a directory\n"],
    ),
    (
        &["ceilings", "-o", "/proc/ceilings.toml"],
        OUTPUT,
        &["cannot write /proc/ceilings.toml: No such file or directory\n"],
    ),
    (
        &["compact", "absent"],
        TARGET,
        &["cannot compact absent: No such file or directory\n"],
    ),
    (
        &["upload", "absent", "--to", "s3://bucket/x"],
        TARGET,
        &["cannot read absent: No such file or directory\n"],
    ),
    (
        &["ceilings", "-o", "file"],
        OUTPUT,
        &["file exists and is not a file of ceilings; choose another --output\n"],
    ),
    (
        &["man", "--all", "/proc/x"],
        OUTPUT,
        &["cannot write /proc/x", "No such file or directory"],
    ),
    (
        &["mark", "--strict", "--socket", "absent", "event", "x"],
        TARGET,
        &["absent"],
    ),
];

#[test]
fn errors_tell_what_was_attempted_and_what_helps() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    record(directory, "profiles", "one");
    fs::write(directory.join("file"), "no run").expect("written");
    fs::write(directory.join("broken.toml"), "intervall = '1s'").expect("written");
    for (arguments, code, expected) in CASES {
        let output = profiler(directory, arguments);
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {stderr}");
        for text in *expected {
            assert!(stderr.contains(text), "{arguments:?}: {text}: {stderr}");
        }
        for text in [&*stdout, &*stderr] {
            assert!(!text.contains("os error"), "{arguments:?}: {text}");
        }
    }
    assert!(!directory.join("-").exists());
}

/// What cannot be read within a run is also named without numbers of errors.
#[test]
fn problems_of_a_run_have_no_numbers_of_errors() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    record(directory, "profiles", "one");
    let table = directory.join("profiles/one/memory_numa");
    fs::create_dir_all(&table).expect("made");
    let host = fs::read_dir(directory.join("profiles/one/system"))
        .expect("a table")
        .next()
        .expect("a host")
        .expect("an entry");
    let link = table.join(host.file_name());
    std::os::unix::fs::symlink("/proc/self/nothing", link).expect("a link");
    let part = host.path().join("part-00001.parquet");
    let part = if part.exists() {
        part
    } else {
        host.path().join("part-00000.parquet")
    };
    fs::remove_file(&part).expect("a part");
    fs::create_dir(&part).expect("a directory instead");
    for arguments in [
        &["verify", "profiles/one"][..],
        &["verify", "--json", "profiles/one"],
        &["summary", "profiles/one"],
        &["report", "profiles/one", "-o", "-"],
        &["export", "csv", "profiles/one", "-o", "tables"],
    ] {
        let output = profiler(directory, arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        assert!(text.contains("part-0"), "{arguments:?}: {text}");
        assert!(!text.contains("os error"), "{arguments:?}: {text}");
    }
}

#[test]
fn newest_run_is_taken_without_a_name() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    for command in ["summary", "report", "verify"] {
        let output = profiler(directory, &[command]);
        assert_eq!(output.status.code(), Some(TARGET));
        let expected = "profiler: no run in profiles; give the directory of a run, or record one: \
                        profiler run -- COMMAND\n";
        assert_eq!(stderr(&output), expected, "{command}");
    }
    // The names are not in the order of the starts.
    for id in ["b", "a"] {
        record(directory, "profiles", id);
    }
    record(directory, "other", "c");
    let json = |output: &Output| -> Value {
        let text = stderr(output);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let output = profiler(directory, &["summary", "--json"]);
    assert_eq!(stderr(&output), "profiler: newest run: profiles/a\n");
    assert_eq!(json(&output)["runs"][0]["run_id"], "a");
    let output = profiler(directory, &["verify", "--json"]);
    assert_eq!(stderr(&output), "profiler: newest run: profiles/a\n");
    assert_eq!(json(&output)[0]["run_id"], "a");
    let output = Command::new(setting("PROFILER_BIN"))
        .current_dir(directory)
        .env("PROFILER_OUT", "other")
        .arg("report")
        .output()
        .expect("it starts");
    assert_eq!(
        stderr(&output),
        "profiler: newest run: other/c\nreport.html\n"
    );
}

#[test]
fn reports_replace_only_reports() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    record(directory, "profiles", "one");
    let run = "profiles/one";
    for (file, arguments) in [
        ("report.html", &["report", run][..]),
        ("a.html", &["report", run, "-o", "a.html"]),
        ("a.md", &["report", run, "--md", "a.md"]),
        ("b.html", &["compare", "-o", "b.html", run, "--", run]),
    ] {
        let path = directory.join(file);
        for _ in 0..2 {
            let output = profiler(directory, arguments);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        }
        fs::write(&path, "<title>thesis</title>").expect("written");
        let output = profiler(directory, arguments);
        assert_eq!(output.status.code(), Some(OUTPUT), "{file}");
        let expected = format!(
            "profiler: {file} exists and is not a report of this program; --force replaces it\n"
        );
        assert_eq!(stderr(&output), expected);
        assert_eq!(fs::read(&path).expect("kept"), b"<title>thesis</title>");
        let mut forced = arguments.to_vec();
        forced.insert(1, "--force");
        let output = profiler(directory, &forced);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}
