//! An hour of load by processes, cgroups and marks, a thousand kills, and a hundred comparisons of
//! equal programs: `cargo xtask test soak`.
//!
//! `PROFILER_SOAK_SECONDS`, `PROFILER_SOAK_KILLS` and `PROFILER_SOAK_PAIRS` shorten it.

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
    runs::{ProcessGroup, Profiler, Running},
};

use crate::{WORKLOAD, cgroup::Group, compact, compare, crash};

fn number(variable: &str, usual: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(usual, |number| number.parse().expect("a number"))
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Time until every table has been written several times and the allocator has reached its size.
const WARM_UP: Duration = Duration::from_secs(30);

/// Starts processes, cgroups and marks faster than the profiler can process them. From the first to
/// the last quarter, resident memory grows by less than 8 MiB plus 10 %.
#[test]
fn storms_leave_memory_flat() {
    let duration = Duration::from_secs(number("PROFILER_SOAK_SECONDS", 3600));
    let group = Group::new(&["-t", "cgroup2"]);
    let running = Profiler::new()
        .args(["--node", "--checkpoint", "5s"])
        .start();
    let over = AtomicBool::new(false);
    let mut resident = Vec::new();
    let storms = scope(|scope| {
        let (running, group, over) = (&running, &group, &over);
        let _forks = ProcessGroup::spawn(&[WORKLOAD, "forks", "5000"]);
        let cgroups = scope.spawn(move || changing_cgroups(group, over));
        let marks = scope.spawn(move || marks(running, over));
        let end = End(over);
        sleep(WARM_UP);
        let begin = Instant::now();
        while begin.elapsed() < duration {
            sleep(Duration::from_millis(250));
            resident.push(procfs::number(running.pid(), "status", "VmRSS") * 1024);
        }
        drop(end);
        [cgroups, marks].map(|storm| storm.join().expect("a storm"))
    });
    let quarter = resident.len() / 4;
    let early = median(resident[..quarter].to_vec());
    let late = median(resident[3 * quarter..].to_vec());
    let run = running.interrupt();
    let data = run.dataset();
    data.assert_complete();
    let processes: u64 = data.value("SELECT count(*) FROM process");
    let [cgroups, marks] = storms;
    println!(
        "{} s: {processes} processes, {cgroups} cgroups, {marks} marks; resident {early} bytes early, {late} bytes late",
        duration.as_secs()
    );
    assert!(late < early + early / 10 + (8 << 20), "{early} to {late}");
    for (count, per_second) in [(processes, 1000), (cgroups, 10), (marks, 1000)] {
        assert!(count > per_second * duration.as_secs(), "no storm: {count}");
    }
}

/// Stops the load when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Creates cgroups, each with a process that writes to a file system and ends; returns their
/// number.
fn changing_cgroups(group: &Group, over: &AtomicBool) -> u64 {
    let directory = tempfile::TempDir::new().expect("a directory");
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let cgroup = group.outer().join(format!("storm-{number}"));
        fs::create_dir(&cgroup).expect("a cgroup");
        let script = "echo 0 > \"$0/cgroup.procs\"; \
                      dd if=/dev/zero of=\"$1/file\" bs=64k count=4 conv=fsync status=none";
        let status = Command::new("sh")
            .args(["-c", script])
            .args([cgroup.as_path(), directory.path()])
            .status();
        assert!(status.expect("a shell").success());
        // A cgroup stays busy for a moment after its last member has ended.
        while fs::remove_dir(&cgroup).is_err() {
            sleep(Duration::from_millis(1));
        }
    }
    number
}

/// Sends 5,000 marks per second with distinct names; returns their number.
fn marks(running: &Running, over: &AtomicBool) -> u64 {
    let manifest = fs::read(running.run_dir().join("run.json")).expect("run.json");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let path = manifest["socket"].as_str().expect("a socket").to_owned();
    let socket = UnixDatagram::unbound().expect("a socket");
    socket.connect(path).expect("it listens");
    socket.set_nonblocking(true).expect("a socket");
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        for _ in 0..50 {
            number += 1;
            let mut mark = Vec::new();
            write!(mark, r#"{{"op":"event","name":"storm-{number}"}}"#).expect("memory");
            // The socket is full.
            let _ = socket.send(&mark);
        }
        sleep(Duration::from_millis(10));
    }
    number
}

#[test]
fn random_kills() {
    crash::kill_and_recover(number("PROFILER_SOAK_KILLS", 1000));
}

#[test]
fn random_kills_of_compactions() {
    compact::kill_compactions(number("PROFILER_SOAK_KILLS", 1000));
}

/// Least number of alarms of `pairs` comparisons that a rate of 5 % exceeds in less than one of 1,000
/// cases.
fn most_alarms(pairs: u64) -> u64 {
    let pairs_f = pairs as f64;
    let mut probability = 0.95_f64.powf(pairs_f);
    let mut below = probability;
    let mut alarms = 0;
    while below < 0.999 {
        alarms += 1;
        probability *= (pairs_f - alarms as f64 + 1.0) / alarms as f64 * 0.05 / 0.95;
        below += probability;
    }
    alarms
}

/// Two groups of five runs of the same program differ significantly in a primary figure in at most
/// 5 % of the comparisons. Which of two runs belongs to which group is drawn, so that a machine that
/// becomes slower affects both.
#[test]
fn equal_programs_rarely_differ() {
    const RUNS: usize = 5;
    let pairs = number("PROFILER_SOAK_PAIRS", 100);
    let seed = Instant::now().elapsed().subsec_nanos() ^ std::process::id();
    let mut state = u64::from(seed) | 1;
    let mut toss = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40 & 1 == 1
    };
    let (mut alarms, mut significant) = (0, 0);
    for _ in 0..pairs {
        let directory = tempfile::TempDir::new().expect("a directory");
        let mut sides = [Vec::new(), Vec::new()];
        for number in 0..RUNS {
            let first = usize::from(toss());
            for side in [first, 1 - first] {
                let name = format!("{side}-{number}");
                let command = [WORKLOAD, "cpu", "20"];
                sides[side].push(compare::record(directory.path(), &name, &[], &command));
            }
        }
        let [a, b] = sides.each_ref().map(|runs| runs.iter().collect::<Vec<_>>());
        let found = compare::document(&a, &b);
        let primary = compare::primary(&found);
        assert!(primary.len() >= 3, "{found}");
        let is_alarm = |figure: &&serde_json::Value| figure["verdict"] != "same";
        let is_significant = |figure: &&serde_json::Value| figure["p"].as_f64() <= Some(0.05);
        alarms += u64::from(primary.iter().any(is_alarm));
        significant += u64::from(primary.iter().any(is_significant));
    }
    println!("{alarms} alarms, {significant} comparisons with p ≤ 0.05, of {pairs}");
    let most = most_alarms(pairs);
    assert!(
        significant <= most,
        "{significant} of {pairs}, at most {most}"
    );
}
