//! `profiler … | head`: a reader of the standard output that closes it early is no error.

use std::{
    fs,
    process::{Command, Stdio},
};

use e2e::{runs::Profiler, setting};
use tempfile::TempDir;

/// Exit code and stderr of a command whose output nobody reads.
fn unread(arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(setting("PROFILER_BIN"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .expect("it starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code(), stderr)
}

#[track_caller]
fn assert_no_error(arguments: &[&str]) {
    assert_eq!(unread(arguments), (Some(0), String::new()), "{arguments:?}");
}

#[test]
fn commands_without_a_run() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["check"],
        &["check", "--json"],
        &["config"],
        &["events"],
        &["events", "--cpus"],
        &["schema"],
        &["schema", "--json"],
        &["schema", "--markdown"],
        &["man"],
        &["man", "run"],
        &["completions", "bash"],
        &["completions", "zsh"],
    ] {
        // Whether there are settings is no matter of the pipe.
        let (code, stderr) = unread(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        let about_settings = stderr.starts_with("no settings in");
        assert!(
            stderr.is_empty() || about_settings,
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn commands_with_a_run() {
    let script = "\"$PROFILER\" mark start work; sleep 0.3; \"$PROFILER\" mark end work";
    let finished = Profiler::new()
        .env("PROFILER", setting("PROFILER_BIN"))
        .args(["-i", "100ms"])
        .command(&["sh", "-c", script])
        .finish();
    let run = finished.dataset().path().to_owned();
    let run = run.to_str().expect("UTF-8");
    for arguments in [
        &["summary", run][..],
        &["summary", run, "--json"],
        &["summary", run, "--md"],
        &["summary", run, "--by", "user"],
        &["report", run, "-o", "-"],
        &["report", run, "--md", "-"],
        &["compare", run, "--", run],
        &["compare", "--json", run, "--", run],
        &["compare", "-o", "-", run, "--", run],
        &["verify", run],
        &["verify", run, "--json"],
    ] {
        assert_no_error(arguments);
    }
    for format in ["csv", "json", "ndjson", "feather", "parquet"] {
        // With many rows and with few: either the first write or the last one fails.
        for table in ["process", "timeline", "region"] {
            assert_no_error(&["export", format, run, "--table", table, "-o", "-"]);
        }
    }
    for format in ["chrome-trace", "flowcept", "prov"] {
        assert_no_error(&["export", format, run, "-o", "-"]);
    }
    let directory = TempDir::new().expect("a directory");
    let tasks = directory.path().join("tasks.jsonl");
    let tasks = tasks.to_str().expect("UTF-8");
    let exported = Command::new(setting("PROFILER_BIN"))
        .args(["export", "flowcept", run, "-o", tasks])
        .output();
    assert!(exported.expect("it starts").status.success());
    let imported = directory.path().join("imported");
    let imported = imported.to_str().expect("UTF-8");
    let (code, stderr) = unread(&["import", "flowcept", tasks, "-o", imported]);
    assert_eq!(code, Some(0), "{stderr}");
    let dataset = directory.path().join("dataset");
    fs::create_dir(&dataset).expect("made");
    let (code, stderr) = unread(&["compact", dataset.to_str().expect("UTF-8")]);
    assert_eq!(code, Some(0), "{stderr}");
    // While a profiler runs.
    let node = Profiler::new()
        .args(["--node", "--source", "system"])
        .start();
    assert_no_error(&["status"]);
    assert_no_error(&["status", "--json"]);
    node.interrupt();
}
