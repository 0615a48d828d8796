//! Sums, means and extremes of one column over the rows of a period.

use std::sync::Arc;

use arrow::{
    array::{
        Array as _, ArrayRef, AsArray as _, Float64Array, Int32Array, Int64Array, ListBuilder,
        RecordBatch, UInt32Array, UInt64Array, UInt64Builder,
    },
    datatypes::{DataType, Float64Type, Int32Type, Int64Type, UInt32Type, UInt64Type},
};

/// A value of a numeric column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// Whether columns of this type have such values.
    pub fn is_type(of: &DataType) -> bool {
        use DataType::{Float64, Int32, Int64, UInt32, UInt64};
        matches!(of, UInt64 | Int64 | UInt32 | Int32 | Float64)
    }

    /// The value in a row; `None` for null.
    pub fn of(column: &ArrayRef, row: usize) -> Option<Self> {
        if column.is_null(row) {
            return None;
        }
        Some(match column.data_type() {
            DataType::UInt64 => Self::Int(column.as_primitive::<UInt64Type>().value(row).into()),
            DataType::Int64 => Self::Int(column.as_primitive::<Int64Type>().value(row).into()),
            DataType::UInt32 => Self::Int(column.as_primitive::<UInt32Type>().value(row).into()),
            DataType::Int32 => Self::Int(column.as_primitive::<Int32Type>().value(row).into()),
            DataType::Float64 => Self::Float(column.as_primitive::<Float64Type>().value(row)),
            _ => return None,
        })
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Self::Int(a.saturating_add(b)),
            (a, b) => Self::Float(a.float() + b.float()),
        }
    }

    fn times(self, time: u64) -> Self {
        match self {
            Self::Int(value) => Self::Int(value.saturating_mul(time.into())),
            Self::Float(value) => Self::Float(value * time as f64),
        }
    }

    /// The quotient; integers are rounded.
    fn over(self, time: u64) -> Self {
        match self {
            Self::Int(value) => {
                let half = i128::from(time) / 2;
                Self::Int(value.saturating_add(half).div_euclid(time.into()))
            }
            Self::Float(value) => Self::Float(value / time as f64),
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    fn least(self, other: Self) -> Self {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Self::Int(a.min(b)),
            (a, b) => Self::Float(a.float().min(b.float())),
        }
    }

    fn greatest(self, other: Self) -> Self {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Self::Int(a.max(b)),
            (a, b) => Self::Float(a.float().max(b.float())),
        }
    }
}

/// A column of this type.
fn array(values: Vec<Option<Number>>, of: &DataType) -> ArrayRef {
    fn ints<T: TryFrom<i128>>(values: Vec<Option<Number>>) -> impl Iterator<Item = Option<T>> {
        values.into_iter().map(|value| match value? {
            Number::Int(value) => T::try_from(value).ok(),
            Number::Float(_) => None,
        })
    }
    match of {
        DataType::UInt64 => Arc::new(ints(values).collect::<UInt64Array>()),
        DataType::Int64 => Arc::new(ints(values).collect::<Int64Array>()),
        DataType::UInt32 => Arc::new(ints(values).collect::<UInt32Array>()),
        DataType::Int32 => Arc::new(ints(values).collect::<Int32Array>()),
        _ => {
            let floats = values.into_iter().map(|value| value.map(Number::float));
            Arc::new(floats.collect::<Float64Array>())
        }
    }
}

/// One column.
pub enum Accumulator {
    Fold(Fold),
    List(ListSum),
    Gauge(Gauge),
}

impl Accumulator {
    /// Adds a value of a row that covers `interval` ns.
    pub fn add(&mut self, batch: &RecordBatch, row: usize, interval: u64) {
        match self {
            Self::Fold(fold) => fold.add(batch, row),
            Self::List(sum) => sum.add(batch, row),
            Self::Gauge(gauge) => gauge.add(batch, row, interval),
        }
    }

    /// Ends the row that is being made, which covers `interval` ns.
    pub fn end_row(&mut self, interval: u64) {
        match self {
            Self::Fold(fold) => fold.end_row(),
            Self::List(sum) => sum.end_row(),
            Self::Gauge(gauge) => gauge.end_row(interval),
        }
    }

    /// Replaces the columns by the values of the finished rows.
    pub fn finish(&mut self, columns: &mut [ArrayRef]) {
        match self {
            Self::Fold(fold) => columns[fold.column] = fold.finish(),
            Self::List(sum) => columns[sum.column] = Arc::new(sum.rows.finish()),
            Self::Gauge(gauge) => gauge.finish(columns),
        }
    }
}

/// Sum or greatest of the values; null without values.
pub struct Fold {
    column: usize,
    data_type: DataType,
    with: fn(Number, Number) -> Number,
    open: Option<Number>,
    rows: Vec<Option<Number>>,
}

impl Fold {
    pub fn sum(column: usize, data_type: &DataType) -> Self {
        Self::new(column, data_type, Number::plus)
    }

    pub fn greatest(column: usize, data_type: &DataType) -> Self {
        Self::new(column, data_type, Number::greatest)
    }

    fn new(column: usize, data_type: &DataType, with: fn(Number, Number) -> Number) -> Self {
        Self {
            column,
            data_type: data_type.clone(),
            with,
            open: None,
            rows: Vec::new(),
        }
    }

    fn add(&mut self, batch: &RecordBatch, row: usize) {
        if let Some(value) = Number::of(batch.column(self.column), row) {
            let with = self.with;
            self.open = Some(self.open.map_or(value, |open| with(open, value)));
        }
    }

    fn end_row(&mut self) {
        self.rows.push(self.open.take());
    }

    fn finish(&mut self) -> ArrayRef {
        array(std::mem::take(&mut self.rows), &self.data_type)
    }
}

/// Sum of histograms, bucket by bucket.
pub struct ListSum {
    column: usize,
    open: Option<Vec<u64>>,
    rows: ListBuilder<UInt64Builder>,
}

impl ListSum {
    pub fn new(column: usize) -> Self {
        Self {
            column,
            open: None,
            rows: ListBuilder::default(),
        }
    }

    fn add(&mut self, batch: &RecordBatch, row: usize) {
        let lists = batch.column(self.column).as_list::<i32>();
        if lists.is_null(row) {
            return;
        }
        let buckets = lists.value(row);
        let buckets = buckets.as_primitive::<UInt64Type>();
        let sums = self.open.get_or_insert_default();
        sums.resize(sums.len().max(buckets.len()), 0);
        for (sum, bucket) in sums.iter_mut().zip(buckets) {
            *sum = sum.saturating_add(bucket.unwrap_or(0));
        }
    }

    fn end_row(&mut self) {
        self.rows
            .append_option(self.open.take().map(|sums| sums.into_iter().map(Some)));
    }
}

/// Mean and extremes; null without values.
pub struct Gauge {
    column: usize,
    /// Columns of the least and greatest value.
    extremes: [usize; 2],
    data_type: DataType,
    /// Whether the mean is that of the period, not of the time of the rows.
    over_period: bool,
    /// Time of rows that are null, ns.
    unknown: u64,
    open: Option<Open>,
    rows: [Vec<Option<Number>>; 3],
}

struct Open {
    /// Sum of value × time, and of the times in ns.
    weighted: Number,
    time: u64,
    extremes: [Number; 2],
}

impl Gauge {
    pub fn new(
        column: usize,
        extremes: [usize; 2],
        data_type: &DataType,
        over_period: bool,
    ) -> Self {
        Self {
            column,
            extremes,
            data_type: data_type.clone(),
            over_period,
            unknown: 0,
            open: None,
            rows: Default::default(),
        }
    }

    fn add(&mut self, batch: &RecordBatch, row: usize, interval: u64) {
        let Some(value) = Number::of(batch.column(self.column), row) else {
            self.unknown = self.unknown.saturating_add(interval);
            return;
        };
        let [min, max] = self
            .extremes
            .map(|column| Number::of(batch.column(column), row).unwrap_or(value));
        // The first row can have no time.
        let time = interval.max(1);
        let weighted = value.times(time);
        let Some(open) = &mut self.open else {
            self.open = Some(Open {
                weighted,
                time,
                extremes: [min, max],
            });
            return;
        };
        open.weighted = open.weighted.plus(weighted);
        open.time = open.time.saturating_add(time);
        let [least, greatest] = open.extremes;
        open.extremes = [least.least(min), greatest.greatest(max)];
    }

    fn end_row(&mut self, interval: u64) {
        let known = interval.saturating_sub(std::mem::take(&mut self.unknown));
        let over_period = self.over_period;
        let values = self.open.take().map_or([None; 3], |open| {
            let [least, greatest] = open.extremes;
            let time = if over_period {
                open.time.max(known)
            } else {
                open.time
            };
            let mean = open.weighted.over(time);
            [mean, least, greatest].map(Some)
        });
        for (rows, value) in self.rows.iter_mut().zip(values) {
            rows.push(value);
        }
    }

    fn finish(&mut self, columns: &mut [ArrayRef]) {
        let [min, max] = self.extremes;
        for (column, rows) in [self.column, min, max].into_iter().zip(&mut self.rows) {
            columns[column] = array(std::mem::take(rows), &self.data_type);
        }
    }
}
