//! Counters of a PMU, with workloads of known numbers of instructions: `cargo xtask test counters`.

use std::{collections::BTreeSet, time::Duration};

use e2e::{
    procfs::Reading,
    rows::Row,
    runs::{Finished, Profiler},
    workload_driver::WorkloadDriver,
};

mod roofline;
mod timeline;
mod verdict;

use crate::{
    WORKLOAD,
    perf::{counts, raw},
};

/// Instructions per round of `spin`.
const PER_ROUND: u64 = 2;

/// Raw code of retired instructions: INST_RETIRED on Arm, INST_RETIRED.ANY_P and ex_ret_instr on
/// x86.
const INSTRUCTIONS: &str = if cfg!(target_arch = "aarch64") {
    "0x8"
} else {
    "0xc0"
};

/// Sizes of groups that exceed the counters. Arm: more than the six counters of the emulated PMU
/// and the cycle counter. x86: more than the ten programmable counters of the largest known core
/// and the fixed counter of instructions.
const TOO_MANY: [usize; 2] = if cfg!(target_arch = "aarch64") {
    [7, 9]
} else {
    [12, 16]
};

fn assert_near(found: f64, truth: u64, percent: u64) {
    let off = (found - truth as f64).abs();
    assert!(
        off * 100.0 <= truth as f64 * percent as f64,
        "{found}, not {truth} ± {percent} %"
    );
}

/// The difference of two runs excludes constant parts such as the start of the program.
fn assert_difference(run: impl Fn(u64) -> u64, spins: u64) {
    let (few, many) = (10_000_000, 30_000_000);
    let (less, more) = (run(few), run(many));
    assert_near((more - less) as f64, (many - few) * PER_ROUND * spins, 1);
}

/// Rounds of `spin` that take about this much CPU time here, from a shorter measurement.
fn rounds_of(time: Duration) -> u64 {
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let mut rounds: u64 = 1_000_000;
    loop {
        let used =
            |workload: &WorkloadDriver| Reading::now(workload.pid()).sum(|thread| thread.oncpu_ns);
        let before = used(&workload);
        workload.run(&format!("spin {rounds}"));
        let took = u128::from(used(&workload) - before);
        if took >= Duration::from_millis(100).as_nanos() {
            let wanted = u128::from(rounds) * time.as_nanos() / took;
            return u64::try_from(wanted).expect("few");
        }
        rounds *= 2;
    }
}

fn instructions(arguments: &[&str]) -> Profiler {
    Profiler::new()
        .args(["--source", "perf", "--events", "instructions:u"])
        .args(arguments)
}

#[test]
fn instruction_count_is_exact() {
    let run = |rounds: u64| {
        let finished = instructions(&[])
            .command(&[WORKLOAD, "spin", &rounds.to_string()])
            .finish();
        for row in counts(&finished, "process", "instructions:u") {
            assert_eq!(row.u64("enabled_ns"), row.u64("running_ns"));
            assert_eq!(row.f64("count"), row.u64("count_raw").map(|raw| raw as f64));
        }
        raw(&finished, "process", "instructions:u")
    };
    assert_difference(run, 1);
}

#[test]
fn threads_and_children_count_once() {
    let run = |rounds: u64| {
        let mut workload = WorkloadDriver::new(WORKLOAD, 2);
        let profiler = instructions(&["-i", "100ms"]).pid(workload.pid()).start();
        for command in ["spin", "spin-all", "spin-late", "spin-child"] {
            workload.run(&format!("{command} {rounds}"));
        }
        let finished = profiler.interrupt();
        raw(&finished, "process", "instructions:u")
    };
    // One thread, two threads, one, one.
    assert_difference(run, 5);
}

#[test]
fn ended_process_is_counted_to_the_end() {
    let run = |rounds: u64| {
        let mut workload = WorkloadDriver::new(WORKLOAD, 1);
        let profiler = instructions(&["-i", "1h"]).pid(workload.pid()).start();
        workload.run(&format!("spin-all {rounds}"));
        workload.run(&format!("spin-child {rounds}"));
        workload.send("exit 0");
        let finished = profiler.finish();
        raw(&finished, "process", "instructions:u")
    };
    assert_difference(run, 2);
}

#[test]
fn group_members_share_their_time_running() {
    let finished = Profiler::new()
        .args(["--source", "perf", "--groups", "HW"])
        .command(&[WORKLOAD, "cpu", "100"])
        .finish();
    let dataset = finished.dataset();
    let instructions = counts(&finished, "process", "instructions");
    let cycles = counts(&finished, "process", "cpu-cycles");
    for (a, b) in instructions.iter().zip(&cycles) {
        assert_eq!(a.u64("enabled_ns"), b.u64("enabled_ns"));
        assert_eq!(a.u64("running_ns"), b.u64("running_ns"));
        assert_eq!(a.text("group"), Some("HW"));
    }
    let metrics = dataset.table("perf_metric");
    let ipc = metrics
        .iter()
        .rfind(|row| row.text("metric") == Some("ipc") && row.text("scope") == Some("process"));
    let ipc = ipc.expect("a row");
    let last = |rows: &[Row]| rows.last().and_then(|row| row.f64("count"));
    let expected = last(&instructions).expect("counted") / last(&cycles).expect("counted");
    assert_eq!(ipc.f64("value"), Some(expected));
    assert_eq!(ipc.f64("running_ratio"), Some(1.0));
    assert_eq!(ipc.text("unit"), Some("instructions/cycle"));
}

/// Reason in run.json why the source is limited.
fn why_limited(finished: &Finished) -> String {
    let sources = finished.dataset().manifest()["sources"].clone();
    let mut sources = sources.as_array().expect("a list").iter();
    let perf = sources.find(|source| source["name"] == "perf");
    let why = perf.expect("listed")["why"].as_str();
    why.expect("a reason").to_owned()
}

/// Counts sixteen events, more than there are counters.
fn multiplexed(scope: &[&str], command: &[&str]) -> Finished {
    let events: Vec<String> = (0..16)
        .map(|number| format!("cpu/event={INSTRUCTIONS},name=i{number}/u"))
        .collect();
    Profiler::new()
        .args([
            "--source",
            "perf",
            "-i",
            "200ms",
            "--events",
            &events.join(","),
        ])
        .args(scope)
        .command(command)
        .finish()
}

/// Sizes of PMUs: two counters of a virtual one to eleven of the largest known core.
#[test]
fn excess_events_are_multiplexed() {
    let rounds = rounds_of(Duration::from_secs(2));
    let finished = multiplexed(&[], &[WORKLOAD, "spin", &rounds.to_string()]);
    for number in 0..16 {
        let name = format!("i{number}");
        let rows = counts(&finished, "process", &name);
        // An event that was not scheduled in the short last interval has no value.
        let (known, unknown): (Vec<_>, Vec<_>) =
            rows.iter().partition(|row| row.f64("count").is_some());
        assert!(
            known.len() >= 3 && unknown.len() <= 1,
            "{name}: {}",
            known.len()
        );
        let of = |rows: &[&Row], column| -> u64 {
            rows.iter().map(|row| row.u64(column).expect("known")).sum()
        };
        let value: f64 = known.iter().filter_map(|row| row.f64("count")).sum();
        let missed = of(&unknown, "enabled_ns") as f64 / of(&known, "enabled_ns") as f64;
        assert_near(value * (1.0 + missed), rounds * PER_ROUND, 5);
        let quality = of(&known, "running_ns") as f64 / of(&known, "enabled_ns") as f64;
        assert!((0.1..0.75).contains(&quality), "{name}: {quality}");
        assert!(raw(&finished, "process", &name) < rounds * PER_ROUND * 8 / 10);
    }
}

/// The kernel accepts a group with as many events as counters, but the cycle counter counts only
/// cycles, so that the group would never be scheduled.
#[test]
fn oversized_group_is_split() {
    let events: Vec<String> = (0..TOO_MANY[1])
        .map(|number| format!("cpu/event={INSTRUCTIONS},name=i{number}/u"))
        .collect();
    let rounds = rounds_of(Duration::from_secs(1));
    for count in TOO_MANY {
        let finished = Profiler::new()
            .args(["--source", "perf", "-i", "1h"])
            .args(["--events", &format!("{{{}}}", events[..count].join(","))])
            .command(&[WORKLOAD, "spin", &rounds.to_string()])
            .finish();
        let message = "custom events: more events than counters, multiplexed";
        let why = why_limited(&finished);
        assert!(why.contains(message), "{why}");
        for number in 0..count {
            let rows = counts(&finished, "process", &format!("i{number}"));
            let value = rows.iter().filter_map(|row| row.f64("count")).sum();
            assert_near(value, rounds * PER_ROUND, 5);
        }
    }
}

#[test]
fn cpu_events_count_all_processes() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 2);
    let profiler = instructions(&["--node"]).start();
    let rounds = 50_000_000;
    workload.run(&format!("spin-all {rounds}"));
    let finished = profiler.interrupt();
    let all = raw(&finished, "cpu", "instructions:u");
    let spun = 2 * rounds * PER_ROUND;
    // All other processes, and the profiler itself, execute instructions as well.
    assert!(all >= spun, "{all}, not {spun}");
    // Each CPU counts once at each sample.
    let rows = counts(&finished, "cpu", "instructions:u");
    let of_rows: Vec<_> = rows
        .iter()
        .map(|row| (row.i64("ts"), row.u64("id")))
        .collect();
    let unique: BTreeSet<_> = of_rows.iter().collect();
    assert_eq!(unique.len(), of_rows.len(), "{of_rows:?}");
}

/// An event that no PMU has, writes to the instruction cache, is reported, and the others are counted.
#[test]
fn refused_event_does_not_affect_others() {
    const REFUSED: &str = "icache-writes";
    // PERF_COUNT_HW_CACHE_L1I and PERF_COUNT_HW_CACHE_OP_WRITE
    let events = format!("instructions:u,hw_cache/config=0x101,name={REFUSED}/");
    let finished = Profiler::new()
        .args(["--source", "perf", "--events", &events])
        .command(&[WORKLOAD, "spin", "1000000"])
        .finish();
    assert!(raw(&finished, "process", "instructions:u") >= 1_000_000 * PER_ROUND);
    let table = finished.dataset().table("perf_event");
    assert!(table.iter().all(|row| row.text("event") != Some(REFUSED)));
    assert!(
        finished.stderr.contains("limited: perf"),
        "{}",
        finished.stderr
    );
    let why = why_limited(&finished);
    assert!(why.contains(&format!("{REFUSED}: ")), "{why}");
}
