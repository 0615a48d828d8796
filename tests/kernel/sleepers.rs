//! Readings leave out processes that sleep; nothing of them is lost.

use std::time::{SystemTime, UNIX_EPOCH};

use e2e::{
    dataset::Dataset,
    mounts::directory,
    rows::Row,
    runs::{Finished, Profiler, wait_until},
    writer::Writer,
};

use crate::{kernel_release, programs::count_runs};

const BYTES: [u8; 1000] = [b'x'; 1000];

/// Wall clock, ns.
fn now() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let ns = since_epoch.expect("after 1970").as_nanos();
    i64::try_from(ns).expect("before 2262")
}

const SOURCES: &str = "process,usage,sched,system,overhead";

#[derive(Clone, Copy)]
enum Target {
    Node,
    Sleepers,
}

/// Processes that sleep, of which one writes between samples and one ends.
struct Recorded {
    finished: Finished,
    writer: u64,
    /// Before and after the write.
    written: [i64; 2],
    ended: u64,
    others: Vec<u64>,
}

impl Recorded {
    /// With so many processes, and the node or these as the target.
    fn with(sleepers: usize, target: Target, args: &[&str]) -> Self {
        let directory = directory();
        let path = |number: usize| directory.path().join(number.to_string());
        let mut sleepers: Vec<_> = (0..sleepers).map(|n| Writer::start(path(n))).collect();
        let mut profiler = Profiler::new().args(["-i", "20ms", "--source", SOURCES]);
        match target {
            Target::Node => profiler = profiler.args(["--node"]),
            Target::Sleepers => {
                for sleeper in &sleepers {
                    profiler = profiler.pid(sleeper.pid());
                }
            }
        }
        let run = profiler.args(args).start();
        let data = Dataset::new(run.run_dir());
        data.wait_for_samples("system", 10);
        let (mut writer, ended) = (sleepers.remove(0), sleepers.remove(0));
        let before = now();
        writer.write(&BYTES);
        wait_until("the bytes are in the file", || {
            writer.written() == BYTES.len() as u64
        });
        let written = [before, now()];
        data.wait_for_samples("system", 10);
        let pids = [&writer, &ended].map(|process| u64::from(process.pid()));
        ended.end();
        data.wait_for_samples("system", 10);
        let finished = run.interrupt();
        Self {
            finished,
            writer: pids[0],
            written,
            ended: pids[1],
            others: sleepers
                .iter()
                .map(|sleeper| sleeper.pid().into())
                .collect(),
        }
    }

    fn rows(&self, table: &str, pid: u64) -> Vec<Row> {
        let mut rows = self.finished.dataset().table(table);
        rows.retain(|row| row.u64("pid") == Some(pid));
        rows
    }

    /// The rows of a process follow one another, and its times add up to theirs. Returns their number.
    fn check_times(&self, pid: u64) -> usize {
        let rows = self.rows("sched", pid);
        let sum = |column: &str| {
            rows.iter()
                .map(|row| row.u64(column).expect("known"))
                .sum::<u64>()
        };
        let interval = sum("interval_ns");
        let states = ["oncpu_ns", "runqueue_ns", "sleep_ns", "blocked_ns"].map(sum);
        let difference = interval.abs_diff(states.iter().sum());
        // Clocks of CPUs, and the time between the begin of a reading and that of its first task.
        assert!(difference < interval / 20, "{pid}: {interval} {states:?}");
        let end = |row: &Row| row.i64("ts").expect("known");
        let begin = |row: &Row| end(row) - row.u64("interval_ns").expect("known").cast_signed();
        // The last sample has the time after its reading.
        let with_times = &rows[..rows.len() - 1];
        for pair in with_times.windows(2) {
            let (before, begin) = (end(&pair[0]), begin(&pair[1]));
            assert!(begin.abs_diff(before) <= 2000, "{pid}: {before} {begin}");
        }
        rows.len()
    }
}

fn check(recorded: &Recorded, has_all_rows: bool) {
    let samples = recorded.finished.dataset().table("system");
    let samples: Vec<_> = samples.iter().filter_map(|row| row.i64("ts")).collect();
    for &pid in &recorded.others {
        let rows = recorded.check_times(pid);
        // The first reading is the baseline. Then: the record of a sleeping process, memory details, the
        // last one.
        let expected = if has_all_rows {
            samples.len() - 2..=samples.len()
        } else {
            1..=8
        };
        assert!(
            expected.contains(&rows),
            "{pid}: {rows} of {}",
            samples.len()
        );
        let states = recorded.rows("usage", pid);
        assert!(states.iter().all(|row| row.text("state") == Some("S")));
    }
    recorded.check_times(recorded.writer);
    let mut written = recorded.rows("usage", recorded.writer);
    written.retain(|row| row.u64("write_chars") != Some(0));
    let [written] = &written[..] else {
        panic!("several writes: {written:?}");
    };
    assert_eq!(written.u64("write_chars"), Some(BYTES.len() as u64));
    let sample = written.i64("ts").expect("known");
    let [before, after] = recorded.written;
    // It can write between the time of a sample and its visit.
    let earliest = samples.iter().rfind(|sample| **sample < before);
    let latest = samples.iter().find(|sample| **sample >= after);
    let expected = *earliest.expect("a sample")..=*latest.expect("a sample");
    assert!(expected.contains(&sample), "{sample} not in {expected:?}");
    let last = recorded.rows("usage", recorded.ended).pop();
    let last = last.expect("a row");
    assert_eq!(last.text("state"), Some("X"));
}

#[test]
fn sleeping_processes_have_all_rows() {
    check(&Recorded::with(20, Target::Sleepers, &[]), true);
}

#[test]
fn rows_of_sleeping_processes_can_be_left_out() {
    let recorded = Recorded::with(20, Target::Sleepers, &["--sparse", "on"]);
    check(&recorded, false);
}

/// Linux whose iterators can be limited to a process.
const LIMITS_ITERATORS: [u32; 2] = [6, 1];

#[test]
fn reading_of_a_node_visits_processes_that_have_run() {
    const SLEEPERS: usize = 100;
    let _counted = count_runs();
    let recorded = Recorded::with(SLEEPERS, Target::Node, &[]);
    check(&recorded, false);
    let mut visits = recorded.finished.dataset().table("overhead");
    visits.retain(|row| row.text("component") == Some("sample"));
    let visits: Vec<u64> = visits.iter().filter_map(|row| row.u64("runs")).collect();
    let least = visits.iter().min().expect("samples");
    let is_less = *least < SLEEPERS as u64;
    assert_eq!(is_less, kernel_release() >= LIMITS_ITERATORS, "{visits:?}");
}
