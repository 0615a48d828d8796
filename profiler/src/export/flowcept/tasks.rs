//! Tasks: the regions, phases and events of a node.

use std::{collections::HashMap, fmt::Write as _};

use serde_json::{Map, Value, json};

use super::{
    machine::{self, shape_gpus},
    node::{Node, number_of},
    process::{self, Process, Reading},
    seconds,
};
use crate::{
    analysis::{
        rows::{ProcessKey, Texts, integers, numbers},
        stored_run::{StoredHost, StoredRun},
    },
    export::{
        marks::{self, Mark, named},
        output::failed,
        selection::{Selected, Selection},
        series::Series,
        spool::{Place, Spool},
    },
    failure::Failure,
    schema::{Kind, Table},
    sources::dataset_schema,
};

/// Where the telemetry of a mark is, at its start and its end.
#[derive(Clone, Copy, Default)]
struct Telemetry {
    node: [Option<Place>; 2],
    process: [Option<Place>; 2],
    /// Counters of the process and its descendants.
    tree: [Option<Place>; 2],
    /// Counts of events of the process.
    perf: [Option<Place>; 2],
}

/// By number of the mark.
type ByMark = HashMap<i64, Telemetry>;

/// The start (0) or the end (1) of a mark.
#[derive(Clone, Copy)]
struct Side {
    number: i64,
    side: usize,
}

/// What the marks of a host need.
#[derive(Default)]
struct Needed {
    by_mark: ByMark,
    /// Times of starts and ends, µs.
    times: Vec<(i64, Side)>,
    readings: Vec<Reading<Side>>,
    processes: HashMap<ProcessKey, Process>,
}

/// A host whose marks become tasks.
pub struct OfHost<'a> {
    pub run: &'a StoredRun,
    pub host: &'a StoredHost,
    pub selected: Selected,
}

impl OfHost<'_> {
    /// Adds the tasks with their starts (µs since 1970-01-01 UTC), and returns the facts of the node.
    ///
    /// # Errors
    ///
    /// When temporary files cannot be written.
    pub fn write(
        &self,
        spool: &mut Spool,
        tasks: &mut Vec<(i64, Place)>,
        failures: &mut Vec<String>,
    ) -> Result<Value, Failure> {
        let mut needed = self.needed(failures)?;
        let machine = self.node(&mut needed, spool, failures)?;
        let memory = machine["memory"]["virtual"]["total"].as_f64();
        let facts = process::facts(self.run, self.host, &needed.processes, failures);
        let Needed {
            by_mark,
            readings,
            processes,
            ..
        } = &mut needed;
        let mut result = Ok(());
        process::at_readings(
            self.run,
            self.host,
            processes,
            readings,
            failures,
            |reading, process| {
                if result.is_err() {
                    return;
                }
                let block = process.block(reading.process, facts.get(&reading.process), memory);
                result = put(spool, &block).map(|place| {
                    telemetry(by_mark, reading.mark.number).process[reading.mark.side] = place;
                });
            },
        );
        result?;
        self.trees(by_mark, spool, failures)?;
        self.events(by_mark, spool, failures)?;
        marks::for_each(self.run, self.host, &self.selected, failures, |mark| {
            let telemetry = by_mark.get(&mark.number).copied().unwrap_or_default();
            let start = mark.start.or(mark.end).unwrap_or(mark.updated);
            let mut text = self.task(&mark).to_string();
            for (side, key) in ["telemetry_at_start", "telemetry_at_end"]
                .into_iter()
                .enumerate()
            {
                let blocks = telemetry.blocks(side, spool)?;
                if !blocks.is_empty() {
                    // Instead of the brace at the end.
                    text.pop();
                    let _ = write!(text, ",\"{key}\":{{{blocks}}}}}");
                }
            }
            tasks.push((start, spool.put(&text).map_err(failed)?));
            Ok(())
        })?;
        Ok(machine)
    }

    fn needed(&self, failures: &mut Vec<String>) -> Result<Needed, Failure> {
        let mut needed = Needed::default();
        let readings = process::readings_of_regions(self.run, self.host, failures);
        marks::for_each(self.run, self.host, &self.selected, failures, |mark| {
            let Mark {
                number, process, ..
            } = mark;
            needed.by_mark.insert(number, Telemetry::default());
            for (side, ts) in [mark.start, mark.end].into_iter().enumerate() {
                needed
                    .times
                    .extend(ts.map(|ts| (ts, Side { number, side })));
            }
            for (side, ts) in readings.get(&number).into_iter().flatten().enumerate() {
                let mark = Side { number, side };
                needed.processes.entry(process).or_default();
                needed.readings.push(Reading {
                    ts: *ts,
                    process,
                    mark,
                });
            }
            Ok(())
        })?;
        needed.times.sort_by_key(|(ts, _)| *ts);
        needed.readings.sort_by_key(|reading| reading.ts);
        Ok(needed)
    }

    /// Telemetry of the node at all marks. Returns its facts.
    fn node(
        &self,
        needed: &mut Needed,
        spool: &mut Spool,
        failures: &mut Vec<String>,
    ) -> Result<Value, Failure> {
        let gpus = machine::gpus(self.run, self.host, failures);
        let mut node = Node::of(self.run, self.host, failures);
        let columns = node.columns();
        let by_mark = &mut needed.by_mark;
        let mut left = needed.times.iter().peekable();
        let mut first: Option<Map<String, Value>> = None;
        let mut write = |mut blocks: Map<String, Value>, side: &Side| -> Result<(), Failure> {
            shape_gpus(&mut blocks, &gpus);
            telemetry(by_mark, side.number).node[side.side] = put(spool, &Value::Object(blocks))?;
            Ok(())
        };
        let all = Selection::default();
        let series = Series {
            run: self.run,
            selection: &all,
            every: None,
        };
        series.of_host(self.host, &columns, failures, |ts, sample| {
            first.get_or_insert_with(|| node.at(ts, Some((ts, sample))));
            while let Some((at, side)) = left.next_if(|(at, _)| *at <= ts) {
                write(node.at(*at, Some((ts, sample))), side)?;
            }
            node.advance(ts, sample);
            Ok(())
        })?;
        for (at, side) in left {
            write(node.at(*at, None), side)?;
        }
        let mut blocks = first.unwrap_or_default();
        shape_gpus(&mut blocks, &gpus);
        Ok(machine::facts(self.run, self.host, &blocks, failures))
    }

    /// Counters of the processes of regions and their descendants: 0 at the start.
    fn trees(
        &self,
        by_mark: &mut ByMark,
        spool: &mut Spool,
        failures: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let columns = dataset_schema().table("region_usage").into_iter();
        let columns = columns.flat_map(Table::columns);
        let counters = columns.filter(|column| column.kind == Kind::Counter);
        let counters: Vec<&str> = counters.map(|column| column.name).collect();
        let mut columns = vec!["region_id", "interval_ns"];
        columns.extend(&counters);
        let mut result = Ok(());
        let read = self.run.read("region_usage", self.host, &columns, |batch| {
            let values: Vec<_> = counters.iter().map(|name| numbers(batch, name)).collect();
            let intervals = integers(batch, "interval_ns");
            for (row, region) in integers(batch, "region_id").into_iter().enumerate() {
                let Some(of_mark) = region.and_then(|region| by_mark.get_mut(&region)) else {
                    continue;
                };
                if intervals[row].is_none() || result.is_err() {
                    continue;
                }
                let names = counters.iter().zip(&values);
                let known = names.filter(|(_, values)| !values[row].is_nan());
                let end = known.map(|(name, values)| ((*name).to_owned(), number_of(values[row])));
                result = put_growth(spool, end.collect()).map(|places| of_mark.tree = places);
            }
        });
        failures.extend(read.err().into_iter().flatten());
        result
    }

    /// Counts of hardware events in the processes of regions: 0 at the start.
    fn events(
        &self,
        by_mark: &mut ByMark,
        spool: &mut Spool,
        failures: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let mut counts: HashMap<i64, Map<String, Value>> = HashMap::new();
        let columns = ["region_id", "event", "count"];
        let read = self.run.read("region_perf", self.host, &columns, |batch| {
            let events = Texts::of(batch, "event");
            let values = numbers(batch, "count");
            for (row, region) in integers(batch, "region_id").into_iter().enumerate() {
                let region = region.filter(|region| by_mark.contains_key(region));
                if let (Some(region), Some(event), false) =
                    (region, events.get(row), values[row].is_nan())
                {
                    let counts = counts.entry(region).or_default();
                    counts.insert(event.to_owned(), number_of(values[row]));
                }
            }
        });
        failures.extend(read.err().into_iter().flatten());
        for (number, counts) in counts {
            telemetry(by_mark, number).perf = put_growth(spool, counts)?;
        }
        Ok(())
    }

    /// The record of a mark without telemetry.
    fn task(&self, mark: &Mark) -> Value {
        let host = &self.host.name;
        let id = |number: i64| format!("{host}-{number}");
        let mut metadata = match mark.attributes.clone() {
            Some(Value::Object(attributes)) => attributes,
            Some(other) => Map::from_iter([("attributes".to_owned(), other)]),
            None => Map::new(),
        };
        metadata.insert("region".to_owned(), json!(mark.number));
        metadata.insert("op".to_owned(), json!(mark.op));
        if let Some(id) = &mark.id {
            metadata.insert("region_id".to_owned(), json!(id));
        }
        let status = match mark.status.as_deref() {
            Some("finished") => "FINISHED",
            Some("error") => "ERROR",
            None if mark.op == "event" => "FINISHED",
            None => "RUNNING",
            Some(word) => {
                metadata.insert("status".to_owned(), json!(word));
                "UNKNOWN"
            }
        };
        let parent = mark.parent_number.map(id).or_else(|| mark.parent.clone());
        let kind = match (&mark.kind, mark.op.as_str()) {
            (Some(kind), _) => Some(kind.as_str()),
            (None, "region") => None,
            (None, op) => Some(op),
        };
        let known = [
            ("subtype", kind.map(Value::from)),
            ("parent_task_id", parent.map(Value::from)),
            ("group_id", mark.group.clone().map(Value::from)),
            ("used", mark.used.clone().map(named).map(Value::from)),
            (
                "generated",
                mark.generated.clone().map(named).map(Value::from),
            ),
            ("tags", mark.tags.clone()),
            ("started_at", mark.start.map(seconds)),
            ("ended_at", mark.end.map(seconds)),
        ];
        let mut task = json!({
            "type": "task",
            "task_id": id(mark.number),
            "workflow_id": self.run.id(),
            "activity_id": mark.name,
            "status": status,
            "hostname": host,
            "node_name": host,
            "utc_timestamp": seconds(mark.updated),
            "custom_metadata": metadata,
        });
        for (key, value) in known {
            if let Some(value) = value {
                task[key] = value;
            }
        }
        task
    }
}

impl Telemetry {
    /// The blocks of one side, as members of an object.
    fn blocks(&self, side: usize, spool: &mut Spool) -> Result<String, Failure> {
        let mut blocks = Vec::new();
        if let Some(place) = self.node[side] {
            let text = spool.get(place).map_err(failed)?;
            let members = text.trim_start_matches('{').strip_suffix('}');
            blocks.extend(members.filter(|text| !text.is_empty()).map(str::to_owned));
        }
        for (key, places) in [
            ("process", self.process),
            ("tree", self.tree),
            ("perf", self.perf),
        ] {
            if let Some(place) = places[side] {
                let text = spool.get(place).map_err(failed)?;
                blocks.push(format!("\"{key}\":{text}"));
            }
        }
        Ok(blocks.join(","))
    }
}

fn telemetry(by_mark: &mut ByMark, number: i64) -> &mut Telemetry {
    by_mark.entry(number).or_default()
}

fn put(spool: &mut Spool, value: &Value) -> Result<Option<Place>, Failure> {
    spool.put(&value.to_string()).map(Some).map_err(failed)
}

/// Puts counters that are 0 at the start.
fn put_growth(spool: &mut Spool, end: Map<String, Value>) -> Result<[Option<Place>; 2], Failure> {
    let start = end.keys().map(|key| (key.clone(), json!(0)));
    let start = put(spool, &Value::Object(start.collect()))?;
    Ok([start, put(spool, &Value::Object(end))?])
}
