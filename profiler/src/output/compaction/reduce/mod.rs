//! Fewer rows for older days: those of a series and period become one.
//!
//! A series is a run, a host and the values of all labels. Of its rows in a period, increases are
//! added up, and maxima are the greatest ones. `ts` is the end of the period or, before it, of the run;
//! `interval_ns` is the part of the period in which the run has rows in the table. Gauges are averaged over the time of the rows. Bytes and numbers of things are averaged over the period
//! instead, so that they can still be added up: a process with 1 GiB for half a second has 512 MiB in
//! a second. Columns `NAME_min` and `NAME_max` have the least and greatest value of each gauge.
//! States and other numbers without a unit are the last ones.

mod accumulators;
pub mod by_host;
mod filler;
mod times;

use std::{io, sync::Arc};

use arrow::{
    array::{Array as _, ArrayRef, AsArray as _, PrimitiveArray, RecordBatch, UInt64Array},
    compute::interleave_record_batch,
    datatypes::{DataType, Field, Schema, SchemaRef, TimestampMicrosecondType, UInt64Type},
};

pub use self::accumulators::Number;
use self::{
    accumulators::{Accumulator, Fold, Gauge, ListSum},
    times::Times,
};
use super::{
    check::places,
    keep::Resolution,
    sort::{BATCH_ROWS, Sink, SortKey},
};

/// Column with the time of a row, ns.
pub const INTERVAL: &str = "interval_ns";
/// Column with the end of this time.
pub const TS: &str = "ts";

/// Ending of the name of a column with the least value of a gauge, and of the greatest.
const EXTREMES: [&str; 2] = ["_min", "_max"];

/// How a column of a reduced row comes from those of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Part of the series.
    Series,
    /// End of the period.
    Time,
    /// Time of the period that the run covers.
    Interval,
    Sum,
    Greatest,
    /// Mean over the time of the rows.
    Mean,
    /// Mean over the period.
    PeriodMean,
    /// Extreme of a gauge, which is computed with its mean.
    Extreme,
    Last,
}

/// Whether rows of a table can be reduced: each covers a time, and none is of a whole life or of a
/// region, which has limits of its own.
pub fn is_reducible(schema: &Schema, is_keyed: bool) -> bool {
    let is_time = |field: &Field| matches!(field.data_type(), DataType::Timestamp(..));
    !is_keyed
        // `region` before version 4 of the schema.
        && ["region_id", "region"].iter().all(|name| schema.field_with_name(name).is_err())
        && schema.field_with_name(INTERVAL).is_ok()
        && schema.field_with_name(TS).is_ok_and(is_time)
}

/// Whether a column has the least or greatest values of a gauge.
pub fn is_extreme(schema: &Schema, name: &str) -> bool {
    EXTREMES.iter().any(|ending| {
        let gauge = name.strip_suffix(ending);
        let gauge = gauge.and_then(|name| schema.field_with_name(name).ok());
        gauge.is_some_and(|field| is_mean(schema, field))
    })
}

/// Fields for the extremes of all gauges.
pub fn extremes(schema: &Schema) -> Vec<Field> {
    let gauges = schema.fields().iter();
    let gauges = gauges.filter(|field| is_mean(schema, field));
    let both = gauges.flat_map(|field| {
        EXTREMES.map(|ending| {
            let which = if ending == "_min" {
                "Least"
            } else {
                "Greatest"
            };
            let mut metadata = field.metadata().clone();
            let help = format!(
                "{which} `{}` of the rows that became this one",
                field.name()
            );
            metadata.insert("help".to_owned(), help);
            let name = format!("{}{ending}", field.name());
            Field::new(name, field.data_type().clone(), true).with_metadata(metadata)
        })
    });
    both.collect()
}

fn is_mean(schema: &Schema, field: &Field) -> bool {
    matches!(rule(schema, field), Rule::Mean | Rule::PeriodMean)
}

fn rule(schema: &Schema, field: &Field) -> Rule {
    let name = field.name();
    let kind = field.metadata().get("kind").map(String::as_str);
    let unit = field.metadata().get("unit").map(String::as_str);
    let data_type = field.data_type();
    let is_number = Number::is_type(data_type);
    let is_integer = is_number && *data_type != DataType::Float64;
    let is_list = matches!(data_type, DataType::List(of) if of.data_type() == &DataType::UInt64);
    match kind {
        _ if name == TS => Rule::Time,
        _ if name == INTERVAL => Rule::Interval,
        Some("counter") if is_number || is_list => Rule::Sum,
        Some("maximum") if is_number => Rule::Greatest,
        Some("gauge") if is_number && is_extreme_name(schema, name) => Rule::Extreme,
        Some("gauge") if is_integer => match unit {
            Some("bytes" | "1") => Rule::PeriodMean,
            Some("") => Rule::Last,
            _ => Rule::Mean,
        },
        Some("gauge") if is_number => Rule::Mean,
        Some("gauge") => Rule::Last,
        _ => Rule::Series,
    }
}

fn is_extreme_name(schema: &Schema, name: &str) -> bool {
    EXTREMES.iter().any(|ending| {
        let gauge = name.strip_suffix(ending);
        gauge.is_some_and(|gauge| schema.field_with_name(gauge).is_ok())
    })
}

/// Columns whose sums a reduction does not change: the number of the column.
pub fn sums(schema: &Schema) -> Vec<usize> {
    let fields = schema.fields().iter().enumerate();
    let sums = fields.filter(|(_, field)| rule(schema, field) == Rule::Sum);
    sums.map(|(number, _)| number).collect()
}

/// The columns by which rows are sorted before they are reduced: series, then time.
pub fn sorted_by(schema: &Schema) -> Vec<&str> {
    let fields = schema.fields().iter();
    let series = fields.filter(|field| rule(schema, field) == Rule::Series);
    let series = series.map(|field| field.name().as_str());
    series.chain([TS]).collect()
}

struct Open {
    series: Box<[u8]>,
    /// End of its period, and its own `ts`.
    end: i64,
    ts: i64,
    /// Time of the period that its run covers, ns.
    covered_ns: u64,
    /// Sum of the times of its rows, ns.
    rows_ns: u64,
}

/// Reduces rows that are sorted by [`sorted_by`].
pub struct Reducer {
    schema: SchemaRef,
    resolution: Resolution,
    series: SortKey,
    ts: usize,
    interval: usize,
    /// Of columns that are not the same in the rows of a series.
    accumulators: Vec<Accumulator>,
    times: Times,
    /// The row that is being made: its series, and the end of its period.
    open: Option<Open>,
    /// Batches with the last row of each finished row, and where they are.
    batches: Vec<RecordBatch>,
    last: (usize, usize),
    places: Vec<(usize, usize)>,
    ends: Vec<i64>,
    intervals: Vec<u64>,
}

impl Reducer {
    /// For rows of this schema, which has the [extremes], at these times.
    ///
    /// # Errors
    ///
    /// When a column has a type without an order.
    pub fn new(schema: SchemaRef, resolution: Resolution, times: Times) -> io::Result<Self> {
        let mut names = sorted_by(&schema);
        names.pop();
        let series = SortKey::new(&schema, &names)?;
        let index = |name: &str| schema.index_of(name).map_err(io::Error::other);
        let mut accumulators = Vec::new();
        for (number, field) in schema.fields().iter().enumerate() {
            match rule(&schema, field) {
                Rule::Sum if Number::is_type(field.data_type()) => {
                    accumulators.push(Accumulator::Fold(Fold::sum(number, field.data_type())));
                }
                Rule::Sum => accumulators.push(Accumulator::List(ListSum::new(number))),
                Rule::Greatest => {
                    accumulators.push(Accumulator::Fold(Fold::greatest(number, field.data_type())));
                }
                of @ (Rule::Mean | Rule::PeriodMean) => {
                    let [min, max] = EXTREMES;
                    let extremes = [
                        index(&format!("{}{min}", field.name()))?,
                        index(&format!("{}{max}", field.name()))?,
                    ];
                    let gauge =
                        Gauge::new(number, extremes, field.data_type(), of == Rule::PeriodMean);
                    accumulators.push(Accumulator::Gauge(gauge));
                }
                Rule::Series | Rule::Time | Rule::Interval | Rule::Extreme | Rule::Last => {}
            }
        }
        Ok(Self {
            ts: index(TS)?,
            interval: index(INTERVAL)?,
            schema,
            resolution,
            series,
            accumulators,
            times,
            open: None,
            batches: Vec::new(),
            last: (0, 0),
            places: Vec::new(),
            ends: Vec::new(),
            intervals: Vec::new(),
        })
    }

    /// Adds the next rows, and passes finished ones on.
    ///
    /// # Errors
    ///
    /// Those of `sink`; when the rows have other columns.
    pub fn push(&mut self, batch: &RecordBatch, sink: Sink<'_>) -> io::Result<()> {
        let series = self.series.of(batch)?;
        let ts = batch
            .column(self.ts)
            .as_primitive::<TimestampMicrosecondType>();
        let interval = batch.column(self.interval).as_primitive_opt::<UInt64Type>();
        let places = places(batch)?;
        self.batches.push(batch.clone());
        let mut run = String::new();
        for row in 0..batch.num_rows() {
            if !places.is_as_before(row) {
                run = places.of(row).1;
            }
            let key = series.row(row);
            let end = self.resolution.end_of(ts.value(row));
            let is_same = self
                .open
                .as_ref()
                .is_some_and(|open| open.end == end && *open.series == *key.data());
            if !is_same {
                self.end_row();
                self.open = Some(Open {
                    series: key.data().into(),
                    end,
                    ts: self.times.end(&run, end),
                    covered_ns: self.times.covered_ns(&run, end, self.resolution),
                    rows_ns: 0,
                });
            }
            let interval = interval
                .filter(|of| of.is_valid(row))
                .map_or(0, |of| of.value(row));
            if let Some(open) = &mut self.open {
                open.rows_ns = open.rows_ns.saturating_add(interval);
            }
            for accumulator in &mut self.accumulators {
                accumulator.add(batch, row, interval);
            }
            self.last = (self.batches.len() - 1, row);
        }
        if self.places.len() >= BATCH_ROWS || self.batches.len() >= 64 {
            self.flush(sink)?;
        }
        Ok(())
    }

    /// Passes all rows on.
    ///
    /// # Errors
    ///
    /// Those of `sink`.
    pub fn finish(&mut self, sink: Sink<'_>) -> io::Result<()> {
        self.end_row();
        self.flush(sink)
    }

    fn end_row(&mut self) {
        if let Some(open) = self.open.take() {
            self.places.push(self.last);
            self.ends.push(open.ts);
            // A row can be longer than a period.
            let interval = open.covered_ns.max(open.rows_ns);
            self.intervals.push(interval);
            for accumulator in &mut self.accumulators {
                accumulator.end_row(interval);
            }
        }
    }

    fn flush(&mut self, sink: Sink<'_>) -> io::Result<()> {
        if !self.places.is_empty() {
            let batches: Vec<_> = self.batches.iter().collect();
            let rows = interleave_record_batch(&batches, &self.places).map_err(io::Error::other)?;
            let mut columns = rows.columns().to_vec();
            let ends =
                PrimitiveArray::<TimestampMicrosecondType>::from(std::mem::take(&mut self.ends));
            let time = self.schema.field(self.ts).data_type();
            columns[self.ts] = Arc::new(ends.with_data_type(time.clone())) as ArrayRef;
            let intervals = UInt64Array::from(std::mem::take(&mut self.intervals));
            columns[self.interval] = Arc::new(intervals);
            for accumulator in &mut self.accumulators {
                accumulator.finish(&mut columns);
            }
            let rows = RecordBatch::try_new(self.schema.clone(), columns);
            sink(&rows.map_err(io::Error::other)?)?;
            self.places.clear();
        }
        // The row that is being made has its last row in the last batch.
        let last = self.batches.pop();
        self.batches.clear();
        if self.open.is_some() {
            self.batches.extend(last);
            self.last.0 = 0;
        }
        Ok(())
    }
}
