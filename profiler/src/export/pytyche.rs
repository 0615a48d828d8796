//! pytyche: the files of its hardware monitor, their summary, and its log of phases and events.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{
    clock,
    files::{Destination, Files, create_directory},
    output::failed,
    selection::Selected,
    series::{Column, Series},
};
use crate::{
    analysis::{
        catalog::PYTYCHE,
        figure::Figure,
        rows::{Texts, numbers, times},
        stored_run::{StoredHost, StoredRun},
    },
    failure::Failure,
};

/// Writes the files into a directory, those of several nodes into one for each. Returns the files that
/// cannot be read, with the reason.
///
/// # Errors
///
/// When the output cannot be written.
pub fn write(
    series: &Series<'_>,
    files: &mut Files,
    directory: &Path,
) -> Result<Vec<String>, Failure> {
    let run = series.run;
    let mut failures = Vec::new();
    for host in run.hosts.iter() {
        let directory = match run.hosts.len() {
            1 => directory.to_owned(),
            _ => directory.join(&host.name),
        };
        create_directory(&directory)?;
        let of_host = OfHost {
            run,
            host,
            selected: series.selection.on(run, host, &mut failures),
            directory,
        };
        of_host.write(series, files, &mut failures)?;
    }
    Ok(failures)
}

struct OfHost<'a> {
    run: &'a StoredRun,
    host: &'a StoredHost,
    selected: Selected,
    directory: PathBuf,
}

/// Mean and largest value of what is in the files.
#[derive(Default)]
struct Statistics {
    sum: f64,
    count: u32,
    max: f64,
}

impl Statistics {
    fn add(&mut self, value: f64) {
        self.max = if self.count == 0 {
            value
        } else {
            self.max.max(value)
        };
        self.sum += value;
        self.count += 1;
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }
}

/// What `resource_summary.json` is made of.
#[derive(Default)]
struct Summary {
    utilization: Statistics,
    used: Statistics,
    power: Statistics,
    memory_utilization: Statistics,
    user: Statistics,
    idle: Statistics,
    jax_peak_bytes: Statistics,
}

impl OfHost<'_> {
    fn write(
        &self,
        series: &Series<'_>,
        files: &mut Files,
        failures: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let mut summary = Summary::default();
        let place = |name: &str| Destination::File(self.directory.join(name));
        files.write(&place("hw_metrics.csv"), |output| {
            self.gpus(failures, |gpu| {
                gpu.add_metrics(&mut summary);
                output.write_all(gpu.metrics().as_bytes()).map_err(failed)
            })
        })?;
        files.write(&place("hw_dmon.csv"), |output| {
            let header = "# gpu     sm    mem     fb\n# Idx      %      %     MB\n";
            output.write_all(header.as_bytes()).map_err(failed)?;
            // Failures have been reported for the same table.
            self.gpus(&mut Vec::new(), |gpu| {
                gpu.add_dmon(&mut summary);
                output.write_all(gpu.dmon().as_bytes()).map_err(failed)
            })
        })?;
        files.write(&place("cpu_metrics.csv"), |output| {
            writeln!(output, "timestamp,usr_pct,idle_pct").map_err(failed)?;
            let columns = ["cpu_usr_mean_pct", "cpu_idle_mean_pct"]
                .map(figure)
                .map(Column::of);
            series.of_host(self.host, &columns, failures, |ts, sample| {
                let [user, idle] = [sample.values[0], sample.values[1]];
                summary.user.add(user);
                summary.idle.add(idle);
                writeln!(output, "{},{user:.1},{idle:.1}", clock::iso(ts)).map_err(failed)
            })
        })?;
        let log = self.log(&mut summary, failures);
        files.write(&place("run_log.jsonl"), |output| {
            output.write_all(log.as_bytes()).map_err(failed)
        })?;
        files.write(&place("resource_summary.json"), |output| {
            writeln!(output, "{:#}", summary.document()).map_err(failed)
        })
    }

    /// Passes the rows of the GPUs on.
    fn gpus(
        &self,
        failures: &mut Vec<String>,
        mut each: impl FnMut(&Gpu) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        const NUMBERS: [&str; 9] = [
            "index",
            "utilization",
            "memory_utilization",
            "memory_used",
            "memory_total",
            "power_w",
            "temperature",
            "sm_clock_hz",
            "memory_clock_hz",
        ];
        let mut columns = vec!["ts", "interval_ns", "uuid", "parent_uuid"];
        columns.extend(NUMBERS);
        let mut result = Ok(());
        let read = self.run.read("gpu", self.host, &columns, |batch| {
            let values = NUMBERS.map(|name| numbers(batch, name));
            let intervals = numbers(batch, "interval_ns");
            let [uuids, parents] = ["uuid", "parent_uuid"].map(|name| Texts::of(batch, name));
            for (row, ts) in times(batch, "ts").into_iter().enumerate() {
                let Some(ts) = ts else { continue };
                let is_instance = parents.get(row).is_some();
                if is_instance || !self.selected.has(ts, intervals[row] / 1e9) || result.is_err() {
                    continue;
                }
                result = each(&Gpu {
                    ts,
                    uuid: uuids.get(row).unwrap_or_default().to_owned(),
                    values: values.each_ref().map(|values| values[row]),
                });
            }
        });
        failures.extend(read.err().into_iter().flatten());
        result
    }

    /// Regions, phases, events and gauges in the order of their times, an object per line.
    fn log(&self, summary: &mut Summary, failures: &mut Vec<String>) -> String {
        let mut entries: Vec<(i64, Value)> = Vec::new();
        let columns = [
            "name",
            "op",
            "region_start_ts",
            "region_end_ts",
            "attributes",
        ];
        let read = self.run.read("region", self.host, &columns, |batch| {
            let [names, ops, attributes] =
                ["name", "op", "attributes"].map(|name| Texts::of(batch, name));
            let [starts, ends] =
                ["region_start_ts", "region_end_ts"].map(|name| times(batch, name));
            for row in 0..batch.num_rows() {
                let (Some(start), Some(end)) = (starts[row], ends[row]) else {
                    continue;
                };
                let seconds = (end - start) as f64 / 1e6;
                if !self.selected.has(end, seconds.max(1e-6)) {
                    continue;
                }
                let name = names.get(row).unwrap_or_default();
                let attributes = object(attributes.get(row));
                let entry = if ops.get(row) == Some("event") {
                    event(end, name, attributes)
                } else {
                    phase(end, name, seconds, attributes)
                };
                entries.push((end, entry));
            }
        });
        failures.extend(read.err().into_iter().flatten());
        let columns = ["ts", "name", "value", "unit"];
        let read = self.run.read("region_gauge", self.host, &columns, |batch| {
            let [names, units] = ["name", "unit"].map(|name| Texts::of(batch, name));
            let values = numbers(batch, "value");
            for (row, ts) in times(batch, "ts").into_iter().enumerate() {
                let Some(ts) = ts.filter(|ts| self.selected.has(*ts, 1e-6)) else {
                    continue;
                };
                let name = names.get(row).unwrap_or_default();
                if name == "jax_peak_bytes" {
                    summary.jax_peak_bytes.add(values[row]);
                }
                let entry = json!({
                    "ts": clock::iso(ts), "type": "gauge", "name": name, "value": values[row],
                    "unit": units.get(row),
                });
                entries.push((ts, entry));
            }
        });
        failures.extend(read.err().into_iter().flatten());
        entries.sort_by_key(|(ts, _)| *ts);
        let mut log = String::new();
        for (_, entry) in entries {
            let _ = writeln!(log, "{entry}");
        }
        log
    }
}

/// Attributes of a mark.
fn object(text: Option<&str>) -> Map<String, Value> {
    match serde_json::from_str(text.unwrap_or_default()) {
        Ok(Value::Object(attributes)) => attributes,
        _ => Map::new(),
    }
}

/// The entry of a region or phase that ended at `ts`. Attributes do not replace its own keys.
fn phase(ts: i64, name: &str, seconds: f64, attributes: Map<String, Value>) -> Value {
    let mut entry = attributes;
    entry.insert("ts".to_owned(), json!(clock::iso(ts)));
    entry.insert("type".to_owned(), json!("phase"));
    entry.insert("name".to_owned(), json!(name));
    let seconds = (seconds * 1000.0).round() / 1000.0;
    entry.insert("seconds".to_owned(), json!(seconds));
    Value::Object(entry)
}

fn event(ts: i64, name: &str, attributes: Map<String, Value>) -> Value {
    let mut entry = json!({"ts": clock::iso(ts), "type": "event", "event": name});
    if !attributes.is_empty() {
        entry["data"] = Value::Object(attributes);
    }
    entry
}

fn figure(name: &str) -> Figure {
    let declared = PYTYCHE.iter().find(|figure| figure.name == name);
    *declared.unwrap_or(&PYTYCHE[0])
}

/// A row of a GPU, with the columns in the order of `OfHost::gpus`.
struct Gpu {
    ts: i64,
    uuid: String,
    values: [f64; 9],
}

impl Gpu {
    /// A line as `nvidia-smi --query-gpu` prints it, and the number and UUID of the GPU.
    fn metrics(&self) -> String {
        let [
            index,
            utilization,
            memory,
            used,
            total,
            power,
            temperature,
            sm,
            memory_clock,
        ] = self.values;
        let whole = |value: f64| text(value, |value| format!("{value:.0}"), "[N/A]");
        let power = text(power, |value| format!("{value:.2}"), "[N/A]");
        format!(
            "{}, {}, {}, {}, {}, {power}, {}, {}, {}, {}, {}\n",
            clock::local(self.ts),
            whole(utilization),
            whole(memory),
            whole(mebibytes(used)),
            whole(mebibytes(total)),
            whole(temperature),
            whole(sm / 1e6),
            whole(memory_clock / 1e6),
            whole(index),
            self.uuid,
        )
    }

    /// pytyche ignores lines with a value that is not a number.
    fn add_metrics(&self, summary: &mut Summary) {
        let [_, utilization, _, used, _, power, ..] = self.values;
        if !(utilization + used + power).is_nan() {
            summary.utilization.add(utilization);
            summary.used.add(mebibytes(used).round());
            summary.power.add((power * 100.0).round() / 100.0);
        }
    }

    /// A line as `nvidia-smi dmon -s mu` is thought to print it.
    fn dmon(&self) -> String {
        let [index, utilization, memory, used, ..] = self.values;
        let whole = |value: f64| text(value, |value| format!("{value:.0}"), "-");
        format!(
            "{:>5} {:>6} {:>6} {:>6}\n",
            whole(index),
            whole(utilization),
            whole(memory),
            whole(mebibytes(used))
        )
    }

    fn add_dmon(&self, summary: &mut Summary) {
        if !self.values[2].is_nan() {
            summary.memory_utilization.add(self.values[2]);
        }
    }
}

fn mebibytes(bytes: f64) -> f64 {
    (bytes / 1_048_576.0).floor()
}

fn text(value: f64, format: impl Fn(f64) -> String, null: &str) -> String {
    if value.is_nan() {
        null.to_owned()
    } else {
        format(value)
    }
}

impl Summary {
    /// The keys of `ResourceSummary`; those at the end only if they have values.
    fn document(&self) -> Value {
        let rounded = |value: Option<f64>| value.map(|value| (value * 10.0).round() / 10.0);
        let mut map = Map::new();
        for (key, value) in [
            ("peak_vram_mb", self.used.max()),
            ("gpu_util_mean_pct", self.utilization.mean()),
            ("gpu_util_max_pct", self.utilization.max()),
            ("power_watts_mean", self.power.mean()),
            ("power_watts_max", self.power.max()),
            ("cpu_usr_mean_pct", self.user.mean()),
            ("cpu_idle_mean_pct", self.idle.mean()),
        ] {
            map.insert(key.to_owned(), json!(rounded(value)));
        }
        let jax = self.jax_peak_bytes.max().map(|bytes| bytes / 1_048_576.0);
        for (key, value) in [
            ("jax_peak_bytes_mb", jax),
            ("mem_util_mean_pct", self.memory_utilization.mean()),
            ("mem_util_max_pct", self.memory_utilization.max()),
        ] {
            if let Some(value) = rounded(value).filter(|value| *value > 0.0) {
                map.insert(key.to_owned(), json!(value));
            }
        }
        Value::Object(map)
    }
}
