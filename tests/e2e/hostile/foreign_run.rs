//! Runs of another user, who can store gigabytes in kilobytes.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::chown,
    path::Path,
    process::{Command, Stdio},
};

use e2e::{
    attacker::UID,
    dataset::{Dataset, python},
    runs::Profiler,
    setting,
};
use tempfile::TempDir;

use crate::report::record;

/// Memory that the commands may take, in KiB. Without limits, they take gigabytes.
const MOST_MEMORY: i64 = 600 << 10;

/// Words of a command; RUN is the run, and RUNS its directory.
type Words = &'static [&'static str];

/// The commands that read runs, and the exit code for a run with a file that cannot be read.
const COMMANDS: [(Words, i32); 6] = [
    (&["summary", "RUN"], 0),
    (&["summary", "--json", "RUN"], 0),
    (&["report", "-o", "-", "RUN"], 0),
    (&["compare", "RUN", "--", "RUN"], 0),
    (&["verify", "RUN"], 7),
    (
        &["export", "csv", "--table", "process", "-o", "-", "RUN"],
        5,
    ),
];

struct Ended {
    code: i32,
    output: String,
    /// Peak memory in KiB.
    memory: i64,
}

/// Runs a command to its end. Its peak is that of this process before, if that was more.
#[expect(clippy::zombie_processes, reason = "wait4(2) also tells its memory")]
fn end(words: &[&str], run: &str) -> Ended {
    let mut command = Command::new(setting("PROFILER_BIN"));
    let words = words.iter().map(|word| match *word {
        "RUN" => Path::new(run),
        "RUNS" => Path::new(run).parent().expect("a directory"),
        word => Path::new(word),
    });
    let mut child = command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stderr = child.stderr.take().expect("a pipe");
    let messages = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).expect("text");
        text
    });
    let mut output = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut output).expect("text");
    output += &messages.join().expect("no panic");
    let (mut status, pid) = (0, child.id().cast_signed());
    // SAFETY: all fields are integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are ours. Nobody else waits for the child.
    let ended = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert_eq!(ended, pid);
    assert!(libc::WIFEXITED(status), "{command:?}: {output}");
    Ended {
        code: libc::WEXITSTATUS(status),
        output,
        memory: usage.ru_maxrss,
    }
}

fn run_in(directory: &TempDir) -> String {
    record(directory.path(), &[], "sleep 0.3")
}

/// Gives all files to another user.
fn give_away(run: &str) {
    for file in Dataset::new(run.into()).files() {
        chown(file, Some(UID), Some(UID)).expect("root gives files away");
    }
}

/// Replaces a table of the run. Returns its size in bytes.
fn attack(run: &str, kind: &str) -> u64 {
    let size = python("foreign_run.py", &[run, kind]);
    size.as_u64().expect("a size")
}

#[track_caller]
fn assert_refused(run: &str, expected: &str) {
    for (words, code) in COMMANDS {
        let ended = end(words, run);
        let output = &ended.output[..ended.output.len().min(20_000)];
        assert_eq!(ended.code, code, "{words:?}: {output}");
        let file = "part-00000.parquet: ";
        let is_named = ended
            .output
            .lines()
            .any(|line| line.contains(file) && line.contains(expected) && line.contains("--trust"));
        assert!(is_named, "{words:?}, {expected}: {output}");
        assert!(
            ended.memory < MOST_MEMORY,
            "{words:?}: {} KiB",
            ended.memory
        );
    }
}

#[test]
fn files_that_become_gigabytes_are_refused() {
    for (kind, most, expected) in [
        (
            "cells",
            100_000,
            "column cmdline of 300.0 MiB, over the limit of 256.0 MiB",
        ),
        (
            "pages",
            200_000,
            "column cmdline of 1.2 GiB, over the limit of 256.0 MiB",
        ),
        ("repeated", 100_000, "column cmdline of "),
        ("rows", 2 << 20, "20000000 rows, over the limit of "),
    ] {
        let directory = TempDir::new().expect("a directory");
        let run = run_in(&directory);
        let size = attack(&run, kind);
        assert!(size < most, "{kind}: {size} bytes");
        give_away(&run);
        assert_refused(&run, expected);
    }
}

#[test]
fn trusted_run_is_read_without_limits() {
    let directory = TempDir::new().expect("a directory");
    let run = run_in(&directory);
    attack(&run, "long");
    let own: Vec<_> = COMMANDS.map(|(words, _)| end(words, &run)).into();
    give_away(&run);
    assert_refused(&run, "a text of 2.0 MiB, over the limit of 1.0 MiB");
    for ((words, _), own) in COMMANDS.into_iter().zip(own) {
        let words = [&words[..1], &["--trust"], &words[1..]].concat();
        let trusted = end(&words, &run);
        assert_eq!(
            (trusted.code, trusted.output),
            (own.code, own.output),
            "{words:?}"
        );
    }
}

#[test]
fn compaction_leaves_files_over_a_limit_alone() {
    for (kind, expected) in [
        ("repeated", "column cmdline of "),
        ("rows", "20000000 rows, over the limit of "),
        ("long", "a text of 2.0 MiB, over the limit of 1.0 MiB"),
    ] {
        let directory = TempDir::new().expect("a directory");
        let run = run_in(&directory);
        attack(&run, kind);
        give_away(&run);
        let ended = end(&["compact", "RUNS"], &run);
        let is_named = |line: &str| {
            line.starts_with("process: not compacted: ")
                && ["part-00000.parquet: ", expected, "--trust"]
                    .iter()
                    .all(|part| line.contains(part))
        };
        assert_eq!(ended.code, 5, "{kind}: {}", ended.output);
        assert!(
            ended.output.lines().any(is_named),
            "{kind}: {}",
            ended.output
        );
        // The other tables are compacted.
        assert!(ended.output.contains("\n  usage: "), "{}", ended.output);
        assert!(ended.memory < MOST_MEMORY, "{kind}: {} KiB", ended.memory);
        if kind == "long" {
            let trusted = end(&["compact", "--trust", "RUNS"], &run);
            assert_eq!(trusted.code, 0, "{}", trusted.output);
            assert!(trusted.output.contains("\n  process: 1 row,"));
        }
    }
}

#[test]
fn recovery_keeps_journals_over_a_limit() {
    let running = Profiler::new()
        .args(["-i", "100ms", "--", "sleep", "60"])
        .start();
    let path = running.run_dir();
    Dataset::new(path.clone()).wait_for_row("process", "the command", |_| true);
    let _finished = running.kill();
    let run = path.to_str().expect("UTF-8");
    attack(run, "journal");
    give_away(run);
    let journals = || {
        let files = Dataset::new(path.clone()).files().into_iter();
        let mut files =
            files.filter(|file| file.components().any(|part| part.as_os_str() == "process"));
        files.any(|file| file.extension().is_some_and(|end| end == "arrows"))
    };
    let refused = end(&["recover", "RUN"], run);
    let expected = "_part-00000.arrows: a text of 2.0 MiB, over the limit of 1.0 MiB";
    assert!(refused.output.contains(expected), "{}", refused.output);
    assert_eq!(refused.code, 5, "{}", refused.output);
    assert!(journals());
    let trusted = end(&["recover", "--trust", "RUN"], run);
    assert_eq!(trusted.code, 0, "{}", trusted.output);
    assert!(!journals());
}

#[test]
fn large_manifests_are_refused() {
    let directory = TempDir::new().expect("a directory");
    let run = run_in(&directory);
    let path = Path::new(&run).join("run.json");
    let text = fs::read_to_string(&path).expect("there");
    // Many sessions without content.
    let sessions = vec!["{}"; 10_000_000].join(",");
    let text = text.replacen('{', &format!("{{\"earlier\": [{sessions}],"), 1);
    fs::write(&path, text).expect("written");
    drop(sessions);
    give_away(&run);
    let ended = end(&["verify", "RUN"], &run);
    let expected = "run.json: over the limit of 1.0 MiB for a file of another user: --trust";
    assert!(ended.output.contains(expected), "{}", ended.output);
    assert_eq!(ended.code, 7);
}

/// The copy of a run on a server belongs to the user, its content does not.
#[test]
fn run_on_a_server_is_read_within_the_limits() {
    let directory = TempDir::new().expect("a directory");
    let run = run_in(&directory);
    attack(&run, "long");
    let mut server = Command::new(setting("PROFILER_TEST_PYTHON"))
        .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"])
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("python starts");
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).expect("a line");
    let address = line.split(['(', ')']).nth(1).expect("an address");
    let address = format!("{address}run");
    let words: [Words; 2] = [&["verify", "RUN"], &["verify", "--trust", "RUN"]];
    let [limited, trusted] = words.map(|words| end(words, &address).output);
    server
        .kill()
        .and_then(|()| server.wait())
        .expect("our child");
    let own = end(&["verify", "RUN"], &run).output;
    let refusal = "a text of 2.0 MiB, over the limit of 1.0 MiB";
    for (output, is_refused) in [(limited, true), (trusted, false), (own, false)] {
        assert_eq!(output.contains(refusal), is_refused, "{output}");
        assert!(output.contains("  process: "), "{output}");
    }
}

/// A run as the profiler has written it is read like an own one.
#[test]
fn run_within_the_limits_is_read_as_before() {
    let directory = TempDir::new().expect("a directory");
    let run = run_in(&directory);
    let own: Vec<_> = COMMANDS.map(|(words, _)| end(words, &run)).into();
    give_away(&run);
    for ((words, _), own) in COMMANDS.into_iter().zip(own) {
        let read = end(words, &run);
        assert_eq!((read.code, &read.output), (0, &own.output), "{words:?}");
        assert_eq!(own.code, 0, "{words:?}: {}", own.output);
    }
}
