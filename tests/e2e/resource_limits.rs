//! Low resource limits (`ulimit`): what can be raised is raised for the profiler alone, the command has those
//! that it would have without the profiler, and what is too low is an error before anything starts.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use e2e::{
    runs::{Finished, Profiler, wait_until},
    setting,
    workload_driver::WorkloadDriver,
};

use crate::WORKLOAD;

/// An ordinary user without other processes.
const USER: [&str; 6] = [
    "setpriv",
    "--reuid",
    "54321",
    "--regid",
    "54321",
    "--clear-groups",
];

/// A profiler of that user, below limits.
fn of_user(limits: &[&str]) -> Profiler {
    let wrapper = [&USER[..], &["prlimit"], limits].concat();
    Profiler::in_directory_for_all(&wrapper)
}

#[test]
fn command_has_the_inherited_limits() {
    let limits = [
        "--as=8000000000:9000000000",
        "--core=0:1000",
        "--cpu=500:500",
        "--data=7000000000:8000000000",
        "--fsize=100000000:200000000",
        "--memlock=10000:20000",
        "--nofile=16:1000",
        "--nproc=5000:6000",
        "--stack=262144:16000000",
    ];
    let limits_file = ["cat", "/proc/self/limits"];
    for user in [&[][..], &USER] {
        let wrapper = [user, &["prlimit"], &limits].concat();
        let alone = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .args(limits_file)
            .output()
            .expect("prlimit starts");
        let alone = String::from_utf8_lossy(&alone.stdout);
        assert!(alone.contains("262144"), "{alone}");
        let profiler = Profiler::in_directory_for_all(&wrapper).command(&limits_file);
        let finished = profiler.finish();
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
        assert_eq!(finished.stdout, alone);
    }
}

fn assert_unharmed(finished: &Finished) {
    assert_eq!(finished.code(), 7, "{}", finished.stderr);
    assert!(!finished.stderr.contains("os error"), "{}", finished.stderr);
    finished.any_dataset().assert_complete();
}

/// Each of them would stop the profiler. `fsize` of the command stays 0: it writes nothing.
#[test]
fn soft_limits_do_not_hinder_a_user() {
    let limits = [
        "--as=150000000:",
        "--data=10000000:",
        "--fsize=0:",
        "--nofile=16:",
        "--nproc=1:",
        "--stack=131072:",
    ];
    assert_unharmed(&of_user(&limits).command(&["sh", "-c", "exit 7"]).finish());
}

/// Hard limits of the command are not those of the profiler of root.
#[test]
fn hard_limits_of_a_command_do_not_hinder_root() {
    let limits = [
        "prlimit",
        "--as=150000000:150000000",
        "--data=10000000:10000000",
        "--fsize=0:0",
        "--nofile=16:16",
    ];
    let profiler = Profiler::wrapped_in(&limits);
    let finished = profiler.command(&["sh", "-c", "exit 7"]).finish();
    let mut raise = Command::new("prlimit");
    raise.args(["--nofile=16:16", "prlimit", "--nofile=17:17", "true"]);
    raise.stderr(Stdio::null());
    if raise.status().expect("prlimit starts").success() {
        assert_unharmed(&finished);
    } else {
        // Root of some containers lacks `CAP_SYS_RESOURCE`.
        finished.assert_refused(4, "ulimit");
    }
}

/// One line with the limit and the remedy, before the command exists.
#[test]
fn too_low_limits_are_refused() {
    for (limit, remedy) in [
        ("--as=120000000:120000000", "ulimit -v"),
        ("--data=20000000:20000000", "ulimit -d"),
        ("--nofile=8:8", "ulimit -n"),
        ("--nofile=32:32", "ulimit -n"),
        ("--nofile=64:64", "ulimit -n"),
        ("--nproc=1:1", "ulimit -u"),
        ("--nproc=8:8", "ulimit -u"),
        ("--stack=262144:262144", "ulimit -s"),
    ] {
        let finished = of_user(&[limit]).command(&["echo", "started"]).finish();
        assert_eq!(finished.stdout, "", "{limit}: {}", finished.stderr);
        finished.assert_refused(4, remedy);
    }
    // Without the remedy of a limit: that of a file is known only when it is written.
    let finished = of_user(&["--fsize=100:100"])
        .command(&["echo", "started"])
        .finish();
    assert_eq!(finished.stdout, "", "{}", finished.stderr);
    finished.assert_refused(5, "ulimit -f");
}

/// The numbers that are named as the remedy suffice.
#[test]
fn the_named_limit_suffices() {
    for option in ["nofile", "as", "data"] {
        let low = if option == "nofile" { 32 } else { 120_000_000 };
        let low = if option == "data" { 20_000_000 } else { low };
        let refused = of_user(&[&format!("--{option}={low}:{low}")])
            .command(&["true"])
            .finish();
        let named = refused.stderr.split("ulimit -").nth(1);
        let number: u64 = named
            .and_then(|named| named.split([' ', ',', ')']).nth(1))
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("{option}: {}", refused.stderr));
        let unit = if option == "nofile" { 1 } else { 1024 };
        let enough = number * unit;
        let finished = of_user(&[&format!("--{option}={enough}:{enough}")])
            .command(&["sh", "-c", "exit 7"])
            .finish();
        assert_unharmed(&finished);
    }
}

/// Each CPU on which the target can run has a buffer of task records, wherever the profiler runs.
#[test]
fn many_cpus_need_more_files() {
    let sysfs = tempfile::tempdir().expect("a directory");
    fs::set_permissions(sysfs.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    let cpus = sysfs.path().join("devices/system/cpu");
    fs::create_dir_all(&cpus).expect("created");
    fs::write(cpus.join("online"), "0-255\n").expect("written");
    let sysfs = sysfs.path().to_str().expect("UTF-8");
    let pid = std::process::id().to_string();
    let wrapper = [
        &USER[..],
        &["prlimit", "--nofile=400:400", "taskset", "-c", "0"],
    ]
    .concat();
    Profiler::in_directory_for_all(&wrapper)
        .args(["--sysfs", sysfs, "--pid", &pid])
        .finish()
        .assert_refused(4, "ulimit -n");
}

/// As on a full disk: rows wait in memory, and nothing is lost.
#[test]
fn journals_can_reach_the_limit_of_files() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let mut profiler = Profiler::wrapped_in(&["prlimit", "--fsize=131072:131072"])
        .args(["-i", "5ms"])
        .pid(workload.pid())
        .start();
    profiler.wait_for("writing the journal: File too large");
    let finished = profiler.interrupt();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    finished.dataset().assert_complete();
}

/// The profiler ignores the signal, its command does not.
#[test]
fn a_command_is_killed_at_its_limit_of_files() {
    let script = "ulimit -f 0; echo text > \"$0\"; exit 7";
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    let file = file.to_str().expect("UTF-8");
    let finished = Profiler::new()
        .command(&["sh", "-c", script, file])
        .finish();
    let killed = 128 + rustix::process::Signal::XFSZ.as_raw();
    assert_eq!(finished.code(), killed, "{}", finished.stderr);
    finished.any_dataset().assert_complete();
}

/// At a hard limit, the kernel kills without a warning: the profiler ends before.
#[test]
fn the_hard_limit_of_cpu_time_ends_a_run_in_order() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let finished = Profiler::wrapped_in(&["prlimit", "--cpu=2:2"])
        .args(["-i", "1ms"])
        .pid(workload.pid())
        .finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert!(finished.stderr.contains("ulimit -t"), "{}", finished.stderr);
    finished.dataset().assert_complete();
}

/// Without buffers, records are missing, and a run says which limit that is.
#[test]
fn used_up_locked_memory_is_reported() {
    // The memory is that of all profilers of a user.
    let user = USER.map(|word| word.replace("54321", "54322"));
    let user = user.each_ref().map(String::as_str);
    let start = || {
        let wrapper = [&user[..], &["prlimit", "--memlock=0:0"]].concat();
        let profiler = Profiler::in_directory_for_all(&wrapper).args(["-i", "1s"]);
        profiler.command(&["sleep", "infinity"]).start()
    };
    let mut running = vec![start()];
    while !running.last().expect("one").stderr().contains("ulimit -l") {
        assert!(running.len() < 64, "{}", running[0].stderr());
        running.push(start());
    }
    let last = running.pop().expect("one");
    assert!(last.stderr().contains("are missing"), "{}", last.stderr());
    for profiler in running {
        assert!(!profiler.stderr().contains("ulimit -l"));
        profiler.kill();
    }
    last.kill();
}

/// The profiler cannot go on. Its command does, and what was in the journal is kept.
#[test]
fn a_command_and_the_journal_survive_when_memory_is_used_up() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let go = directory.path().join("go");
    let script = "until [ -e \"$0\" ]; do sleep 0.05; done; echo ended";
    let running = Profiler::new()
        .args(["-i", "20ms"])
        .command(&["sh", "-c", script, go.to_str().expect("UTF-8")])
        .start();
    let run = running.run_dir();
    let length = || {
        let hosts = run.join("system").read_dir().into_iter().flatten();
        let journals = hosts
            .flatten()
            .map(|host| host.path().join("_part-00000.arrows"));
        let lengths = journals.filter_map(|path| path.metadata().ok());
        lengths.map(|journal| journal.len()).sum::<u64>()
    };
    wait_until("there is a journal", || length() != 0);
    // Its beginning has no rows.
    for _ in 0..2 {
        let before = length();
        wait_until("the journal grows", || length() > before);
    }
    let limited = Command::new("prlimit")
        .args(["--data=1:1", "--pid", &running.pid().to_string()])
        .status();
    assert!(limited.expect("prlimit starts").success());
    fs::write(&go, "").expect("a file");
    let finished = running.finish();
    assert_eq!(finished.stdout, "ended\n", "{}", finished.stderr);
    crate::crash::recover(&run);
    let samples: u64 = finished.any_dataset().value("SELECT count(*) FROM system");
    assert_ne!(samples, 0, "{}", finished.stderr);
}

/// Its processes for clients would have the same limits.
#[test]
fn a_service_with_a_too_low_limit_is_refused() {
    let directory = tempfile::TempDir::new().expect("a directory");
    for (limit, remedy) in [
        ("--nofile=8:8", "ulimit -n"),
        ("--nofile=64:64", "ulimit -n"),
        ("--as=120000000:120000000", "ulimit -v"),
    ] {
        let refused = Command::new("prlimit")
            .args([limit, &setting("PROFILER_BIN"), "serve", "--socket"])
            .arg(directory.path().join("socket"))
            .output()
            .expect("prlimit starts");
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(4), "{limit}: {stderr}");
        assert!(stderr.contains(remedy), "{limit}: {stderr}");
    }
}

/// What threads would do at the end is done by the first one.
#[test]
fn a_run_ends_in_order_without_further_threads() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let go = directory.path().join("go");
    let script = "until [ -e \"$0\" ]; do read -r _ < /proc/uptime; done; exit 7";
    let running = of_user(&["--core=0"])
        .command(&["sh", "-c", script, go.to_str().expect("UTF-8")])
        .start();
    let pid = running.pid().to_string();
    let limited = Command::new(USER[0])
        .args(&USER[1..])
        .args(["prlimit", "--nproc=1:1", "--pid", &pid])
        .status();
    assert!(limited.expect("prlimit starts").success());
    fs::write(&go, "").expect("a file");
    assert_unharmed(&running.finish());
}

/// Threads that exist do not wait for those that cannot be created.
#[test]
fn ceilings_without_threads_are_refused() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let binary = directory.path().join("profiler");
    fs::copy(setting("PROFILER_BIN"), &binary).expect("a copy");
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(directory.path(), all).expect("our directory");
    let refused = Command::new(USER[0])
        .args(&USER[1..])
        .args(["prlimit", "--nproc=2:2"])
        .arg(binary)
        .args(["ceilings", "--force", "--output"])
        .arg(directory.path().join("ceilings"))
        .output()
        .expect("setpriv starts");
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("a thread on each"), "{stderr}");
}
