//! Each error is one line on stderr with a documented exit code, and leaves no files.

use e2e::{
    procfs::{self, Reading, thread_ids},
    runs::{ProcessGroup, Profiler, wait_until},
    workload_driver::WorkloadDriver,
};

use crate::WORKLOAD;

const USAGE: i32 = 2;
const TARGET: i32 = 3;
const PRIVILEGE: i32 = 4;
const OUTPUT: i32 = 5;
const STRICT: i32 = 6;

#[test]
fn no_such_process() {
    let mut child = ProcessGroup::spawn(&["true"]);
    child.0.wait().expect("our child");
    let gone = Profiler::new().pid(child.pid()).finish();
    gone.assert_refused(TARGET, &format!("no process {}", child.pid()));
}

#[test]
fn zombie() {
    let child = ProcessGroup::spawn(&["true"]);
    let directory = format!("/proc/{}", child.pid());
    wait_until("it has ended", || procfs::state(&directory) == Some('Z'));
    Profiler::new()
        .pid(child.pid())
        .finish()
        .assert_refused(TARGET, "zombie");
}

#[test]
fn thread_id_is_not_a_process() {
    let workload = WorkloadDriver::new(WORKLOAD, 1);
    let thread = thread_ids(workload.pid())
        .into_iter()
        .find(|tid| *tid != workload.pid());
    let refused = Profiler::new()
        .pid(thread.expect("a second thread"))
        .finish();
    refused.assert_refused(TARGET, &format!("use --pid {}", workload.pid()));
}

#[test]
fn one_of_several_pids_missing() {
    let mut child = ProcessGroup::spawn(&["true"]);
    child.0.wait().expect("our child");
    let refused = Profiler::new()
        .pid(std::process::id())
        .pid(child.pid())
        .finish();
    refused.assert_refused(TARGET, &format!("no process {}", child.pid()));
}

#[test]
fn no_such_cgroup() {
    for path in ["/sys/fs/cgroup/no-such-group", "/tmp"] {
        Profiler::new()
            .args(["--cgroup", path])
            .finish()
            .assert_refused(TARGET, path);
    }
}

#[test]
fn user_without_capabilities() {
    let root = WorkloadDriver::new(WORKLOAD, 0);
    let of_root = Profiler::unprivileged().pid(root.pid()).finish();
    of_root.assert_refused(PRIVILEGE, "belongs to user 0");
    let strict = Profiler::unprivileged()
        .args(["--strict", "-d", "100ms", "--node"])
        .finish();
    strict.assert_refused(STRICT, "net_io");
    strict.assert_refused(STRICT, "CAP_BPF");
}

#[test]
fn unwritable_output() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("a file");
    for out in [
        file.as_path(),
        "/proc/nowhere".as_ref(),
        &file.join("below"),
    ] {
        let refused = Profiler::writing_to(out).pid(workload.pid()).finish();
        refused.assert_refused(OUTPUT, out.to_str().expect("UTF-8"));
        if out == file {
            refused.assert_refused(OUTPUT, "name a directory");
        }
    }
}

#[test]
fn no_such_command() {
    Profiler::new()
        .command(&["no-such-program"])
        .finish()
        .assert_refused(127, "no-such-program");
    Profiler::new()
        .command(&["/etc/passwd"])
        .finish()
        .assert_refused(126, "/etc/passwd");
}

#[test]
fn invalid_command_line() {
    let cases: [&[&str]; 6] = [
        &[],
        &["--pid", "0"],
        &["--pid", "x"],
        &["--node", "--interval", "999us"],
        &["--node", "--source", "no-such-source"],
        &["--node", "--pid", "1"],
    ];
    for args in cases {
        let refused = Profiler::new().args(args).finish();
        assert_eq!(refused.code(), USAGE, "{args:?}: {}", refused.stderr);
        assert!(!refused.stderr.is_empty());
        refused.assert_nothing_left();
    }
}

/// Hides the kernel's BTF from the profiler.
pub const WITHOUT_BTF: [&str; 7] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"",
    "sh",
    "env",
];

/// Denies bpf(2) to the profiler.
fn without_bpf() -> [String; 3] {
    denying("bpf")
}

/// Denies a system call to the profiler.
pub fn denying(call: &str) -> [String; 3] {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/deny.py");
    let python = e2e::setting("PROFILER_TEST_PYTHON");
    [python, script.to_owned(), call.to_owned()]
}

/// Asserts that the profiler falls back to `/proc` and reports it once.
#[track_caller]
fn degrades(wrapper: &[&str], why: &str) {
    let mut workload = WorkloadDriver::new(WORKLOAD, 1);
    let profiler = Profiler::wrapped_in(wrapper)
        .args(["-i", "100ms"])
        .pid(workload.pid())
        .start();
    let before = Reading::now(workload.pid());
    workload.run("burn 500");
    let after = Reading::now(workload.pid());
    let finished = profiler.interrupt();
    let data = finished.dataset();
    data.assert_complete();
    let reported = finished.stderr.lines().filter(|line| line.contains(why));
    assert_eq!(reported.count(), 1, "{}", finished.stderr);
    let manifest = data.manifest();
    let source = |name: &str| {
        let sources = manifest["sources"].as_array().expect("a list");
        let found = sources.iter().find(|source| source["name"] == name);
        found.expect("every source is listed").clone()
    };
    assert_eq!(source("net_io")["status"], "unavailable");
    assert!(
        source("net_io")["why"]
            .as_str()
            .is_some_and(|text| text.contains(why))
    );
    assert_eq!(source("usage")["status"], "limited");
    let cpu: u64 = data.value("SELECT sum(user_ns + system_ns) FROM usage");
    assert_cpu(cpu, [before, after]);
}

/// Asserts a CPU time that was read from the ticks of `/proc/PID/stat`.
#[track_caller]
fn assert_cpu(found: u64, [before, after]: [Reading; 2]) {
    let [before, after] = [before, after].map(|reading| reading.sum(|thread| thread.oncpu_ns));
    let known = after - before;
    assert!(
        known > 0 && found.abs_diff(known) <= 20_000_000,
        "{found} ns, not {known}"
    );
}

#[test]
fn falls_back_to_proc_without_btf() {
    degrades(&WITHOUT_BTF, "BTF");
}

#[test]
fn falls_back_to_proc_when_bpf_is_denied() {
    let [python, script, call] = &without_bpf();
    degrades(&[python, script, call], "bpf()");
}

/// `/proc/PID/io` of a process with more capabilities is not readable: null, not 0.
#[test]
fn unreadable_io_accounting_is_null() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 1);
    let deny =
        "mount -t tmpfs none /sys/kernel/btf && exec setpriv --bounding-set -sys_ptrace \"$@\"";
    let mut wrapper = WITHOUT_BTF;
    wrapper[4] = deny;
    let profiler = Profiler::wrapped_in(&wrapper)
        .args(["-i", "100ms", "--source", "process,usage,file_io"])
        .pid(workload.pid())
        .start();
    let before = Reading::now(workload.pid());
    workload.run("burn 500");
    let after = Reading::now(workload.pid());
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let (rows, cpu, io): (u64, u64, u64) = data.row(
        "SELECT count(*), sum(user_ns + system_ns), \
         count(read_chars) + count(write_chars) + count(read_syscalls) + count(read_bytes) FROM usage",
    );
    assert!(rows > 0, "{rows} rows");
    assert_cpu(cpu, [before, after]);
    assert_eq!(io, 0);
    assert_eq!(
        data.value::<u64>("SELECT count(read_chars) FROM process"),
        0
    );
    assert!(data.table("file_io").is_empty());
}

#[test]
fn strict_fails_when_a_source_is_missing() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let [python, script, call] = &without_bpf();
    let strict = |wrapper: &[&str]| {
        Profiler::wrapped_in(wrapper)
            .args(["--strict", "--source", "net_io"])
            .pid(workload.pid())
            .finish()
    };
    strict(&WITHOUT_BTF).assert_refused(STRICT, "net_io");
    strict(&[python, script, call]).assert_refused(STRICT, "net_io");
}
