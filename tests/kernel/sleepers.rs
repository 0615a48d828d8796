//! Readings leave out processes that sleep; nothing of them is lost.

use e2e::{
    dataset::Dataset,
    mounts::directory,
    rows::Row,
    runs::{Finished, Profiler, wait_until},
    writer::Writer,
};

const SLEEPERS: usize = 20;
const BYTES: [u8; 1000] = [b'x'; 1000];

/// Processes that sleep, of which one writes between samples and one ends.
struct Recorded {
    finished: Finished,
    writer: u64,
    ended: u64,
    others: Vec<u64>,
}

impl Recorded {
    fn with(args: &[&str]) -> Self {
        let directory = directory();
        let path = |number: usize| directory.path().join(number.to_string());
        let mut sleepers: Vec<_> = (0..SLEEPERS).map(|n| Writer::start(path(n))).collect();
        let mut profiler =
            Profiler::new().args(["-i", "20ms", "--source", "process,usage,sched,system"]);
        for sleeper in &sleepers {
            profiler = profiler.pid(sleeper.pid());
        }
        let run = profiler.args(args).start();
        let data = Dataset::new(run.run_dir());
        data.wait_for_samples("system", 10);
        let (mut writer, ended) = (sleepers.remove(0), sleepers.remove(0));
        writer.write(&BYTES);
        wait_until("the bytes are in the file", || {
            writer.written() == BYTES.len() as u64
        });
        data.wait_for_samples("system", 10);
        let pids = [&writer, &ended].map(|process| u64::from(process.pid()));
        ended.end();
        data.wait_for_samples("system", 10);
        let finished = run.interrupt();
        Self {
            finished,
            writer: pids[0],
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

fn check(args: &[&str], has_all_rows: bool) {
    let recorded = Recorded::with(args);
    let samples = recorded.finished.dataset().table("system").len();
    for &pid in &recorded.others {
        let rows = recorded.check_times(pid);
        // The first reading is the baseline. Then: the record of a sleeping process, memory details, the
        // last one.
        let expected = if has_all_rows {
            samples - 2..=samples
        } else {
            1..=8
        };
        assert!(expected.contains(&rows), "{pid}: {rows} of {samples}");
        let states = recorded.rows("usage", pid);
        assert!(states.iter().all(|row| row.text("state") == Some("S")));
    }
    recorded.check_times(recorded.writer);
    let written = recorded.rows("usage", recorded.writer);
    let written = written.iter().filter_map(|row| row.u64("write_chars"));
    let written: Vec<u64> = written.filter(|bytes| *bytes != 0).collect();
    assert_eq!(written, [BYTES.len() as u64]);
    let last = recorded.rows("usage", recorded.ended).pop();
    let last = last.expect("a row");
    assert_eq!(last.text("state"), Some("X"));
}

#[test]
fn sleeping_processes_have_all_rows() {
    check(&[], true);
}

#[test]
fn rows_of_sleeping_processes_can_be_left_out() {
    check(&["--sparse", "on"], false);
}
