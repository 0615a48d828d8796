//! Names that no run has: an error with the names that exist, the most similar first, and no file.

use std::{path::Path, process::Command};

use e2e::{runs::Profiler, setting};
use tempfile::TempDir;

use crate::WORKLOAD;

const USAGE: i32 = 2;

/// A run with two regions, a job and a label.
fn record(out: &Path) -> String {
    let script = r#"
        "$PROFILER" mark start load; "$PROFILER" mark end load
        "$PROFILER" mark start fit; "$WORKLOAD" cpu 20; "$PROFILER" mark end fit"#;
    let finished = Profiler::writing_to(out)
        .env("PROFILER", setting("PROFILER_BIN"))
        .env("WORKLOAD", WORKLOAD)
        .env("SLURM_JOB_ID", "4711")
        .args(["--run-id", "run", "--label", "experiment=a"])
        .command(&["sh", "-c", script])
        .finish();
    assert_eq!(finished.code(), 0);
    out.join("run").to_string_lossy().into_owned()
}

/// Exit code and stderr.
fn profiler(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .current_dir(directory)
        .args(arguments)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code(), stderr)
}

#[test]
fn unknown_names_are_errors_with_those_that_exist() {
    let directory = TempDir::new().expect("a directory");
    let run = &*record(directory.path());
    let written = TempDir::new().expect("a directory");
    for (arguments, expected) in [
        (
            &["export", "csv", run, "-o", "x", "--region", "fti"][..],
            "unknown region `fti`; regions are fit, load\n",
        ),
        (
            &["export", "perfmon", run, "-o", "x", "--region", "Fit"],
            "unknown region `Fit`; regions are fit, load\n",
        ),
        (
            &["export", "csv", run, "-o", "x", "--jobid", "4712"],
            "unknown job `4712`; jobs are 4711\n",
        ),
        (
            &["export", "csv", run, "-o", "x", "--table", "procezs"],
            "unknown table `procezs`; tables are process, run, ",
        ),
        (
            &[
                "export", "csv", run, "-o", "x", "--from", "5s", "--to", "2s",
            ],
            "--from is after --to\n",
        ),
        (
            &["export", "csv", run, "-o", "x", "--from", "1h"],
            "--from is after the end of the run, which took ",
        ),
        (
            &[
                "export",
                "csv",
                run,
                "-o",
                "x",
                "--to",
                "2000-01-01T00:00:00Z",
            ],
            "--to is before the start of the run\n",
        ),
        (
            &["summary", run, "--by", "exp"],
            "unknown label `exp`; labels are experiment, job, run, user\n",
        ),
        (
            &["summary", run, "--by", "use"],
            "unknown label `use`; labels are user, experiment, job, run\n",
        ),
        (
            &["compare", "--fail-on", "cpus>5%", "-o", "x", run, "--", run],
            "unknown figure `cpus`; figures are cpu_s, ",
        ),
        (
            &["report", run, "-o", "x", "--svg", "y", "--plot", "memry"],
            "unknown plot `memry`; plots are memory, ",
        ),
        (
            &["events", "--cpu", "skz"],
            "unknown CPU `skz`; CPUs are skl, ",
        ),
        (
            &["man", "runx"],
            "unknown page `profiler-runx`; pages are profiler-run, profiler, ",
        ),
    ] {
        let (code, stderr) = profiler(written.path(), arguments);
        assert_eq!(code, Some(USAGE), "{arguments:?}: {stderr}");
        let message = stderr.strip_prefix("profiler: ").unwrap_or_default();
        assert!(message.starts_with(expected), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        let mut files = written.path().read_dir().expect("a directory");
        assert!(files.next().is_none(), "{arguments:?} has left a file");
    }
}

#[test]
fn unknown_names_of_a_recording_are_errors_with_those_that_exist() {
    for (arguments, expected) in [
        (
            ["--source", "usage,shced"],
            "unknown source `shced`; sources are sched, process, ",
        ),
        (
            ["--source", "file_io=sycalls"],
            "unknown method `sycalls`; methods are syscalls, ",
        ),
        (["--groups", "SWW"], "unknown group; this CPU has SW, "),
        (
            ["--events", "cpu-cycels"],
            "unknown event, similar to cpu-cycles; ",
        ),
    ] {
        let refused = Profiler::new().args(arguments).command(&["true"]).finish();
        refused.assert_refused(USAGE, expected);
    }
}

/// What one of several runs has can be selected.
#[test]
fn names_of_one_run_are_known() {
    let directory = TempDir::new().expect("a directory");
    let run = &*record(directory.path());
    let other = Profiler::writing_to(directory.path())
        .args(["--run-id", "other"])
        .command(&["true"])
        .finish();
    assert_eq!(other.code(), 0);
    let other = directory.path().join("other");
    let other = &*other.to_string_lossy();
    for arguments in [
        &["export", "csv", other, run, "-o", "x", "--region", "fit"][..],
        &["export", "csv", other, run, "-o", "y", "--jobid", "4711"],
        &["summary", other, run, "--by", "experiment"],
    ] {
        let (code, stderr) = profiler(directory.path(), arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    }
}
