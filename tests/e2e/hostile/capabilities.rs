//! Capabilities: each thread has only those that it needs; a started command has none.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use e2e::{
    attacker::{Installed, UID, command_as, directory_of},
    runs::{ProcessGroup, Profiler, TIMEOUT, wait_until},
    setting,
};
use tempfile::TempDir;

// linux/capability.h
const CHOWN: u64 = 1 << 0;
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const FOWNER: u64 = 1 << 3;
const KILL: u64 = 1 << 5;
const SYS_PTRACE: u64 = 1 << 19;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// Capabilities of the sampling threads.
const SAMPLING: u64 = BPF | PERFMON | SYS_PTRACE | DAC_READ_SEARCH | KILL;
/// Capabilities granted as file capabilities.
const GRANTED: u64 = BPF | PERFMON | SYS_PTRACE | DAC_READ_SEARCH;

/// A set of capabilities in /proc/PID/status.
fn set(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let digits = line.expect("a set of capabilities").trim();
    u64::from_str_radix(digits, 16).expect("hexadecimal")
}

/// The effective and permitted capabilities of each thread, by its name.
fn threads(pid: u32) -> BTreeMap<String, (u64, u64)> {
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).expect("it is alive") {
        let path = entry.expect("an entry").path();
        // The thread may have ended meanwhile.
        let read = |name: &str| fs::read_to_string(path.join(name));
        if let (Ok(name), Ok(status)) = (read("comm"), read("status")) {
            let sets = (set(&status, "CapEff:"), set(&status, "CapPrm:"));
            threads.insert(name.trim().to_owned(), sets);
        }
    }
    threads
}

/// Asserts that each thread, identified by its name, has exactly the expected capabilities; only
/// those in `within` are granted.
#[track_caller]
fn check(pid: u32, within: u64, files: u64, stop_file: u64) {
    let expected = [
        ("profiler", SAMPLING),
        ("statfs", SAMPLING),
        ("energy", SAMPLING),
        ("names", SYS_PTRACE | DAC_READ_SEARCH),
        ("details", SYS_PTRACE | DAC_READ_SEARCH),
        ("sink", files),
        ("retention", files),
        ("stop-file", stop_file),
        ("marks", 0),
    ];
    let wrong = || {
        let wrong = threads(pid).into_iter().filter(|(name, sets)| {
            let known = expected.iter().find(|(known, _)| known == name);
            known.is_none_or(|(_, expected)| *sets != (expected & within, expected & within))
        });
        wrong.collect::<BTreeMap<_, _>>()
    };
    // Short-lived threads end, and others keep all capabilities during their first reading.
    let begin = Instant::now();
    while !wrong().is_empty() && begin.elapsed() < TIMEOUT {
        sleep(Duration::from_millis(1));
    }
    assert_eq!(wrong(), BTreeMap::new());
    let threads = threads(pid);
    for name in ["profiler", "details", "sink", "stop-file", "marks"] {
        assert!(threads.contains_key(name), "{name}: {threads:x?}");
    }
}

fn stop_file(directory: &Path) -> String {
    let path = directory.join("ipc");
    fs::write(&path, "INPROGRESS\n").expect("written");
    path.to_str().expect("text").to_owned()
}

/// The table of docs/privileges.md for root.
#[test]
fn root_threads_keep_only_needed_capabilities() {
    let directory = TempDir::new().expect("a temporary directory");
    let profiler = Profiler::new()
        .args(["--node", "--stop-file", &stop_file(directory.path())])
        .start();
    let files = CHOWN | DAC_OVERRIDE | FOWNER;
    check(profiler.pid(), u64::MAX, files, DAC_READ_SEARCH);
    assert_eq!(profiler.interrupt().code(), 0);
}

/// For an ordinary user, only the threads that read `/proc` and `/sys` have capabilities.
#[test]
fn user_threads_open_files_without_capabilities() {
    let installed = Installed::with_file_capabilities();
    let home = directory_of(UID);
    let mut profiler = ProcessGroup::start(
        command_as(UID, installed.binary())
            .args(["run", "--quiet", "--node", "--stop-file"])
            .arg(stop_file(home.path()))
            .arg("--out")
            .arg(home.path().join("runs"))
            .stdin(Stdio::null()),
    );
    wait_until("the profiler is attached", || {
        threads(profiler.pid()).contains_key("stop-file")
    });
    let settled = || threads(profiler.pid())["profiler"].1 == GRANTED;
    wait_until("all threads are started", settled);
    check(profiler.pid(), GRANTED, 0, 0);
    fs::write(home.path().join("ipc"), "FINISHED\n").expect("written");
    assert!(profiler.0.wait().expect("our child").success());
}

/// Asserts that a started command has no capabilities.
#[track_caller]
fn assert_none(profiler: &mut Command, home: &Path, what: &str) {
    let output = profiler
        .args(["run", "--quiet", "--out"])
        .arg(home.join("runs"))
        .args(["--", "cat", "/proc/self/status"])
        .stdin(Stdio::null())
        .output()
        .expect("the profiler starts");
    assert!(output.status.success(), "{what}: {output:?}");
    let status = String::from_utf8(output.stdout).expect("text");
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(set(&status, name), 0, "{what}: {name}");
    }
}

/// A command inherits neither file capabilities nor the ambient capabilities of the systemd unit.
#[test]
fn command_has_no_capabilities() {
    let installed = Installed::with_file_capabilities();
    let home = directory_of(UID);
    assert_none(
        &mut command_as(UID, installed.binary()),
        home.path(),
        "file capabilities",
    );
    let plain = home.path().join("plain");
    fs::copy(setting("PROFILER_BIN"), &plain).expect("a copy");
    let granted = "+bpf,+perfmon,+sys_ptrace,+dac_read_search";
    let mut ambient = Command::new("setpriv");
    let (uid, gid) = (format!("--reuid={UID}"), format!("--regid={UID}"));
    ambient
        .args([&*uid, &*gid, "--clear-groups"])
        .args(["--inh-caps", granted, "--ambient-caps", granted])
        .arg(plain);
    assert_none(&mut ambient, home.path(), "ambient capabilities");
}
