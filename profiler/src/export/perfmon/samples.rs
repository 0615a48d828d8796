//! Values of a host or GPU at each sample.

use std::{collections::HashMap, io, path::Path};

use serde_json::{Value, json};

use super::{
    document::{List, Node},
    keys::Kind,
};
use crate::{analysis::samples::Sample, export::series::Column};

/// A list of perfmon.
#[derive(Clone, Debug)]
pub struct Quantity {
    /// Keys in the object of the host.
    pub path: Vec<String>,
    /// Name of the column in data frames, if it has one.
    pub header: Option<String>,
    pub kind: Kind,
    /// What values are multiplied with.
    pub factor: f64,
    /// What values of data frames are multiplied with in addition.
    pub frame_factor: f64,
    column: Column,
}

/// A host or GPU.
pub struct Block {
    /// Number of the host.
    pub host: usize,
    pub name: String,
    /// Whether a sample has the time of its start rather than of its end.
    pub at_start: bool,
    /// The samples that exist.
    presence: Column,
    pub quantities: Vec<Quantity>,
    /// Values by time, µs.
    pub known: HashMap<i64, f64>,
    /// Further keys.
    pub facts: Vec<(String, Value)>,
}

impl Block {
    /// Without quantities.
    pub fn new(host: usize, name: String, presence: Column) -> Self {
        Self {
            host,
            name,
            at_start: false,
            presence,
            quantities: Vec::new(),
            known: HashMap::new(),
            facts: Vec::new(),
        }
    }

    /// Adds a quantity at a path of keys separated by dots.
    pub fn add(&mut self, path: &str, header: &str, kind: Kind, column: Column) -> &mut Quantity {
        let path = path.split('.').map(str::to_owned).collect();
        self.add_at(path, Some(header.to_owned()), kind, column)
    }

    /// Adds a quantity.
    pub fn add_at(
        &mut self,
        path: Vec<String>,
        header: Option<String>,
        kind: Kind,
        column: Column,
    ) -> &mut Quantity {
        self.quantities.push(Quantity {
            path,
            header,
            kind,
            factor: 1.0,
            frame_factor: 1.0,
            column,
        });
        let last = self.quantities.len() - 1;
        &mut self.quantities[last]
    }

    /// What is read: for each sample that it exists, and the values of the quantities.
    pub fn columns(&self) -> Vec<Column> {
        let columns = self.quantities.iter().map(|quantity| &quantity.column);
        std::iter::once(&self.presence)
            .chain(columns)
            .cloned()
            .collect()
    }
}

/// Lists of a block.
pub struct Values {
    times: List,
    lists: Vec<List>,
    totals: Vec<f64>,
}

/// Values of a sample.
pub struct Row {
    /// s since 1970-01-01 UTC.
    pub time: f64,
    /// In the order of the quantities; NaN for null.
    pub values: Vec<f64>,
}

impl Values {
    /// Empty lists, in files of a directory.
    pub fn new(block: &Block, directory: &Path) -> io::Result<Self> {
        let lists = block.quantities.iter().map(|_| List::new(directory));
        Ok(Self {
            times: List::new(directory)?,
            lists: lists.collect::<Result<_, _>>()?,
            totals: vec![0.0; block.quantities.len()],
        })
    }

    /// Adds a sample.
    pub fn add(&mut self, block: &Block, ts: i64, sample: &Sample) -> io::Result<Row> {
        let mut row = Row {
            time: ts as f64 / 1e6,
            values: Vec::with_capacity(block.quantities.len()),
        };
        if block.at_start {
            row.time -= sample.seconds;
        }
        // Microseconds.
        row.time = (row.time * 1e6).round() / 1e6;
        self.times.push(&json!(row.time).to_string())?;
        let read = sample.values.iter().skip(1);
        for (number, (quantity, read)) in block.quantities.iter().zip(read).enumerate() {
            let total = &mut self.totals[number];
            let value = match quantity.kind {
                Kind::Gauge => *read,
                Kind::Total | Kind::TotalOfProcesses if !read.is_nan() => {
                    *total += read;
                    *total
                }
                Kind::Total => f64::NAN,
                Kind::TotalOfProcesses => *total,
                Kind::Rate => read / sample.seconds,
                Kind::PercentIs(of) => 100.0 * row.values[of] / read,
                Kind::Known => block.known.get(&ts).copied().unwrap_or(f64::NAN),
            };
            let value = value * quantity.factor;
            self.lists[number].push(&number_text(value))?;
            row.values.push(value);
        }
        Ok(row)
    }

    /// The object of the block.
    pub fn document(self, quantities: &[Quantity]) -> Node {
        let mut document = Node::default();
        document.set(&["time_stamps".to_owned()], Node::List(self.times));
        for (quantity, list) in quantities.iter().zip(self.lists) {
            document.set(&quantity.path, Node::List(list));
        }
        document
    }
}

/// A number in JSON; integers without a fraction.
pub fn number_text(value: f64) -> String {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return format!("{value:.0}");
    }
    json!(value).to_string()
}
