//! Telemetry of processes with marks, from the readings at their marks.

use std::collections::HashMap;

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use serde_json::{Value, json};

use super::{
    keys::{Kind, PROCESS},
    node::number_of,
};
use crate::analysis::{
    rows::{ProcessKey, Texts, integers, numbers, processes, times},
    stored_run::{StoredHost, StoredRun},
};

/// What does not change in the life of a process.
#[derive(Clone, Default)]
pub struct Facts {
    executable: Option<String>,
    arguments: Vec<String>,
}

/// The facts of all processes of `wanted`.
pub fn facts(
    run: &StoredRun,
    host: &StoredHost,
    wanted: &HashMap<ProcessKey, Process>,
    failures: &mut Vec<String>,
) -> HashMap<ProcessKey, Facts> {
    let mut facts = HashMap::new();
    let columns = ["pid", "start_ts", "exe", "argv"];
    let read = run.read("process", host, &columns, |batch| {
        let executables = Texts::of(batch, "exe");
        for (row, key) in processes(batch).into_iter().enumerate() {
            let Some(key) = key.filter(|key| wanted.contains_key(key)) else {
                continue;
            };
            let known = Facts {
                executable: executables.get(row).map(str::to_owned),
                arguments: arguments(batch, row),
            };
            facts.insert(key, known);
        }
    });
    failures.extend(read.err().into_iter().flatten());
    facts
}

fn arguments(batch: &RecordBatch, row: usize) -> Vec<String> {
    let column = batch.column_by_name("argv");
    let lists = column.and_then(|column| column.as_list_opt::<i32>());
    let Some(list) = lists.filter(|lists| lists.is_valid(row)) else {
        return Vec::new();
    };
    let list = list.value(row);
    let texts = list.as_string_opt::<i32>();
    let texts = texts.into_iter().flatten().flatten();
    texts.map(str::to_owned).collect()
}

/// A process while its rows are read in the order of time.
#[derive(Clone)]
pub struct Process {
    /// Of [`PROCESS`]: sums since the start of the run, and last values, of which some are read less
    /// often than at each mark. NaN before the first one.
    values: [f64; PROCESS.len()],
    /// Of the last row, %.
    cpu_percent: f64,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            values: [f64::NAN; PROCESS.len()],
            cpu_percent: f64::NAN,
        }
    }
}

impl Process {
    /// The block of the process.
    pub fn block(&self, key: ProcessKey, facts: Option<&Facts>, memory: Option<f64>) -> Value {
        let mut block = json!({"pid": key.0, "memory": {"lib": 0, "dirty": 0}});
        let mut put = |path: &str, value: f64| {
            if value.is_nan() {
                return;
            }
            let place = match path.split_once('.') {
                None => &mut block[path],
                Some((group, key)) => &mut block[group][key],
            };
            *place = number_of(value);
        };
        for ((path, ..), value) in PROCESS.iter().zip(self.values) {
            put(path, value);
        }
        put("cpu_percent", self.cpu_percent);
        if let (Some(rss), Some(memory)) = (block["memory"]["rss"].as_f64(), memory) {
            block["memory_percent"] = number_of(100.0 * rss / memory);
        }
        if let Some(facts) = facts {
            block["executable"] = json!(facts.executable);
            block["cmd_line"] = json!(facts.arguments);
        }
        block
    }

    /// Adds a row with these values.
    fn add(&mut self, row: impl Iterator<Item = f64>) {
        for ((value, (_, kind, _)), read) in self.values.iter_mut().zip(PROCESS).zip(row) {
            if !read.is_nan() {
                *value = match kind {
                    Kind::Total | Kind::Count => value.max(0.0) + read,
                    Kind::Gauge | Kind::Kept => read,
                };
            }
        }
    }
}

/// A reading at a mark.
pub struct Reading<T> {
    /// µs since 1970-01-01 UTC.
    pub ts: i64,
    pub process: ProcessKey,
    pub mark: T,
}

/// Passes each process on as it was at its readings, which are in the order of time.
pub fn at_readings<T>(
    run: &StoredRun,
    host: &StoredHost,
    processes_with_marks: &mut HashMap<ProcessKey, Process>,
    readings: &[Reading<T>],
    failures: &mut Vec<String>,
    mut each: impl FnMut(&Reading<T>, &Process),
) {
    let mut columns = vec!["ts", "interval_ns", "pid", "start_ts", "tid"];
    for (_, _, value) in PROCESS {
        value.columns(&mut columns);
    }
    let mut left = readings.iter().peekable();
    let known = processes_with_marks;
    let read = run.read("usage", host, &columns, |batch| {
        let values: Vec<_> = PROCESS
            .iter()
            .map(|(_, _, value)| value.of(batch))
            .collect();
        let threads = integers(batch, "tid");
        let intervals = numbers(batch, "interval_ns");
        let times = times(batch, "ts");
        for (row, key) in processes(batch).into_iter().enumerate() {
            let (Some(key), Some(ts), None) = (key, times[row], threads[row]) else {
                continue;
            };
            while let Some(reading) = left.next_if(|reading| reading.ts < ts) {
                if let Some(process) = known.get(&reading.process) {
                    each(reading, process);
                }
            }
            let Some(process) = known.get_mut(&key) else {
                continue;
            };
            process.add(values.iter().map(|values| values[row]));
            // Their first values are the CPU times.
            let seconds = values[0][row] + values[1][row];
            process.cpu_percent = 100.0 * seconds / (1e-9 * intervals[row]);
        }
    });
    for reading in left {
        if let Some(process) = known.get(&reading.process) {
            each(reading, process);
        }
    }
    failures.extend(read.err().into_iter().flatten());
}

/// When the process of each ended region was read at its start and its end, µs since 1970-01-01 UTC.
/// Regions with one reading for both have none.
pub fn readings_of_regions(
    run: &StoredRun,
    host: &StoredHost,
    failures: &mut Vec<String>,
) -> HashMap<i64, [i64; 2]> {
    let mut readings = HashMap::new();
    let columns = ["ts", "region_id", "interval_ns"];
    let read = run.read("region_usage", host, &columns, |batch| {
        let intervals = integers(batch, "interval_ns");
        let regions = integers(batch, "region_id");
        for (row, end) in times(batch, "ts").into_iter().enumerate() {
            if let (Some(end), Some(region), Some(ns)) = (end, regions[row], intervals[row]) {
                // Not before the row, whose time is cut to µs.
                readings.insert(region, [end - ns / 1000 + 1, end]);
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    readings
}
