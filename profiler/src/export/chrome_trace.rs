//! Trace events of Chrome in JSON, for Perfetto: processes, regions, events and counters over time.

use std::{
    collections::{BTreeSet, HashMap},
    io::Write,
};

use arrow::array::RecordBatch;
use serde_json::{Map, Value as Json, json};

use super::{
    marks,
    output::failed,
    selection::Selected,
    series::{Column, Series, groups},
};
use crate::{
    analysis::{
        catalog::{BUSY_PERCENT, EXTERNAL_INTERFACES, PHYSICAL_DISKS},
        figure::{
            Condition::{self, IsNull},
            Figure, OverTime,
            Value::{self, Column as Of, Ratio, Scaled},
        },
        perfmon::OF_PROCESSES,
        rows::{ProcessKey, Texts, integers, numbers, processes, times},
        scan::SEPARATOR,
        stored_run::{StoredHost, StoredRun},
    },
    failure::Failure,
    output::dataset::Manifest,
};

/// A counter of the node: name, unit, table, rows, groups, value.
type Declared = (
    &'static str,
    &'static str,
    &'static str,
    &'static [Condition],
    &'static [&'static str],
    Value,
);

const GPUS: &[Condition] = &[IsNull("parent_uuid")];
const OF_NODE: [Declared; 12] = [
    ("CPU", "%", "system", &[], &[], BUSY_PERCENT),
    (
        "memory used",
        "bytes",
        "system",
        &[],
        &[],
        Of("memory_used"),
    ),
    (
        "disk read",
        "bytes/s",
        "disk",
        PHYSICAL_DISKS,
        &[],
        Scaled(1e9, &Ratio(&["read_bytes"], &["interval_ns"])),
    ),
    (
        "disk written",
        "bytes/s",
        "disk",
        PHYSICAL_DISKS,
        &[],
        Scaled(1e9, &Ratio(&["write_bytes"], &["interval_ns"])),
    ),
    (
        "network sent",
        "bytes/s",
        "netdev",
        EXTERNAL_INTERFACES,
        &[],
        Scaled(1e9, &Ratio(&["tx_bytes"], &["interval_ns"])),
    ),
    (
        "network received",
        "bytes/s",
        "netdev",
        EXTERNAL_INTERFACES,
        &[],
        Scaled(1e9, &Ratio(&["rx_bytes"], &["interval_ns"])),
    ),
    (
        "fabric sent",
        "bytes/s",
        "fabric",
        &[],
        &["device", "port"],
        Scaled(1e9, &Ratio(&["tx_bytes"], &["interval_ns"])),
    ),
    (
        "fabric received",
        "bytes/s",
        "fabric",
        &[],
        &["device", "port"],
        Scaled(1e9, &Ratio(&["rx_bytes"], &["interval_ns"])),
    ),
    (
        "power",
        "W",
        "energy",
        &[],
        &["domain", "socket", "die"],
        Scaled(1e3, &Ratio(&["energy_uj"], &["interval_ns"])),
    ),
    ("GPU", "%", "gpu", GPUS, &["index"], Of("utilization")),
    (
        "GPU memory used",
        "bytes",
        "gpu",
        GPUS,
        &["index"],
        Of("memory_used"),
    ),
    ("GPU power", "W", "gpu", GPUS, &["index"], Of("power_w")),
];

/// Writes the events. Returns the files that cannot be read, with the reason.
///
/// # Errors
///
/// When the output cannot be written.
pub fn write(series: &Series<'_>, output: &mut dyn Write) -> Result<Vec<String>, Failure> {
    let run = series.run;
    let mut failures = Vec::new();
    let mut trace = Trace {
        output,
        separator: "",
        ids: Ids::default(),
    };
    let manifest = run.manifests().next();
    let about = json!({
        "run": run.id(),
        "hosts": run.hosts.iter().map(|host| &host.name).collect::<Vec<_>>(),
        "version": manifest.map(|manifest| &manifest.version),
        "labels": manifest.map(|manifest| &manifest.labels.0),
        "losses": run.manifests().flat_map(|manifest| &manifest.losses).collect::<Vec<_>>(),
    });
    let start = "{\"displayTimeUnit\":\"ms\",\"otherData\":";
    write!(trace.output, "{start}{about},\"traceEvents\":[").map_err(failed)?;
    for host in run.hosts.iter() {
        let mut of_host = OfHost {
            run,
            host,
            selected: series.selection.on(run, host, &mut failures),
            trace: &mut trace,
            ids: HashMap::new(),
        };
        let node = of_host.node(series, &mut failures)?;
        of_host.losses(node, &mut failures)?;
        of_host.processes(&mut failures)?;
        of_host.counters(&mut failures)?;
        of_host.sparse_counters(&mut failures)?;
        of_host.marks(&mut failures)?;
        of_host.gauges(&mut failures)?;
    }
    writeln!(trace.output, "\n]}}").map_err(failed)?;
    failures.sort_unstable();
    failures.dedup();
    Ok(failures)
}

/// Numbers of processes and threads, which are unique in a trace.
struct Ids {
    used: BTreeSet<u64>,
    next: u64,
}

impl Default for Ids {
    fn default() -> Self {
        Self {
            used: BTreeSet::new(),
            // Above all numbers of the kernel.
            next: 10_000_000,
        }
    }
}

impl Ids {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The number itself, if it is not in use.
    fn like(&mut self, number: u64) -> u64 {
        if self.used.insert(number) {
            number
        } else {
            self.fresh()
        }
    }
}

struct Trace<'a> {
    output: &'a mut dyn Write,
    separator: &'static str,
    ids: Ids,
}

impl Trace<'_> {
    fn put(&mut self, event: &Json) -> Result<(), Failure> {
        write!(self.output, "{}\n{event}", self.separator).map_err(failed)?;
        self.separator = ",";
        Ok(())
    }

    /// Names a process (`process_name`) or thread (`thread_name`), or gives it a place
    /// (`process_sort_index`).
    fn describe(&mut self, pid: u64, tid: u64, what: &str, value: &Json) -> Result<(), Failure> {
        let key = if what.ends_with("index") {
            "sort_index"
        } else {
            "name"
        };
        self.put(&json!({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {key: value}}))
    }

    /// Perfetto shows the name of the counter and the unit.
    fn counter(
        &mut self,
        pid: u64,
        (name, unit): (&str, &str),
        ts: i64,
        value: f64,
    ) -> Result<(), Failure> {
        // JSON has no infinite numbers.
        if !value.is_finite() {
            return Ok(());
        }
        let value = json!({unit: value});
        self.put(&json!({"ph": "C", "pid": pid, "name": name, "ts": ts, "args": value}))
    }
}

struct OfHost<'a, 'b> {
    run: &'a StoredRun,
    host: &'a StoredHost,
    selected: Selected,
    trace: &'a mut Trace<'b>,
    /// Numbers of the processes.
    ids: HashMap<ProcessKey, u64>,
}

/// A slice of a process: a region or phase.
struct Slice {
    start: i64,
    end: i64,
    number: i64,
}

impl OfHost<'_, '_> {
    /// Counters of the node, as those of a process of its own. Returns its number.
    fn node(&mut self, series: &Series<'_>, failures: &mut Vec<String>) -> Result<u64, Failure> {
        let node = self.trace.ids.fresh();
        let name = json!(format!("node {}", self.host.name));
        self.trace.describe(node, node, "process_name", &name)?;
        self.trace
            .describe(node, node, "process_sort_index", &json!(-1))?;
        let mut counters = Vec::new();
        let samples = OF_PROCESSES.iter().find(|figure| figure.name == "samples");
        let mut columns: Vec<_> = samples
            .map(|figure| Column::of(*figure))
            .into_iter()
            .collect();
        for (name, unit, table, rows, by, value) in OF_NODE {
            let figure = Figure {
                name,
                table,
                value,
                rows,
                ..Figure::SUM
            }
            .over_time(OverTime::Mean);
            if by.is_empty() {
                counters.push((name.to_owned(), unit));
                columns.push(Column::of(figure));
                continue;
            }
            for group in groups(self.run, self.host, &figure, by, failures) {
                let title = format!("{} {name}", group.replace(SEPARATOR, "-"));
                counters.push((title, unit));
                columns.push(Column::of_group(figure, by, &group));
            }
        }
        series.of_host(self.host, &columns, failures, |ts, sample| {
            // A value counts from its time on.
            #[expect(clippy::cast_possible_truncation, reason = "saturates")]
            let start = ts.saturating_sub((sample.seconds * 1e6) as i64);
            for ((name, unit), value) in counters.iter().zip(&sample.values[1..]) {
                self.trace.counter(node, (name, unit), start, *value)?;
            }
            Ok(())
        })?;
        Ok(node)
    }

    /// The selected rows of selected processes, with the number of the process and the time.
    fn rows(&self, batch: &RecordBatch) -> Vec<(usize, u64, i64)> {
        let times = times(batch, "ts");
        let selected = self.selected.rows(batch);
        let rows = processes(batch).into_iter().enumerate();
        let rows = rows.filter_map(|(row, process)| {
            let id = self.ids.get(&process?)?;
            let is_selected = selected.as_ref().is_none_or(|rows| rows[row]);
            is_selected.then_some((row, *id, times[row]?))
        });
        rows.collect()
    }

    /// Each process: its name, and its life as a slice of its first thread.
    fn processes(&mut self, failures: &mut Vec<String>) -> Result<(), Failure> {
        const COLUMNS: [&str; 13] = [
            "ts",
            "pid",
            "start_ts",
            "end_ts",
            "interval_ns",
            "ppid",
            "uid",
            "comm",
            "cmdline",
            "job_id",
            "task_rank",
            "exit_code",
            "exit_signal",
        ];
        let sessions = self.host.manifest.iter().flat_map(Manifest::sessions);
        let first = sessions
            .map(|session| session.start_ts / 1000)
            .min()
            .unwrap_or(i64::MIN);
        let mut result = Ok(());
        let read = self.run.read("process", self.host, &COLUMNS, |batch| {
            let texts = |name: &str| Texts::of(batch, name);
            let [names, commands, jobs] = ["comm", "cmdline", "job_id"].map(texts);
            let [parents, users, ranks, codes, signals] =
                ["ppid", "uid", "task_rank", "exit_code", "exit_signal"]
                    .map(|name| integers(batch, name));
            let [updates, ends] = ["ts", "end_ts"].map(|name| times(batch, name));
            let rows = self.selected.rows(batch);
            for (row, process) in processes(batch).into_iter().enumerate() {
                let is_selected = rows.as_ref().is_none_or(|rows| rows[row]);
                let (Some(process), true, true) = (process, is_selected, result.is_ok()) else {
                    continue;
                };
                let (pid, start) = process;
                let id = self.trace.ids.like(u64::from(pid));
                self.ids.insert(process, id);
                let start = start.max(first);
                let end = ends[row].or(updates[row]).unwrap_or(start);
                let name = names.get(row).unwrap_or_default();
                let title = match ranks[row] {
                    Some(rank) => format!("rank {rank}: {name}"),
                    None => name.to_owned(),
                };
                let mut args = Map::new();
                for (key, value) in [
                    ("pid", json!(pid)),
                    ("ppid", json!(parents[row])),
                    ("uid", json!(users[row])),
                    ("host", json!(self.host.name)),
                    ("cmdline", json!(commands.get(row))),
                    ("job", json!(jobs.get(row))),
                    ("rank", json!(ranks[row])),
                    ("exit_code", json!(codes[row])),
                    ("exit_signal", json!(signals[row])),
                ] {
                    if !value.is_null() {
                        args.insert(key.to_owned(), value);
                    }
                }
                let life = json!({
                    "ph": "X", "cat": "process", "name": name, "pid": id, "tid": id,
                    "ts": start, "dur": (end - start).max(0), "args": args,
                });
                let exit = ends[row].map(|end| {
                    let how = signals[row].map_or("exit", |_| "killed");
                    let mut args = Map::new();
                    for (key, value) in [("code", codes[row]), ("signal", signals[row])] {
                        args.extend(value.map(|value| (key.to_owned(), json!(value))));
                    }
                    json!({
                        "ph": "i", "s": "t", "cat": "exit", "name": how, "pid": id, "tid": id,
                        "ts": end, "args": args,
                    })
                });
                let trace = &mut *self.trace;
                result = trace
                    .describe(id, id, "process_name", &json!(title))
                    .and_then(|()| match ranks[row] {
                        Some(rank) => trace.describe(id, id, "process_sort_index", &json!(rank)),
                        None => Ok(()),
                    })
                    .and_then(|()| trace.put(&life))
                    .and_then(|()| exit.iter().try_for_each(|exit| trace.put(exit)));
            }
        });
        failures.extend(read.err().into_iter().flatten());
        result
    }

    /// Counters of processes that are mostly 0: time in the run queue and storage. Values are written
    /// where they change.
    fn sparse_counters(&mut self, failures: &mut Vec<String>) -> Result<(), Failure> {
        const OF_PROCESSES: [(&str, &str, &str, &str, f64); 3] = [
            ("sched", "runqueue_ns", "run queue", "%", 100.0),
            ("usage", "read_bytes", "storage read", "bytes/s", 1e9),
            ("usage", "write_bytes", "storage written", "bytes/s", 1e9),
        ];
        for (table, column, name, unit, factor) in OF_PROCESSES {
            let columns = ["ts", "interval_ns", "pid", "start_ts", "tid", column];
            let mut result = Ok(());
            let mut last: HashMap<u64, f64> = HashMap::new();
            let read = self.run.read(table, self.host, &columns, |batch| {
                let [intervals, values] = ["interval_ns", column].map(|name| numbers(batch, name));
                let tids = integers(batch, "tid");
                for (row, id, ts) in self.rows(batch) {
                    let value = factor * values[row] / intervals[row];
                    let before = last.get(&id).copied().unwrap_or(0.0);
                    let is_new = value.is_finite() && value.to_bits() != before.to_bits();
                    if tids[row].is_some() || !is_new || result.is_err() {
                        continue;
                    }
                    last.insert(id, value);
                    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
                    let start = ts.saturating_sub((intervals[row] / 1e3) as i64);
                    result = self.trace.counter(id, (name, unit), start, value);
                }
            });
            failures.extend(read.err().into_iter().flatten());
            result?;
        }
        Ok(())
    }

    /// What the profiler has lost, at the samples that found it.
    fn losses(&mut self, node: u64, failures: &mut Vec<String>) -> Result<(), Failure> {
        let columns = ["ts", "component_kind", "component", "dropped", "errors"];
        let mut result = Ok(());
        let read = self.run.read("overhead", self.host, &columns, |batch| {
            let [kinds, names] = ["component_kind", "component"].map(|name| Texts::of(batch, name));
            let [dropped, errors] = ["dropped", "errors"].map(|name| integers(batch, name));
            let rows = self.selected.rows(batch);
            for (row, ts) in times(batch, "ts").into_iter().enumerate() {
                let is_selected = rows.as_ref().is_none_or(|rows| rows[row]);
                let lost = |values: &[Option<i64>]| values[row].unwrap_or(0);
                let (Some(ts), true, true) = (ts, is_selected, result.is_ok()) else {
                    continue;
                };
                if lost(&dropped) == 0 && lost(&errors) == 0 {
                    continue;
                }
                let name = names.get(row).unwrap_or_default();
                result = self.trace.put(&json!({
                    "ph": "i", "s": "p", "cat": "loss", "name": format!("lost: {name}"),
                    "pid": node, "tid": node, "ts": ts,
                    "args": {
                        "kind": kinds.get(row), "dropped": lost(&dropped), "errors": lost(&errors),
                    },
                }));
            }
        });
        failures.extend(read.err().into_iter().flatten());
        result
    }

    /// CPU time and memory of processes and threads.
    fn counters(&mut self, failures: &mut Vec<String>) -> Result<(), Failure> {
        const COLUMNS: [&str; 8] = [
            "ts",
            "interval_ns",
            "pid",
            "start_ts",
            "tid",
            "user_ns",
            "system_ns",
            "rss",
        ];
        let mut result = Ok(());
        let mut threads: HashMap<i64, u64> = HashMap::new();
        let read = self.run.read("usage", self.host, &COLUMNS, |batch| {
            let [intervals, user, system, memory] =
                ["interval_ns", "user_ns", "system_ns", "rss"].map(|name| numbers(batch, name));
            let tids = integers(batch, "tid");
            for (row, id, ts) in self.rows(batch) {
                if result.is_err() {
                    continue;
                }
                #[expect(clippy::cast_possible_truncation, reason = "saturates")]
                let start = ts.saturating_sub((intervals[row] / 1e3) as i64);
                let percent = 100.0 * (user[row] + system[row]) / intervals[row];
                let trace = &mut *self.trace;
                result = match tids[row] {
                    None => trace
                        .counter(id, ("CPU", "%"), start, percent)
                        .and_then(|()| {
                            trace.counter(id, ("resident memory", "bytes"), ts, memory[row])
                        }),
                    Some(tid) => {
                        let named = match threads.insert(tid, id) {
                            Some(known) if known == id => Ok(()),
                            _ => {
                                let number = trace.ids.like(tid.unsigned_abs());
                                trace.describe(
                                    id,
                                    number,
                                    "thread_name",
                                    &json!(format!("thread {tid}")),
                                )
                            }
                        };
                        let name = format!("thread {tid} CPU");
                        named.and_then(|()| trace.counter(id, (&name, "%"), start, percent))
                    }
                };
            }
        });
        failures.extend(read.err().into_iter().flatten());
        result
    }

    /// Regions and phases as slices of threads of their own, and events.
    fn marks(&mut self, failures: &mut Vec<String>) -> Result<(), Failure> {
        let mut slices: HashMap<u64, Vec<Slice>> = HashMap::new();
        marks::for_each(self.run, self.host, &self.selected, failures, |mark| {
            if let (Some(&id), Some(start)) = (self.ids.get(&mark.process), mark.start) {
                slices.entry(id).or_default().push(Slice {
                    start,
                    end: mark.end.unwrap_or(mark.updated),
                    number: mark.number,
                });
            }
            Ok(())
        })?;
        let mut tids: HashMap<i64, u64> = HashMap::new();
        for (id, mut slices) in slices {
            let lanes = lanes(&mut slices);
            let count = lanes.iter().max().map_or(0, |lane| lane + 1);
            let threads: Vec<u64> = (0..count).map(|_| self.trace.ids.fresh()).collect();
            for (number, tid) in threads.iter().enumerate() {
                let name = match number {
                    0 => "regions".to_owned(),
                    _ => format!("regions {}", number + 1),
                };
                self.trace.describe(id, *tid, "thread_name", &json!(name))?;
            }
            for (slice, lane) in slices.iter().zip(lanes) {
                tids.insert(slice.number, threads[lane]);
            }
        }
        let (ids, trace) = (&self.ids, &mut *self.trace);
        marks::for_each(self.run, self.host, &self.selected, failures, |mark| {
            let tid = tids.get(&mark.number);
            let (Some(id), Some(tid), Some(start)) = (ids.get(&mark.process), tid, mark.start)
            else {
                return Ok(());
            };
            let mut args = match mark.attributes {
                Some(Json::Object(attributes)) => attributes,
                _ => Map::new(),
            };
            for (key, value) in [
                ("region", Some(json!(mark.number))),
                ("status", mark.status.map(Json::from)),
                ("group", mark.group.map(Json::from)),
                ("used", mark.used),
                ("generated", mark.generated),
                ("tags", mark.tags),
            ] {
                if let Some(value) = value {
                    args.insert(key.to_owned(), value);
                }
            }
            let category = mark.kind.unwrap_or_else(|| mark.op.clone());
            let mut event = json!({
                "ph": "X", "cat": category, "name": mark.name, "pid": id, "tid": tid, "ts": start,
                "args": args,
            });
            if mark.op == "event" {
                event["ph"] = json!("i");
                event["s"] = json!("t");
            } else {
                let end = mark.end.unwrap_or(mark.updated);
                event["dur"] = json!((end - start).max(0));
            }
            trace.put(&event)
        })
    }

    /// Values that the application reported.
    fn gauges(&mut self, failures: &mut Vec<String>) -> Result<(), Failure> {
        let columns = ["ts", "pid", "start_ts", "name", "value", "unit"];
        let mut result = Ok(());
        let read = self.run.read("region_gauge", self.host, &columns, |batch| {
            let [names, units] = ["name", "unit"].map(|name| Texts::of(batch, name));
            let values = numbers(batch, "value");
            for (row, id, ts) in self.rows(batch) {
                let name = names.get(row).unwrap_or_default();
                let unit = units.get(row).unwrap_or("value");
                if result.is_ok() {
                    result = self.trace.counter(id, (name, unit), ts, values[row]);
                }
            }
        });
        failures.extend(read.err().into_iter().flatten());
        result
    }
}

/// The lane of each slice, which it gets in the order of their starts. Slices of a lane are apart or
/// contain one another.
fn lanes(slices: &mut [Slice]) -> Vec<usize> {
    slices.sort_by_key(|slice| (slice.start, std::cmp::Reverse(slice.end)));
    // Ends of the slices that are open.
    let mut open: Vec<Vec<i64>> = Vec::new();
    let lane = |slice: &Slice| {
        for ends in &mut open {
            while ends.last().is_some_and(|end| *end <= slice.start) {
                ends.pop();
            }
        }
        let fits = |ends: &Vec<i64>| ends.last().is_none_or(|end| *end >= slice.end);
        let lane = open.iter().position(fits).unwrap_or_else(|| {
            open.push(Vec::new());
            open.len() - 1
        });
        open[lane].push(slice.end);
        lane
    };
    slices.iter().map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_lane_nest() {
        let spans = [(0, 10), (1, 5), (2, 4), (3, 7), (5, 9), (10, 12), (11, 13)];
        let slice = |(start, end)| Slice {
            start,
            end,
            number: 0,
        };
        let mut slices: Vec<_> = spans.into_iter().map(slice).collect();
        assert_eq!(lanes(&mut slices), [0, 0, 0, 1, 0, 0, 1]);
    }
}
