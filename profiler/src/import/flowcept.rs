//! Flowcept: its JSON lines, of Flowcept itself or of `profiler export`. Tasks become regions, and
//! telemetry at their starts and ends the samples of the nodes.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use serde_json::Value as Json;

use super::{
    Host, Hosts, Row, invalid, micros,
    quantity::{Counters, Quantity, set, set_text},
    read,
};
use crate::{
    analysis::figure::Value,
    export::flowcept::keys::{
        DISK, FILE_SYSTEM, Figures, GPU, Kind, MEMORY, NETWORK, PROCESS, TIMES,
    },
    failure::Failure,
    schema::{self, Table},
    sources::dataset_schema,
};

/// GPUs of NVIDIA; others have the keys of [`GPU`].
const NVIDIA: Figures = &[
    (
        "power",
        Kind::Gauge,
        Value::Scaled(1e3, &Value::Column("power_w")),
    ),
    ("temperature", Kind::Gauge, Value::Column("temperature")),
];
/// Counters of the process of a task and its descendants, in files of the profiler.
const TREE: &str = "tree";

/// What telemetry has, by the rows that it becomes.
struct Keys {
    tree: Vec<Quantity>,
    region: Vec<Quantity>,
    process: Vec<Quantity>,
    system: Vec<Quantity>,
    root: Vec<Quantity>,
    disk: Vec<Quantity>,
    network: Vec<Quantity>,
    gpu: Vec<Quantity>,
}

impl Keys {
    fn new() -> Self {
        let of = |path: &str, table, figures: Figures| -> Vec<Quantity> {
            let quantity = |(key, kind, value): &(&str, Kind, Value)| {
                let is_counter = matches!(kind, Kind::Total | Kind::Count);
                Quantity::new(&format!("{path}{key}"), table, value, is_counter)
            };
            figures.iter().filter_map(quantity).collect()
        };
        let region = dataset_schema().table("region_usage").into_iter();
        let counters = region.flat_map(Table::columns);
        let counters = counters.filter(|column| column.kind == schema::Kind::Counter);
        let tree = counters.filter_map(|column| {
            let path = format!("{TREE}.{}", column.name);
            Quantity::new(&path, "region_usage", &Value::Column(column.name), true)
        });
        let mut system = of("cpu.times_avg.", "system", TIMES);
        system.extend(of("memory.", "system", MEMORY));
        let mut gpu = of("", "gpu", GPU);
        gpu.extend(of("", "gpu", NVIDIA));
        Self {
            tree: tree.collect(),
            region: of("process.", "region_usage", PROCESS),
            process: of("process.", "usage", PROCESS),
            system,
            root: of("disk.disk_usage.", "filesystem", FILE_SYSTEM),
            disk: of("", "disk", DISK),
            network: of("", "netdev", NETWORK),
            gpu,
        }
    }
}

/// Reads a file with one workflow.
///
/// # Errors
///
/// When the file cannot be read or is not one of Flowcept.
pub fn hosts(path: &Path) -> Result<Hosts, Failure> {
    let text = read(path)?;
    let mut tasks: Vec<Json> = Vec::new();
    let mut workflow = Json::Null;
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let line_failure =
            |why: &dyn std::fmt::Display| invalid(path, format!("line {}: {why}", number + 1));
        let record: Json = serde_json::from_str(line).map_err(|_| line_failure(&"not JSON"))?;
        match record["type"].as_str() {
            Some("workflow") => workflow = record,
            Some("task") => tasks.push(record),
            // Loops of Flowcept have no type.
            None if record["activity_id"].is_string() => tasks.push(record),
            None => return Err(line_failure(&"neither a task nor a workflow of Flowcept")),
            Some(_) => {}
        }
    }
    let id = workflow["workflow_id"].clone();
    if !id.is_null() {
        tasks.retain(|task| task["workflow_id"] == id || task["workflow_id"].is_null());
    }
    if tasks.is_empty() {
        return Err(invalid(path, "no tasks of Flowcept"));
    }
    tasks.sort_by_key(|task| time(task, "started_at"));
    let starts = tasks.iter().filter_map(|task| time(task, "started_at"));
    let start = starts.min().unwrap_or(0);
    let keys = Keys::new();
    let mut hosts = Hosts::new();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for (number, task) in tasks.iter().enumerate() {
        if let Some(id) = task["task_id"].as_str() {
            numbers.insert(id.to_owned(), number + 1);
        }
    }
    let mut readings: BTreeMap<String, Readings> = BTreeMap::new();
    // Loops of Flowcept have no host.
    let mut named = tasks.iter().filter_map(hostname);
    let first = named.next().unwrap_or("unknown");
    for (number, task) in tasks.iter().enumerate() {
        let name = hostname(task).unwrap_or(first).to_owned();
        let host = hosts.entry(name.clone()).or_default();
        host.first = start;
        add_task(host, number + 1, task, &numbers, &keys);
        let readings = readings.entry(name).or_default();
        for (side, at) in [
            ("telemetry_at_start", "started_at"),
            ("telemetry_at_end", "ended_at"),
        ] {
            if let Some(ts) = time(task, at).filter(|_| task[side].is_object()) {
                readings.insert(ts, &task[side]);
            }
        }
    }
    for (name, host) in &mut hosts {
        if let Some(readings) = readings.get(name) {
            add_readings(host, readings, &keys);
        }
        let user = workflow["user"].as_str();
        user.unwrap_or_default().clone_into(&mut host.manifest.user);
        for (label, key) in [("workflow_name", "name"), ("campaign", "campaign_id")] {
            if let Some(text) = workflow[key].as_str() {
                host.manifest
                    .labels
                    .0
                    .insert(label.to_owned(), text.to_owned());
            }
        }
        if let (Some(start), Some(end)) =
            (time(&workflow, "started_at"), time(&workflow, "ended_at"))
        {
            host.includes(start, end);
        }
        let failed = workflow["status"] == "ERROR";
        host.manifest.exit_code = failed.then_some(1);
    }
    Ok(hosts)
}

/// Telemetry by time, µs.
type Readings<'a> = BTreeMap<i64, &'a Json>;

fn hostname(task: &Json) -> Option<&str> {
    task["hostname"].as_str().or(task["node_name"].as_str())
}

fn time(record: &Json, key: &str) -> Option<i64> {
    micros(record[key].as_f64()?)
}

/// Identity of the process of a task: 0 if it is unknown, and the start of what the file knows.
fn identity(row: &mut Row, telemetry: &Json, first: i64) {
    let pid = telemetry["process"]["pid"].as_u64();
    let pid = pid.filter(|pid| u32::try_from(*pid).is_ok());
    row.insert("pid".to_owned(), pid.unwrap_or(0).into());
    row.insert("start_ts".to_owned(), first.into());
}

fn add_task(
    host: &mut Host,
    region: usize,
    task: &Json,
    numbers: &HashMap<String, usize>,
    keys: &Keys,
) {
    let [start, end] = ["started_at", "ended_at"].map(|key| time(task, key));
    let Some(ts) = end.or(start) else {
        return;
    };
    let [before, after] = ["telemetry_at_start", "telemetry_at_end"].map(|key| &task[key]);
    let mut row = Row::new();
    identity(&mut row, before, host.first);
    row.insert("region_id".to_owned(), region.into());
    set_text(&mut row, "name", task["activity_id"].as_str());
    // Only files of the profiler tell.
    let op = task["custom_metadata"]["op"].as_str();
    let op = op
        .filter(|op| ["phase", "event"].contains(op))
        .unwrap_or("region");
    set_text(&mut row, "op", Some(op));
    set_text(&mut row, "kind", task["subtype"].as_str());
    set_text(&mut row, "user_id", task["task_id"].as_str());
    set_text(&mut row, "group", task["group_id"].as_str());
    if let Some(parent) = task["parent_task_id"].as_str() {
        set_text(&mut row, "user_parent_id", Some(parent));
        if let Some(number) = numbers.get(parent) {
            row.insert("parent_region_id".to_owned(), (*number).into());
        }
    }
    let status = task["status"].as_str().map(str::to_lowercase);
    set_text(
        &mut row,
        "status",
        status.as_deref().filter(|status| *status != "running"),
    );
    for (column, time) in [("region_start_ts", start), ("region_end_ts", end)] {
        if let Some(time) = time {
            row.insert(column.to_owned(), time.into());
        }
    }
    for (column, key) in [
        ("attributes", "custom_metadata"),
        ("used", "used"),
        ("generated", "generated"),
        ("tags", "tags"),
    ] {
        if !task[key].is_null() {
            set_text(&mut row, column, Some(&task[key].to_string()));
        }
    }
    let interval = start.zip(end).map(|(start, end)| (end - start).max(0));
    host.add("region", ts, interval, row);
    let mut row = used(keys, before, after);
    if row.is_empty() {
        return;
    }
    identity(&mut row, before, host.first);
    row.insert("region_id".to_owned(), region.into());
    set_text(&mut row, "name", task["activity_id"].as_str());
    for column in ["start_offset_ns", "end_offset_ns"] {
        row.insert(column.to_owned(), 0.into());
    }
    host.add("region_usage", ts, interval, row);
}

/// What the process of a task used: counters at its end minus those at its start.
fn used(keys: &Keys, before: &Json, after: &Json) -> Row {
    let quantities = if after[TREE].is_object() {
        &keys.tree
    } else {
        &keys.region
    };
    let mut counters = Counters::default();
    counters.row("", quantities, |quantity| quantity.of(before));
    counters.row("", quantities, |quantity| quantity.of(after))
}

/// Adds the rows of readings to a host.
struct Adder<'a> {
    host: &'a mut Host,
    counters: Counters,
    /// Times of the last readings, by what was read, µs.
    last: HashMap<String, i64>,
}

impl Adder<'_> {
    /// Adds what a reading has of a block; `name` tells it from the others. `complete` adds labels.
    fn add(
        &mut self,
        ts: i64,
        name: &str,
        quantities: &[Quantity],
        block: &Json,
        complete: impl FnOnce(&mut Row),
    ) {
        let Some(table) = quantities.first().map(|quantity| quantity.table) else {
            return;
        };
        let name = format!("{table} {name}");
        let mut row = self
            .counters
            .row(&name, quantities, |quantity| quantity.of(block));
        let before = self.last.insert(name, ts);
        if !row.is_empty() {
            complete(&mut row);
            let interval = before.map(|before| ts - before);
            self.host.add(table, ts, interval, row);
        }
    }
}

/// Rows of the node and its processes at the times of the readings.
fn add_readings(host: &mut Host, readings: &Readings<'_>, keys: &Keys) {
    let first = host.first;
    let mut before: Option<i64> = None;
    let mut adder = Adder {
        host,
        counters: Counters::default(),
        last: HashMap::new(),
    };
    for (&ts, telemetry) in readings {
        let cpus = telemetry["cpu"]["times_per_cpu"].as_array().map(Vec::len);
        adder.add(ts, "", &keys.system, telemetry, |row| {
            if let Some(cpus) = cpus {
                row.insert("cpus".to_owned(), cpus.into());
            }
        });
        adder.add(ts, "", &keys.root, telemetry, |row| {
            set_text(row, "mount", Some("/"));
        });
        // Disks without their partitions, of which those below cannot be told.
        adder.add(ts, "", &keys.disk, &telemetry["disk"]["io_sum"], |row| {
            set_text(row, "device", Some("all"));
            row.insert("partition".to_owned(), false.into());
        });
        let disks = telemetry["disk"]["io_per_disk"].as_object();
        for (device, block) in disks.into_iter().flatten() {
            adder.add(ts, device, &keys.disk, block, |row| {
                set_text(row, "device", Some(device));
            });
        }
        let interfaces = telemetry["network"]["netio_per_interface"].as_object();
        for (device, block) in interfaces.into_iter().flatten() {
            adder.add(ts, device, &keys.network, block, |row| {
                set_text(row, "device", Some(device));
                set_text(row, "kind", (device == "lo").then_some("loopback"));
            });
        }
        for (name, block) in telemetry["gpu"].as_object().into_iter().flatten() {
            let index = name.strip_prefix("gpu_");
            if let Some(index) = index.and_then(|index| index.parse::<u32>().ok()) {
                adder.add(ts, name, &keys.gpu, block, |row| {
                    row.insert("index".to_owned(), index.into());
                    set_text(row, "uuid", block["id"].as_str());
                    set_text(row, "name", block["name"].as_str());
                });
            }
        }
        let pid = telemetry["process"]["pid"].to_string();
        adder.add(ts, &pid, &keys.process, telemetry, |row| {
            identity(row, telemetry, first);
        });
        let mut sample = Row::new();
        let memory = telemetry["process"]["memory"]["rss"].as_f64();
        set(&mut sample, "target_rss_sum", memory);
        let interval = before.replace(ts).map(|before| ts - before);
        adder.host.add("timeline", ts, interval, sample);
    }
    add_processes(host, readings);
}

/// The processes of the readings.
fn add_processes(host: &mut Host, readings: &Readings<'_>) {
    let mut processes: BTreeMap<u64, (i64, &Json)> = BTreeMap::new();
    for (ts, telemetry) in readings {
        if let Some(pid) = telemetry["process"]["pid"].as_u64() {
            processes.insert(pid, (*ts, telemetry));
        }
    }
    for (ts, telemetry) in processes.into_values() {
        let process = &telemetry["process"];
        let mut row = Row::new();
        identity(&mut row, telemetry, host.first);
        set_text(&mut row, "exe", process["executable"].as_str());
        let name = process["executable"]
            .as_str()
            .and_then(|path| path.rsplit('/').next());
        set_text(&mut row, "comm", name);
        if let Some(words) = process["cmd_line"].as_array() {
            let words: Vec<_> = words.iter().filter_map(Json::as_str).collect();
            set_text(&mut row, "cmdline", Some(&words.join(" ")));
            row.insert("argv".to_owned(), words.into());
        }
        host.add("process", ts, None, row);
    }
}
