//! Figures of a recording without the rows of sleeping processes are those of a full one.

use std::process::{Command, Stdio};

use e2e::{
    dataset::Dataset,
    mounts::directory,
    runs::{Finished, Profiler, Running, wait_until},
    setting,
    writer::Writer,
};

use super::{compare, report::assert_plots_equal_their_sql};

const PROCESSES: usize = 8;
const ROUNDS: u64 = 5;
const BYTES: [u8; 5000] = [b'x'; 5000];

/// Two recordings of processes that sleep most of the time: sparse and full.
fn recordings() -> [Finished; 2] {
    let directory = directory();
    let path = |number: usize| directory.path().join(number.to_string());
    let mut processes: Vec<_> = (0..PROCESSES).map(|n| Writer::start(path(n))).collect();
    let runs = ["on", "off"].map(|switch| {
        let mut profiler =
            Profiler::new().args(["-i", "50ms", "--sparse", switch, "--checkpoint", "200ms"]);
        for process in &processes {
            profiler = profiler.pid(process.pid());
        }
        profiler.start()
    });
    let data = runs.each_ref().map(|run| Dataset::new(run.run_dir()));
    let pass = |samples| {
        for data in &data {
            data.wait_for_samples("system", samples);
        }
    };
    pass(5);
    for round in 1..=ROUNDS {
        let writer = &mut processes[0];
        writer.write(&BYTES);
        let bytes = round * BYTES.len() as u64;
        wait_until("the bytes are in the file", || writer.written() == bytes);
        pass(5);
    }
    for ending in processes.drain(PROCESSES / 2..) {
        ending.end();
    }
    pass(5);
    runs.map(Running::interrupt)
}

/// Totals that depend on the processes alone.
const EXACT: [&str; 8] = [
    "cpu_s",
    "max_process_rss_bytes",
    "minor_faults",
    "peak_rss_bytes",
    "processes",
    "read_write_calls",
    "storage_write_bytes",
    "voluntary_switches",
];

#[test]
fn figures_are_those_of_a_full_recording() {
    let runs = recordings();
    let data = runs.each_ref().map(Finished::dataset);
    let counts = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table}");
        data.each_ref().map(|data| data.value::<u64>(&sql))
    };
    for table in ["usage", "sched"] {
        let filled = format!("{table}_filled");
        let ([sparse, full], all) = (counts(table), counts(&filled));
        assert!(sparse < full / 2, "{sparse} of {full}");
        assert_eq!(all[1], full);
        for data in &data {
            assert_sums_are_the_same(data, table, &filled);
            assert_exported(data, table, &filled);
        }
    }
    let memory = "SELECT ts, sum(rss)::UBIGINT AS rss FROM usage_filled GROUP BY ts";
    let differs = format!(
        "SELECT count(*) FROM timeline JOIN ({memory}) USING (ts) WHERE target_rss_sum IS DISTINCT FROM rss"
    );
    assert_eq!(
        data.each_ref().map(|data| data.value::<u64>(&differs)),
        [0, 0]
    );
    let numbers = data.each_ref().map(numbers_of_processes);
    for numbers in &numbers {
        // The ends of some processes can be in one sample, and those of the others in the next one.
        assert_eq!(numbers.first(), Some(&PROCESSES), "{numbers:?}");
        assert_eq!(numbers.last(), Some(&(PROCESSES / 2)), "{numbers:?}");
        assert!(numbers.is_sorted_by(|a, b| a > b), "{numbers:?}");
    }
    let [sparse, full] = data.each_ref().map(|data| data.summary()["total"].clone());
    let [a, b] = data.each_ref().map(|data| data.path().to_owned());
    let compared = compare::document(&[&a], &[&b]);
    for name in EXACT {
        let [sparse, full] = [&sparse, &full].map(|total| total[name].as_f64().expect(name));
        // Sums of numbers of seconds depend on their order.
        let is_same = |value: f64| (value - full).abs() <= 1e-9 * full;
        assert!(is_same(sparse), "{name}: {sparse} {full}");
        let figure = compare::figure(&compared, name);
        for side in ["a", "b"] {
            let value = figure[side]["value"].as_f64();
            assert!(value.is_some_and(is_same), "{figure} {full}");
        }
    }
    let run = data[0].path().to_str().expect("UTF-8");
    assert_plots_equal_their_sql(run, &["memory", "thread-time"]);
    lose_rows(&data[0], "usage");
    assert_sums_are_the_same(&data[0], "usage", "usage_filled");
    assert_exported(&data[0], "usage", "usage_filled");
}

/// Removes every third file of a table.
fn lose_rows(data: &Dataset, table: &str) {
    let hosts = std::fs::read_dir(data.path().join(table)).expect("the table");
    let host = hosts.flatten().next().expect("a host").path();
    let files = std::fs::read_dir(host).expect("the files").flatten();
    let mut files: Vec<_> = files.map(|file| file.path()).collect();
    files.sort_unstable();
    let lost = files.chunks_exact(3).map(|files| &files[1]);
    let lost: Vec<_> = lost.collect();
    assert!(!lost.is_empty(), "{files:?}");
    for file in lost {
        std::fs::remove_file(file).expect("removed");
    }
}

/// Processes that sleep until the profiler is killed have a row at its last sample.
#[test]
fn killed_recordings_are_filled_until_their_last_sample() {
    let directory = directory();
    let path = |number: usize| directory.path().join(number.to_string());
    let processes: Vec<_> = (0..PROCESSES).map(|n| Writer::start(path(n))).collect();
    let sources = "process,usage,sched,system";
    let mut profiler = Profiler::new().args(["-i", "50ms", "--sparse", "on", "--source", sources]);
    for process in &processes {
        profiler = profiler.pid(process.pid());
    }
    let run = profiler.start();
    Dataset::new(run.run_dir()).wait_for_samples("system", 10);
    let killed = run.kill();
    let data = killed.any_dataset();
    let recovered = Command::new(setting("PROFILER_BIN"))
        .arg("recover")
        .arg(data.path())
        .stdout(Stdio::null())
        .status();
    assert!(recovered.expect("the profiler").success());
    assert_eq!(numbers_of_processes(&data), [PROCESSES]);
    let last = |table: &str| data.value::<i64>(&format!("SELECT epoch_us(max(ts)) FROM {table}"));
    assert_eq!(last("usage_filled"), last("system"));
    assert_exported(&data, "usage", "usage_filled");
}

/// Numbers of processes with a row at a sample, one after another.
fn numbers_of_processes(data: &Dataset) -> Vec<usize> {
    let counts = "SELECT ts, count(*) AS n FROM usage_filled GROUP BY ts";
    let before = format!("SELECT ts, n, lag(n) OVER (ORDER BY ts) AS before FROM ({counts})");
    data.value(&format!(
        "SELECT list(n ORDER BY ts) FROM ({before}) WHERE n IS DISTINCT FROM before"
    ))
}

/// Filled rows add no time, and none is lost.
fn assert_sums_are_the_same(data: &Dataset, table: &str, filled: &str) {
    let sums = |of: &str| {
        let sql =
            format!("SELECT pid, sum(interval_ns)::UBIGINT FROM {of} GROUP BY pid ORDER BY pid");
        data.rows::<(u32, u64)>(&sql)
    };
    assert_eq!(sums(table), sums(filled));
}

/// The rows that the profiler fills are those of the view.
fn assert_exported(data: &Dataset, table: &str, filled: &str) {
    let directory = directory();
    let file = directory.path().join("exported.parquet");
    let status = Command::new(setting("PROFILER_BIN"))
        .args(["export", "parquet", "--table", table, "-o"])
        .args([&file, data.path()])
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("the profiler").success());
    let rows = |of: &str| format!("SELECT * EXCLUDE (host, run) FROM {of}");
    let [exported, view] = [rows(&format!("'{}'", file.display())), rows(filled)];
    for (all, others) in [(&exported, &view), (&view, &exported)] {
        let missing = format!("SELECT count(*) FROM ({all} EXCEPT ALL {others})");
        assert_eq!(data.value::<u64>(&missing), 0, "{table}");
    }
}
