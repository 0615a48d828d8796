//! Storms of an hour, and a thousand kills. Run by `cargo xtask test soak`.
//!
//! `PROFILER_SOAK_SECONDS` and `PROFILER_SOAK_KILLS` make it shorter.

use std::{
    fs,
    io::Write as _,
    os::unix::net::UnixDatagram,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{scope, sleep},
    time::{Duration, Instant},
};

use e2e::{
    procfs,
    runs::{Kept, Profiler, Running},
};

use crate::{WORKLOAD, cgroup::Group, crash};

fn number(variable: &str, usual: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(usual, |number| number.parse().expect("a number"))
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Until every table has been written a few times, and the allocator has what it needs for that.
const WARM_UP: Duration = Duration::from_secs(30);

/// Profiles the node during a storm, which goes on until the flag is set. From the first quarter to the last one,
/// resident memory grows by less than 8 MiB and a tenth.
fn assert_memory_flat(storm: impl FnOnce(&Running, &AtomicBool) + Send) {
    let duration = Duration::from_secs(number("PROFILER_SOAK_SECONDS", 3600));
    let running = Profiler::new()
        .args(["--node", "--checkpoint", "5s"])
        .start();
    let over = AtomicBool::new(false);
    let mut resident = Vec::new();
    scope(|scope| {
        let (running, over) = (&running, &over);
        scope.spawn(move || storm(running, over));
        sleep(WARM_UP);
        let begin = Instant::now();
        while begin.elapsed() < duration {
            sleep(Duration::from_millis(250));
            resident.push(procfs::number(running.pid(), "status", "VmRSS") * 1024);
        }
        over.store(true, Ordering::Relaxed);
    });
    let quarter = resident.len() / 4;
    let early = median(resident[..quarter].to_vec());
    let late = median(resident[3 * quarter..].to_vec());
    println!("resident: {early} bytes early, {late} bytes late");
    let run = running.interrupt();
    assert!(late < early + early / 10 + (8 << 20), "{early} to {late}");
    run.dataset().assert_complete();
}

fn until(over: &AtomicBool, mut act: impl FnMut()) {
    while !over.load(Ordering::Relaxed) {
        act();
    }
}

#[test]
fn a_fork_storm() {
    assert_memory_flat(|_, over| {
        let _storm = Kept::spawn(&[WORKLOAD, "forks", "5000"]);
        until(over, || sleep(Duration::from_millis(100)));
    });
}

/// Each cgroup has a process that writes to a file system and ends.
#[test]
fn changing_cgroups() {
    let group = Group::new(&["-t", "cgroup2"]);
    let folder = tempfile::TempDir::new().expect("a directory");
    assert_memory_flat(|_, over| {
        let mut number = 0;
        until(over, || {
            number += 1;
            let cgroup = group.outer().join(format!("storm-{number}"));
            fs::create_dir(&cgroup).expect("a cgroup");
            let script = "echo 0 > \"$0/cgroup.procs\"; \
                          dd if=/dev/zero of=\"$1/file\" bs=64k count=4 conv=fsync status=none";
            let status = Command::new("sh")
                .args(["-c", script])
                .args([cgroup.as_path(), folder.path()])
                .status();
            assert!(status.expect("a shell").success());
            // It stays busy for a moment after its last member.
            while fs::remove_dir(&cgroup).is_err() {
                sleep(Duration::from_millis(1));
            }
        });
    });
}

#[test]
fn a_storm_of_marks() {
    assert_memory_flat(|running, over| {
        let manifest = fs::read(running.run_dir().join("run.json")).expect("run.json");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        let path = manifest["socket"].as_str().expect("a socket").to_owned();
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.connect(path).expect("it listens");
        socket.set_nonblocking(true).expect("a socket");
        let mut number = 0_u64;
        until(over, || {
            for _ in 0..50 {
                number += 1;
                let mut mark = Vec::new();
                write!(mark, r#"{{"op":"event","name":"storm-{number}"}}"#).expect("memory");
                // Full: the profiler is behind.
                let _ = socket.send(&mark);
            }
            sleep(Duration::from_millis(10));
        });
    });
}

#[test]
fn random_kills() {
    crash::kill_and_recover(number("PROFILER_SOAK_KILLS", 1000));
}
