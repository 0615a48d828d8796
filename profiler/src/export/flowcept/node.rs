//! Telemetry of the node at any time: counters between two samples are interpolated, other values are
//! those of the sample before.

use serde_json::{Map, Value as Json, json};

use super::keys::{
    DISK, ENERGY, FABRIC, FILE_SYSTEM, FREQUENCY, Figures, GPU,
    Kind::{self, Count, Gauge, Kept, Total},
    MEMORY, NETWORK, PERCENT, TIMES,
};
use crate::{
    analysis::{
        catalog::{INTERFACES, PHYSICAL_DISKS},
        figure::{
            Condition::{self, Is, IsNull},
            Figure, OverRows, OverTime,
        },
        perfmon::OF_PROCESSES,
        samples::Sample,
        scan::SEPARATOR,
        stored_run::{StoredHost, StoredRun},
    },
    export::series::{Column, groups},
};

/// Rows of a table with figures.
struct Source {
    table: &'static str,
    rows: &'static [Condition],
    figures: Figures,
}

impl Source {
    fn figure(&self, number: usize) -> Figure {
        let (name, kind, value) = self.figures[number];
        let over_time = match kind {
            Total | Count => OverTime::Sum,
            Gauge | Kept => OverTime::Mean,
        };
        Figure {
            name,
            table: self.table,
            value,
            rows: self.rows,
            ..Figure::SUM
        }
        .over_time(over_time)
    }
}

/// A value of the blocks.
struct Quantity {
    path: Vec<String>,
    kind: Kind,
    column: Column,
}

/// The values of a node, and their state while samples are read in the order of time.
pub struct Node {
    quantities: Vec<Quantity>,
    /// Of the last sample, µs.
    ts: i64,
    totals: Vec<f64>,
    gauges: Vec<f64>,
}

impl Node {
    /// The values that a host has. Files that cannot be read are added to `failures`.
    pub fn of(run: &StoredRun, host: &StoredHost, failures: &mut Vec<String>) -> Self {
        let mut node = Self {
            quantities: Vec::new(),
            ts: i64::MIN,
            totals: Vec::new(),
            gauges: Vec::new(),
        };
        let source = |table, rows, figures| Source {
            table,
            rows,
            figures,
        };
        let system = source("system", &[], PERCENT);
        node.add_as(&system, "cpu.percent_all");
        node.add(&source("system", &[], TIMES), "cpu.times_avg");
        node.add(&source("system", &[], MEMORY), "memory");
        node.add_as(&source("cpu", &[], FREQUENCY), "cpu.frequency");
        node.add(&source("disk", PHYSICAL_DISKS, DISK), "disk.io_sum");
        let root = source("filesystem", &[Is("mount", "/")], FILE_SYSTEM);
        node.add(&root, "disk.disk_usage");
        node.add(&source("netdev", INTERFACES, NETWORK), "network.netio_sum");
        let mut each = |source: Source, by: &'static [&'static str], path: &str| {
            for group in groups(run, host, &source.figure(0), by, failures) {
                node.add_group(&source, by, &group, path);
            }
        };
        each(source("cpu", &[], TIMES), &["cpu"], "cpu.times_per_cpu");
        each(source("cpu", &[], PERCENT), &["cpu"], "cpu.percent_per_cpu");
        each(source("disk", &[], DISK), &["device"], "disk.io_per_disk");
        let interfaces = source("netdev", &[], NETWORK);
        each(interfaces, &["device"], "network.netio_per_interface");
        each(
            source("gpu", &[IsNull("parent_uuid")], GPU),
            &["index"],
            "gpu",
        );
        each(
            source("energy", &[], ENERGY),
            &["domain", "socket", "die"],
            "energy",
        );
        each(source("fabric", &[], FABRIC), &["device", "port"], "fabric");
        node.totals = vec![f64::NAN; node.quantities.len()];
        node.gauges = node.totals.clone();
        node
    }

    fn add(&mut self, source: &Source, path: &str) {
        for (number, (key, ..)) in source.figures.iter().enumerate() {
            self.push(
                source,
                number,
                Column::of(source.figure(number)),
                &[path, key].join("."),
            );
        }
    }

    /// The only figure of a source.
    fn add_as(&mut self, source: &Source, path: &str) {
        let figure = source.figure(0).over_rows(OverRows::Mean);
        self.push(source, 0, Column::of(figure), path);
    }

    fn add_group(&mut self, source: &Source, by: &'static [&'static str], group: &str, path: &str) {
        for (number, (key, ..)) in source.figures.iter().enumerate() {
            let column = Column::of_group(source.figure(number), by, group);
            self.push(source, number, column, path);
            let Some(Quantity { path, .. }) = self.quantities.last_mut() else {
                continue;
            };
            // In the order of their numbers.
            let item = group.replace(SEPARATOR, "-");
            path.push(if by == ["cpu"] {
                format!("{item:>8}")
            } else {
                item
            });
            if source.figures.len() > 1 {
                path.extend(key.split('.').map(str::to_owned));
            }
        }
    }

    fn push(&mut self, source: &Source, number: usize, column: Column, path: &str) {
        self.quantities.push(Quantity {
            path: path.split('.').map(str::to_owned).collect(),
            kind: source.figures[number].1,
            column,
        });
    }

    /// What is read: for each sample that it exists, and the values.
    pub fn columns(&self) -> Vec<Column> {
        let columns = self.quantities.iter().map(|quantity| &quantity.column);
        let exists = OF_PROCESSES.iter().find(|figure| figure.name == "samples");
        let exists = exists.map(|figure| Column::of(*figure));
        exists.into_iter().chain(columns.cloned()).collect()
    }

    /// The blocks at `ts`, which is not after the sample that follows, if there is one.
    pub fn at(&self, ts: i64, next: Option<(i64, &Sample)>) -> Map<String, Json> {
        let share = next.map_or(0.0, |(end, sample)| {
            let length = match self.ts {
                i64::MIN => 1e6 * sample.seconds,
                before => (end - before) as f64,
            };
            (1.0 - (end - ts) as f64 / length).clamp(0.0, 1.0)
        });
        let mut blocks = Json::Object(Map::new());
        for (number, quantity) in self.quantities.iter().enumerate() {
            let follows = next.map_or(f64::NAN, |(_, sample)| sample.values[number + 1]);
            let total = self.totals[number];
            let value = match quantity.kind {
                Total | Count if follows.is_nan() => total,
                Total | Count => total.max(0.0) + share * follows,
                Gauge | Kept if self.ts == i64::MIN => follows,
                Gauge | Kept => self.gauges[number],
            };
            let value = if quantity.kind == Count {
                value.round()
            } else {
                value
            };
            if !value.is_nan() {
                set(&mut blocks, &quantity.path, number_of(value));
            }
        }
        for list in ["times_per_cpu", "percent_per_cpu"] {
            if let Some(Json::Object(items)) =
                blocks.pointer_mut(&format!("/cpu/{list}")).map(Json::take)
            {
                blocks["cpu"][list] = items.into_iter().map(|(_, value)| value).collect();
            }
        }
        match blocks {
            Json::Object(blocks) => blocks,
            _ => Map::new(),
        }
    }

    /// Adds a sample.
    pub fn advance(&mut self, ts: i64, sample: &Sample) {
        self.ts = ts;
        for (number, quantity) in self.quantities.iter().enumerate() {
            let value = sample.values[number + 1];
            match quantity.kind {
                Total | Count | Kept if value.is_nan() => {}
                // NaN before the first value.
                Total | Count => self.totals[number] = self.totals[number].max(0.0) + value,
                Gauge | Kept => self.gauges[number] = value,
            }
        }
    }
}

/// Sets the value at a path of keys.
fn set(object: &mut Json, path: &[String], value: Json) {
    let mut place = object;
    for key in path {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[key];
    }
    *place = value;
}

/// Integers have no fraction.
pub fn number_of(value: f64) -> Json {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "exact")]
        return json!(value as i64);
    }
    json!(value)
}
