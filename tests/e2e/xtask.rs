//! `cargo xtask run` and `cargo xtask doctor` in a checkout.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use e2e::{
    page::root,
    procfs,
    runs::{Profiler, pid_of, wait_until},
};
use rustix::process::{Signal, kill_process_group};

/// Environment variables that cargo and nextest set for tests.
const RUNNER_VARIABLES: [&str; 7] = [
    "CARGO_BIN_",
    "CARGO_CRATE_NAME",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_TARGET_TMPDIR",
    "NEXTEST",
    "RUST_RECURSION_COUNT",
];

/// `cargo xtask WORDS` without the environment variables of the test runner.
fn cargo_xtask(words: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if RUNNER_VARIABLES.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command.arg("xtask").args(words).current_dir(root());
    command
}

/// The program that runs the tests.
pub fn xtask() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target.expect("a directory").join("debug/xtask")
}

/// A test that leaves a process of another session, and is ended for its time.
#[test]
fn what_a_test_leaves_is_removed_and_reported() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let script = "setsid sleep 600 & echo $! $TMPDIR; wait";
    let mut guard = Command::new(xtask())
        .args(["guard", "sh", "-c", script, "module::name"])
        .env("TMPDIR", directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let stdout = guard.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("text");
    let (pid, temporary) = line.trim().split_once(' ').expect("two words");
    let sleep = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default() == "sleep\n";
    wait_until("it sleeps", sleep);
    kill_process_group(pid_of(guard.id()), Signal::TERM).expect("it lives");
    let status = guard.wait().expect("our child");
    assert_eq!(status.code(), Some(143));
    assert!(!matches!(
        procfs::state(format!("/proc/{pid}")),
        Some('S' | 'R')
    ));
    assert!(!Path::new(temporary).exists());
    let left = fs::read_to_string(directory.path().join("left")).expect("a report");
    assert_eq!(left, format!("module::name left process {pid} (sleep)\n"));
}

#[test]
fn command_runs_as_without_the_profiler() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let out = directory.path().join("out");
    let environment = directory.path().join("environment");
    let path = environment.to_str().expect("UTF-8");
    let mut command = cargo_xtask(&["run", "--out"]);
    command.arg(&out).env("OF_THE_USER", "kept");
    let finished = Profiler::from_command(command, &out)
        .command(&["sh", "-c", "env >\"$0\"; sleep 0.5; exit 7", path])
        .finish();
    assert_eq!(finished.code(), 7, "{}", finished.stderr);
    let variables = fs::read_to_string(environment).expect("the command has run");
    assert!(variables.contains("OF_THE_USER=kept\n"), "{variables}");
    let of_cargo = |line: &&str| {
        [
            "CARGO=",
            "CARGO_PKG_",
            "CARGO_MANIFEST_",
            "RUST_RECURSION_COUNT=",
        ]
        .iter()
        .any(|name| line.starts_with(name))
    };
    assert_eq!(variables.lines().find(of_cargo), None);
    let data = finished.any_dataset();
    data.assert_complete();
    let code: i32 = data.value("SELECT exit_code FROM process WHERE comm = 'sh'");
    assert_eq!(code, 7);
}

fn doctor(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    (output.status.code(), text)
}

/// Each required tool has a line and, if it is missing, a command that installs it.
#[test]
fn doctor_lists_missing_prerequisites_with_commands() {
    let complete = cargo_xtask(&["doctor"]).output().expect("cargo starts");
    let (code, text) = doctor(&complete);
    assert_eq!(code, Some(0), "{text}");
    for essential in [
        "rustc",
        "cargo",
        "C compiler",
        "BPF rustc",
        "kernel BTF",
        "privilege",
    ] {
        let line = text.lines().find(|line| {
            line.trim_start()
                .starts_with(&format!("ok       {essential} "))
        });
        assert!(line.is_some(), "{essential} in {text}");
    }
    let version = Command::new("rustc")
        .arg("--version")
        .output()
        .expect("rustc starts");
    let version = String::from_utf8(version.stdout).expect("UTF-8");
    assert!(text.contains(version.trim()), "{text}");

    let only_rust = tempfile::TempDir::new().expect("a directory");
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .expect("rustc starts");
    let sysroot = String::from_utf8(sysroot.stdout).expect("UTF-8");
    for name in ["cargo", "rustc"] {
        let program = Path::new(sysroot.trim()).join("bin").join(name);
        symlink(program, only_rust.path().join(name)).expect("a link");
    }
    let ill = Command::new(xtask())
        .arg("doctor")
        .env("PATH", only_rust.path())
        .current_dir(root())
        .output()
        .expect("it has just been built");
    let (code, text) = doctor(&ill);
    assert_eq!(code, Some(1), "{text}");
    let lines: Vec<_> = text.lines().collect();
    for (name, package) in [
        ("C compiler", "gcc"),
        ("qemu", "qemu-system-x86"),
        ("bpftrace", "bpftrace"),
    ] {
        let missing = format!("  MISSING  {name} ");
        let at = lines.iter().position(|line| line.starts_with(&missing));
        let at = at.unwrap_or_else(|| panic!("{name} in {text}"));
        let remedy = lines[at + 1].trim_start();
        let known = remedy.starts_with("-> run `apt-get install") && remedy.contains(package);
        assert!(known, "{remedy}");
    }
}
