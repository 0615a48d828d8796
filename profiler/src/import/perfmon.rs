//! SKA SDP's perfmon: the JSON files of `metrics/`, of perfmon itself or of `profiler export`.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value as Json};

use super::{
    Host, Hosts, Row, invalid, micros,
    quantity::{Counters, Quantity, set, set_real, set_text},
    read,
};
use crate::{
    analysis::{
        figure::{Figure, Value},
        perfmon::OF_GPUS,
    },
    export::perfmon::keys::{
        Declared, GROUPS, Kind, NAMES, OF_FABRIC, OF_FILES, OF_GPU, OF_NETWORK, OF_TARGET, figure,
        find,
    },
    failure::Failure,
    output::dataset::Manifest,
};

/// Device of sums over all devices.
const ALL: &str = "all";
/// Private memory is the only value that exports do not compute from a figure.
const PRIVATE: (&str, &str) = ("memory_full_info.uss", "uss");

/// What the metrics of a host or a GPU have.
fn quantities(declared: &[Declared], find: impl Fn(&str) -> Figure) -> Vec<Quantity> {
    let known = declared.iter().filter_map(|(path, _, name, kind)| {
        let figure = find(name);
        let column = Value::Column(PRIVATE.1);
        let (value, is_counter) = match kind {
            Kind::Gauge => (&figure.value, false),
            Kind::Total | Kind::TotalOfProcesses => (&figure.value, true),
            Kind::Known if *path == PRIVATE.0 => (&column, false),
            Kind::Known | Kind::PercentIs(_) | Kind::Rate => return None,
        };
        Quantity::new(path, figure.table, value, is_counter)
    });
    known.collect()
}

/// Reads the directory of a job, its `metrics`, or one of the files there.
///
/// # Errors
///
/// When a file cannot be read or is not one of perfmon.
pub fn hosts(path: &Path) -> Result<Hosts, Failure> {
    let is_directory = path.is_dir();
    let metrics = path.join("metrics");
    let (directory, files) = if metrics.is_dir() {
        (path.to_owned(), files_of(&metrics))
    } else if is_directory {
        (path.join(".."), files_of(path))
    } else {
        (path.join("../.."), vec![path.to_owned()])
    };
    if files.is_empty() {
        return Err(invalid(
            path,
            "no cpu_metrics.json, perf_metrics.json or nv_gpu_metrics.json",
        ));
    }
    let mut hosts = Hosts::new();
    for file in files {
        let text = read(&file)?;
        let document: Json = serde_json::from_str(&text)
            .map_err(|error| invalid(&file, format!("not a file of perfmon: {error}")))?;
        let names = document["host_names"].as_array();
        let names = names.ok_or_else(|| invalid(&file, "no host_names: not a file of perfmon"))?;
        let kind = file.file_stem().unwrap_or_default().to_string_lossy();
        for name in names.iter().filter_map(Json::as_str) {
            let Some(object) = document.get(name) else {
                return Err(invalid(&file, format!("no data of host {name}")));
            };
            let times = times(object).map_err(|why| invalid(&file, format!("{name}: {why}")))?;
            let (gpu, hostname) = match gpu_of(name) {
                Some((index, host)) if kind == "nv_gpu_metrics" => (Some(index), host),
                _ => (None, name),
            };
            let host = hosts.entry(hostname.to_owned()).or_default();
            let mut samples = Samples {
                object,
                times,
                interval: document["sampling_frequency"].as_f64(),
                start: None,
            };
            add_settings(host, &mut samples, &directory, hostname);
            match (&*kind, gpu) {
                ("perf_metrics", _) => add_events(host, &samples),
                (_, Some(index)) => add_gpu(host, &samples, index),
                _ => add_processes_and_node(host, &samples),
            }
        }
    }
    Ok(hosts)
}

fn files_of(directory: &Path) -> Vec<PathBuf> {
    let names = [
        "cpu_metrics.json",
        "perf_metrics.json",
        "nv_gpu_metrics.json",
    ];
    let paths = names.map(|name| directory.join(name));
    paths.into_iter().filter(|path| path.exists()).collect()
}

/// `gpu-1.node3` is a GPU of `node3`.
fn gpu_of(name: &str) -> Option<(u64, &str)> {
    let (index, host) = name.strip_prefix("gpu-")?.split_once('.')?;
    Some((index.parse().ok()?, host))
}

/// Times of the samples, µs.
fn times(object: &Json) -> Result<Vec<i64>, &'static str> {
    let list = object["time_stamps"].as_array().ok_or("no time_stamps")?;
    let times = list.iter().map(|time| micros(time.as_f64()?));
    let times: Option<Vec<_>> = times.collect();
    times.ok_or("a time stamp is not a time in seconds")
}

/// The samples of a host or GPU.
struct Samples<'a> {
    object: &'a Json,
    times: Vec<i64>,
    /// Time between samples, s.
    interval: Option<f64>,
    /// Start of the run, µs, if counters are known to be 0 then.
    start: Option<i64>,
}

impl Samples<'_> {
    /// Number, time and interval of each sample, µs. Samples at the same time as the one before, which
    /// perfmon has below a second, are left out.
    fn rows(&self) -> impl Iterator<Item = (usize, i64, i64)> {
        let nominal = self.interval.and_then(micros).unwrap_or(0);
        // Counters of an export begin at a reading one interval before.
        let mut before: Option<i64> = None;
        let times = self.times.iter().enumerate();
        times.filter_map(move |(number, ts)| {
            let interval = before.map_or(nominal, |before| ts - before);
            if interval <= 0 && before.is_some() {
                return None;
            }
            before = Some(*ts);
            Some((number, *ts, interval))
        })
    }

    fn counters(&self) -> Counters {
        match self.start {
            Some(_) => Counters::from_zero(),
            None => Counters::default(),
        }
    }

    /// Passes a row of a table for each sample on; those without a value are left out.
    fn each(
        &self,
        quantities: &[Quantity],
        table: &str,
        mut add: impl FnMut(usize, i64, i64, Row),
    ) {
        let mut counters = self.counters();
        for (number, ts, interval) in self.rows() {
            let of_table = quantities.iter().filter(|quantity| quantity.table == table);
            let row = counters.row("", of_table, |quantity| quantity.at(self.object, number));
            if !row.is_empty() {
                add(number, ts, interval, row);
            }
        }
    }
}

/// What an export of the profiler knows of the run: counters begin with 0 at its start.
fn add_settings(host: &mut Host, samples: &mut Samples<'_>, directory: &Path, name: &str) {
    let path = directory.join(format!("configs/{name}_run_config.yml"));
    let text = read(&path).ok();
    let manifest: Option<Manifest> = text.and_then(|text| serde_json::from_str(&text).ok());
    if let Some(manifest) = manifest.filter(|manifest| manifest.start_ts > 0) {
        let start = manifest.start_ts / 1000;
        samples.start = Some(start);
        host.includes(start, manifest.end_ts.map_or(start, |end| end / 1000));
        host.manifest = manifest;
    }
}

fn add_processes_and_node(host: &mut Host, samples: &Samples<'_>) {
    let declared: Vec<_> = [&OF_TARGET[..], &OF_NETWORK, &OF_FABRIC, &OF_FILES].concat();
    let quantities = quantities(&declared, figure);
    add_processes(host, samples, &quantities);
    for table in ["netdev", "fabric"] {
        samples.each(&quantities, table, |_, ts, interval, mut row| {
            row.insert("device".into(), ALL.into());
            host.add(table, ts, Some(interval), row);
        });
    }
    let watts = add_energy(host, samples);
    let memory = samples.object.pointer("/memory_info/rss");
    samples.each(&quantities, "timeline", |number, ts, interval, mut row| {
        let memory = memory.and_then(|list| list.get(number)?.as_f64());
        set(&mut row, "target_rss_sum", memory);
        for (column, domain) in [("package_power_w", "package"), ("dram_power_w", "dram")] {
            set_real(&mut row, column, watts[number].get(domain).copied());
        }
        host.add("timeline", ts, Some(interval), row);
    });
}

/// The sums over the processes as values of the first one, and the processes.
fn add_processes(host: &mut Host, samples: &Samples<'_>, quantities: &[Quantity]) {
    let root = &samples.object["parent_proc_md"];
    let first = samples
        .start
        .or(samples.times.first().copied())
        .unwrap_or(0);
    let identity = |row: &mut Row, process: &Json| {
        let pid = process["pid"]
            .as_u64()
            .filter(|pid| u32::try_from(*pid).is_ok());
        row.insert("pid".into(), pid.unwrap_or(0).into());
        let start = process["start_ts"].as_str().and_then(time);
        row.insert("start_ts".into(), start.unwrap_or(first).into());
    };
    samples.each(quantities, "usage", |_, ts, interval, mut row| {
        identity(&mut row, root);
        host.add("usage", ts, Some(interval), row);
    });
    let children = samples.object["child_proc_md"]
        .as_array()
        .into_iter()
        .flatten();
    let children = children.filter_map(|text| serde_json::from_str(text.as_str()?).ok());
    let children = children.filter(|child: &Json| child["pid"].is_u64());
    let last = samples.times.last().copied().unwrap_or(first);
    for process in std::iter::once(root.clone()).chain(children) {
        let mut row = Row::new();
        identity(&mut row, &process);
        for column in ["ppid", "uid"] {
            set(&mut row, column, process[column].as_f64());
        }
        for column in ["comm", "exe", "cmdline", "cgroup", "job_id"] {
            set_text(&mut row, column, process[column].as_str());
        }
        for column in ["exit_code", "exit_signal"] {
            let code = process[column].as_i64();
            if let Some(code) = code.filter(|code| i32::try_from(*code).is_ok()) {
                row.insert(column.into(), code.into());
            }
        }
        if let Some(end) = process["end_ts"].as_str().and_then(time) {
            row.insert("end_ts".into(), end.into());
        }
        host.add("process", last, None, row);
    }
}

/// Energies, and the power of each sample by domain, W.
fn add_energy(host: &mut Host, samples: &Samples<'_>) -> Vec<HashMap<String, f64>> {
    let mut watts = vec![HashMap::new(); samples.times.len()];
    let domains = samples.object["rapl_powercap"].as_object();
    for name in domains.into_iter().flat_map(Map::keys) {
        let path = format!("rapl_powercap.{name}");
        let energy = Quantity::new(&path, "energy", &Value::Column("energy_uj"), true);
        let energy: Vec<_> = energy.into_iter().collect();
        samples.each(&energy, "energy", |number, ts, interval, mut row| {
            let energy = row["energy_uj"].as_f64().unwrap_or(0.0);
            let domain = domain_of(name);
            if let Some(domain) = domain["domain"].as_str() {
                let sum = watts[number].entry(domain.to_owned()).or_insert(0.0);
                *sum += energy / interval as f64;
            }
            row.extend(domain);
            host.add("energy", ts, Some(interval), row);
        });
    }
    watts
}

/// RFC 3339, µs since 1970-01-01 UTC.
fn time(text: &str) -> Option<i64> {
    let ns = arrow::compute::kernels::cast_utils::string_to_timestamp_nanos(text).ok()?;
    Some(ns / 1000)
}

/// `package-1-die-0`: domain, socket and die.
fn domain_of(name: &str) -> Row {
    let mut row = Row::new();
    let mut parts = name.split('-');
    set_text(&mut row, "domain", parts.next());
    let mut number = || parts.next()?.parse::<u32>().ok();
    if let Some(socket) = number() {
        row.insert("socket".into(), socket.into());
    }
    // The word `die`.
    number();
    if let Some(die) = number() {
        row.insert("die".into(), die.into());
    }
    row
}

/// Counts of an interval, whose start has the time of a sample.
fn add_events(host: &mut Host, samples: &Samples<'_>) {
    let ends = samples.times.iter().skip(1).copied().map(Some);
    let ends: Vec<_> = ends.chain([None]).collect();
    let nominal = samples.interval.and_then(micros).unwrap_or(0);
    for (key, groups) in GROUPS {
        for (name, list) in samples.object[key].as_object().into_iter().flatten() {
            let (table, event) = event(key, groups, name);
            for (number, (start, end)) in samples.times.iter().zip(&ends).enumerate() {
                let end = end.unwrap_or(start + nominal);
                let value = list.get(number).and_then(Json::as_f64);
                if let (Some(value), true) = (value, end > *start) {
                    let mut row = event.clone();
                    let factor = if is_rate(name) { 1e6 } else { 1.0 };
                    let column = if table == "perf_event" {
                        "count"
                    } else {
                        "value"
                    };
                    set_real(&mut row, column, Some(value * factor));
                    host.add(table, end, Some(end - start), row);
                }
            }
        }
    }
}

/// Table of an event or metric, and its labels there.
fn event(key: &str, groups: &[&str], name: &str) -> (&'static str, Row) {
    let mut row = Row::new();
    set_text(&mut row, "group", groups.first().copied());
    if let Some(metric) = name.strip_prefix("derv_") {
        set_text(&mut row, "scope", Some("target"));
        set_text(&mut row, "metric", Some(metric));
        return ("perf_metric", row);
    }
    let mut names = NAMES.iter();
    let known = names.find(|(of, _, theirs)| (*of, *theirs) == (key, name));
    set_text(&mut row, "scope", Some("process"));
    set_text(
        &mut row,
        "event",
        Some(known.map_or(name, |(_, ours, _)| ours)),
    );
    ("perf_event", row)
}

/// Whether a metric is in MFLOP/s or MB/s, as the names of all metrics with these units tell.
fn is_rate(name: &str) -> bool {
    name.starts_with("derv_") && (name.contains("flops") || name.contains("bw"))
}

fn add_gpu(host: &mut Host, samples: &Samples<'_>, index: u64) {
    let quantities = quantities(&OF_GPU, |name| find(OF_GPUS, name));
    samples.each(&quantities, "gpu", |_, ts, interval, mut row| {
        row.insert("index".into(), index.into());
        set_text(&mut row, "vendor", Some("nvidia"));
        host.add("gpu", ts, Some(interval), row);
    });
}
