//! NVIDIA GPUs compared with nvidia-smi, which reads the driver independently, and with work of known
//! size on the first GPU (`cuda_load.py`): `cargo xtask test gpu`.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use e2e::{
    rows::Row,
    runs::{Finished, ProcessGroup, Profiler},
    setting,
};
use serde::Deserialize;

/// Values of one GPU reported by a tool at one time, by our column names.
#[derive(Debug)]
struct Reported {
    at_ns: i64,
    index: u64,
    values: BTreeMap<&'static str, f64>,
}

/// A tool that prints values periodically.
struct Tool {
    child: Child,
    reported: Receiver<Reported>,
}

impl Tool {
    /// `parse` converts a line into GPU index and values.
    fn start(
        arguments: &[&str],
        mut parse: impl FnMut(&str) -> Option<(u64, BTreeMap<&'static str, f64>)> + Send + 'static,
    ) -> Self {
        let mut child = Command::new("nvidia-smi")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nvidia-smi, which comes with the driver");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (sender, reported) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after");
                if let Some((index, values)) = parse(&line) {
                    let at_ns = i64::try_from(now.as_nanos()).expect("this century");
                    let _ = sender.send(Reported {
                        at_ns,
                        index,
                        values,
                    });
                }
            }
        });
        Self { child, reported }
    }

    fn stop(mut self) -> Vec<Reported> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.reported.iter().collect()
    }
}

const MIB: f64 = 1_048_576.0;

/// Column, nvidia-smi's name, factor to our unit, and tolerance in our unit.
const QUERIES: [(&str, &str, f64, f64); 11] = [
    ("utilization", "utilization.gpu", 1.0, 10.0),
    ("memory_utilization", "utilization.memory", 1.0, 10.0),
    ("memory_used", "memory.used", MIB, 64.0 * MIB),
    ("memory_total", "memory.total", MIB, MIB),
    ("temperature", "temperature.gpu", 1.0, 2.0),
    ("power_w", "power.draw", 1.0, 20.0),
    ("power_limit_w", "enforced.power.limit", 1.0, 0.01),
    ("sm_clock_hz", "clocks.sm", 1e6, 60e6),
    ("memory_clock_hz", "clocks.mem", 1e6, 60e6),
    ("pcie_width", "pcie.link.width.current", 1.0, 0.0),
    ("pcie_generation", "pcie.link.gen.current", 1.0, 1.0),
];

/// The same for `nvidia-smi dmon`, by its column headers.
const DMON: [(&str, &str, f64, f64); 8] = [
    ("power_w", "pwr", 1.0, 20.0),
    ("temperature", "gtemp", 1.0, 2.0),
    ("memory_temperature", "mtemp", 1.0, 2.0),
    ("utilization", "sm", 1.0, 10.0),
    ("memory_utilization", "mem", 1.0, 10.0),
    ("encoder_utilization", "enc", 1.0, 10.0),
    ("sm_clock_hz", "pclk", 1e6, 60e6),
    ("memory_used", "fb", MIB, 64.0 * MIB),
];

const LOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/cuda_load.py");

/// Work of a kind on the first GPU, as a command.
fn load(kind: &str, seconds: u32) -> [String; 4] {
    let python = setting("PROFILER_TEST_PYTHON");
    [
        python,
        LOAD.to_owned(),
        kind.to_owned(),
        seconds.to_string(),
    ]
}

/// Runs the profiler and the tool at the same time, while the GPU computes steadily.
fn watched(tool: Tool) -> (Vec<Row>, Vec<Reported>) {
    let [program, arguments @ ..] = load("fma", 30);
    let _load = ProcessGroup::start(Command::new(program).args(arguments).stdout(Stdio::null()));
    // Waits for the first lines of the tool, and until the temperature rises slowly.
    thread::sleep(Duration::from_secs(8));
    let finished = Profiler::new()
        .args(["--node", "--source", "gpu,overhead", "--interval", "500ms"])
        .args(["--duration", "10s"])
        .finish();
    thread::sleep(Duration::from_secs(2));
    let rows = finished.dataset().table("gpu");
    let whole = rows.into_iter().filter(|row| row.u64("index").is_some());
    (whole.collect(), tool.stop())
}

/// Period of the tools and of the driver's sampling, in ns.
const STEP: i64 = 1_500_000_000;

/// Asserts that each value lies between the tool's values within one period.
fn assert_between(rows: &[Row], reported: &[Reported], columns: &[(&'static str, &str, f64, f64)]) {
    assert!(!rows.is_empty() && !reported.is_empty(), "no values");
    let mut compared = 0;
    for (column, _, _, tolerance) in columns {
        let mut off = Vec::new();
        let mut count = 0;
        for row in rows {
            let ts = row.i64("ts").expect("known");
            let near = reported.iter().filter(|reported| {
                Some(reported.index) == row.u64("index") && (reported.at_ns - ts).abs() <= STEP
            });
            let values: Vec<f64> = near
                .filter_map(|reported| reported.values.get(column).copied())
                .collect();
            let own = if column.ends_with("_w") {
                row.f64(column)
            } else {
                row.u64(column).map(|own| own as f64)
            };
            let Some(own) = own else {
                assert!(
                    values.is_empty(),
                    "{column} is null, but nvidia-smi has a value"
                );
                continue;
            };
            let low = values.iter().copied().fold(f64::INFINITY, f64::min) - tolerance;
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max) + tolerance;
            if values.is_empty() {
                continue;
            }
            count += 1;
            if !(low..=high).contains(&own) {
                off.push((own, low, high));
            }
        }
        println!("{column}: {count} compared, {} off", off.len());
        compared += count;
        // A change of load can be visible to one of them only.
        assert!(off.len() * 20 <= count, "{column}: {off:?}");
    }
    assert!(compared != 0, "no value was compared");
}

#[test]
fn gauges_match_nvidia_smi_query() {
    let names: Vec<_> = QUERIES.iter().map(|(_, name, _, _)| *name).collect();
    let query = format!("--query-gpu=index,{}", names.join(","));
    let arguments = [&query, "--format=csv,noheader,nounits", "-lms", "250"];
    let tool = Tool::start(&arguments, |line| {
        let mut words = line.split(',').map(str::trim);
        let index = words.next()?.parse().ok()?;
        // "[N/A]", "[Not Supported]".
        let known = QUERIES
            .iter()
            .zip(words)
            .filter_map(|((column, _, unit, _), word)| {
                Some((*column, word.parse::<f64>().ok()? * unit))
            });
        Some((index, known.collect()))
    });
    let (rows, reported) = watched(tool);
    assert_between(&rows, &reported, &QUERIES);
}

#[test]
fn gauges_match_nvidia_smi_dmon() {
    let mut heads: Vec<String> = Vec::new();
    let tool = Tool::start(&["dmon", "-s", "pucm", "-d", "1"], move |line| {
        let words: Vec<_> = line.split_whitespace().collect();
        if line.starts_with('#') {
            if words.get(1) == Some(&"gpu") {
                heads = words[1..].iter().map(|&word| word.to_owned()).collect();
            }
            return None;
        }
        let index = words.first()?.parse().ok()?;
        let value = |head: &str| {
            let at = heads.iter().position(|known| known == head)?;
            words.get(at)?.parse::<f64>().ok()
        };
        let known = DMON
            .iter()
            .filter_map(|(column, head, unit, _)| Some((*column, value(head)? * unit)));
        Some((index, known.collect()))
    });
    let (rows, reported) = watched(tool);
    assert_between(&rows, &reported, &DMON);
}

/// What `cuda_load.py` did.
#[derive(Debug, Deserialize)]
struct Work {
    seconds: f64,
    bytes: f64,
    flop: f64,
    bytes_per_second: f64,
    /// Device memory that it allocated, bytes.
    memory: f64,
    multiprocessors: f64,
    /// Of the device, bytes per second.
    memory_bandwidth: f64,
}

/// Profiles a work of 6 s.
fn profiled(kind: &str) -> (Finished, Work) {
    let command = load(kind, 6);
    let finished = Profiler::new()
        .args(["-q", "--source", "gpu,process", "--interval", "200ms"])
        .command(&command.each_ref().map(String::as_str))
        .finish();
    let work = serde_json::from_str(&finished.stdout).expect("JSON");
    (finished, work)
}

/// Sum of a column of the first GPU.
fn sum(finished: &Finished, column: &str) -> f64 {
    let rows = finished.dataset().table("gpu");
    let rows = rows.iter().filter(|row| row.u64("index") == Some(0));
    rows.filter_map(|row| row.u64(column)).sum::<u64>() as f64
}

/// Median of a value of the first GPU while it is busy, which it is most of the time.
fn median(finished: &Finished, value: impl Fn(&Row) -> Option<f64>) -> f64 {
    let rows = finished.dataset().table("gpu");
    let busy = rows
        .iter()
        .filter(|row| row.u64("index") == Some(0) && row.u64("utilization") > Some(90));
    let mut values: Vec<f64> = busy.filter_map(value).collect();
    values.sort_by(f64::total_cmp);
    assert!(values.len() >= 10, "{values:?}");
    values[values.len() / 2]
}

/// Median of a share of the first GPU while it is busy, %.
fn activity(finished: &Finished, column: &str) -> f64 {
    median(finished, |row| row.f64(column))
}

/// Asserts that a value is known to a part of it.
#[track_caller]
fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    println!("{what}: {found:.4e}, expected {expected:.4e}");
    assert!((found - expected).abs() <= tolerance * expected, "{what}");
}

/// The counters have the headers of the packets as well, and requests to read.
#[test]
fn copies_cross_pcie() {
    for (kind, into, other) in [
        ("to-device", "pcie_rx_bytes", "pcie_tx_bytes"),
        ("from-device", "pcie_tx_bytes", "pcie_rx_bytes"),
    ] {
        let (finished, work) = profiled(kind);
        let (counted, against) = (sum(&finished, into), sum(&finished, other));
        println!(
            "{kind}: {counted:.4e} of {:.4e}, other direction {against:.4e}",
            work.bytes
        );
        assert!((1.0..1.15).contains(&(counted / work.bytes)), "{kind}");
        assert!(against <= 0.15 * work.bytes, "{kind}");
    }
}

#[test]
fn memory_bandwidth_is_that_of_the_program() {
    let (finished, work) = profiled("memory");
    let share = 100.0 * work.bytes_per_second / work.memory_bandwidth;
    assert_near(
        "share of the bandwidth",
        activity(&finished, "dram_activity_percent"),
        share,
        0.1,
    );
    assert!(activity(&finished, "fp32_activity_percent") < 5.0);
}

/// Each multiprocessor of this generation completes 128 FMAs per cycle.
#[test]
fn fma_is_that_of_the_program() {
    let (finished, work) = profiled("fma");
    let most = work.multiprocessors
        * 128.0
        * 2.0
        * median(&finished, |row| Some(row.u64("sm_clock_hz")? as f64));
    let share = 100.0 * work.flop / work.seconds / most;
    assert_near(
        "share of the FMAs",
        activity(&finished, "fp32_activity_percent"),
        share,
        0.1,
    );
    assert!(activity(&finished, "dram_activity_percent") < 5.0);
    assert!(activity(&finished, "tensor_activity_percent") < 1.0);
}

/// The process holds what it allocated, and a context of less than 1 GiB.
#[test]
fn process_has_its_memory_and_time() {
    let (finished, work) = profiled("fma");
    let dataset = finished.dataset();
    let rows = dataset.table("gpu_process");
    let held = rows.iter().filter_map(|row| row.u64("memory_used")).max();
    let held = held.expect("a process") as f64;
    println!("held {held:.4e}");
    assert!((work.memory..work.memory + 1_073_741_824.0).contains(&held));
    let process = &dataset.table("process")[0];
    assert!(rows.iter().all(|row| row.u64("pid") == process.u64("pid")));
    let busy = |row: &&Row| row.u64("sm_utilization") > Some(90);
    let busy_ns: u64 = rows
        .iter()
        .filter(busy)
        .filter_map(|row| row.u64("interval_ns"))
        .sum();
    println!(
        "busy for {:.2} s of {:.2} s",
        busy_ns as f64 / 1e9,
        work.seconds
    );
    assert!(busy_ns as f64 >= 0.7e9 * work.seconds);
}

/// Energy is an independent counter of the driver: it must match the mean of the power gauge.
#[test]
fn energy_is_power_times_time() {
    let [program, arguments @ ..] = load("fma", 20);
    let _load = ProcessGroup::start(Command::new(program).args(arguments).stdout(Stdio::null()));
    // The power is a mean over a second.
    thread::sleep(Duration::from_secs(4));
    let finished = Profiler::new()
        .args(["--node", "--source", "gpu", "--interval", "200ms"])
        .args(["--duration", "10s"])
        .finish();
    let rows = finished.dataset().table("gpu");
    let of_first = rows.iter().filter(|row| row.u64("index") == Some(0));
    let by_gauge: f64 = of_first
        .map(|row| {
            let seconds = row.u64("interval_ns").expect("known") as f64 / 1e9;
            row.f64("power_w").expect("known") * seconds
        })
        .sum();
    assert_near("energy", sum(&finished, "energy_uj") / 1e6, by_gauge, 0.05);
}
