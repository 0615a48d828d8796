//! NVIDIA GPUs compared with nvidia-smi, which reads the driver independently: `cargo xtask test
//! gpu`. The values are those of the present load of the GPUs.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use e2e::{rows::Row, runs::Profiler};

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
    ("power_mw", "power.draw", 1e3, 20e3),
    ("power_limit_mw", "enforced.power.limit", 1e3, 10.0),
    ("sm_clock", "clocks.sm", 1e6, 60e6),
    ("memory_clock", "clocks.mem", 1e6, 60e6),
    ("pcie_width", "pcie.link.width.current", 1.0, 0.0),
    ("pcie_generation", "pcie.link.gen.current", 1.0, 1.0),
];

/// The same for `nvidia-smi dmon`, by its column headers.
const DMON: [(&str, &str, f64, f64); 8] = [
    ("power_mw", "pwr", 1e3, 20e3),
    ("temperature", "gtemp", 1.0, 2.0),
    ("memory_temperature", "mtemp", 1.0, 2.0),
    ("utilization", "sm", 1.0, 10.0),
    ("memory_utilization", "mem", 1.0, 10.0),
    ("encoder_utilization", "enc", 1.0, 10.0),
    ("sm_clock", "pclk", 1e6, 60e6),
    ("memory_used", "fb", MIB, 64.0 * MIB),
];

/// Runs the profiler and the tool at the same time.
fn watched(tool: Tool) -> (Vec<Row>, Vec<Reported>) {
    // Waits for the first lines of the tool.
    thread::sleep(Duration::from_secs(2));
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
            let Some(own) = row.u64(column) else {
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
            if !(low..=high).contains(&(own as f64)) {
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

/// Energy is an independent counter of the driver: it must match the mean of the power gauge.
#[test]
fn energy_is_power_times_time() {
    let finished = Profiler::new()
        .args(["--node", "--source", "gpu", "--interval", "200ms"])
        .args(["--duration", "10s"])
        .finish();
    let rows = finished.dataset().table("gpu");
    let of_first = rows.iter().filter(|row| row.u64("index") == Some(0));
    let (mut by_counter, mut by_gauge) = (0.0, 0.0);
    for row in of_first {
        let seconds = row.u64("interval_ns").expect("known") as f64 / 1e9;
        by_counter += row.u64("energy_uj").expect("since Volta") as f64 / 1e6;
        by_gauge += row.u64("power_mw").expect("known") as f64 / 1e3 * seconds;
    }
    println!("energy {by_counter:.1} J, power × time {by_gauge:.1} J");
    assert!((by_counter - by_gauge).abs() <= 0.15 * by_gauge);
}
