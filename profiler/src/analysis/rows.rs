//! Columns of a batch of any version of the schema.

use arrow::{
    array::{Array as _, AsArray as _, RecordBatch, StringArray},
    compute::cast,
    datatypes::{DataType, Float64Type, Int64Type, TimeUnit, TimestampMicrosecondType, UInt32Type},
};

/// A process: pid and start, µs since 1970-01-01 UTC.
pub type ProcessKey = (u32, i64);

/// Numbers of a column, NaN for null, for what is not finite, and if the column is missing.
pub fn numbers(batch: &RecordBatch, name: &str) -> Vec<f64> {
    let unknown = || vec![f64::NAN; batch.num_rows()];
    let Some(column) = batch.column_by_name(name) else {
        return unknown();
    };
    let Ok(column) = cast(column, &DataType::Float64) else {
        return unknown();
    };
    let column = column.as_primitive::<Float64Type>();
    column
        .iter()
        .map(|value| value.filter(|value| value.is_finite()).unwrap_or(f64::NAN))
        .collect()
}

/// Texts of a column, `None` for null and if the column is missing.
pub struct Texts(Option<StringArray>);

impl Texts {
    /// The column `name`.
    pub fn of(batch: &RecordBatch, name: &str) -> Self {
        let column = batch.column_by_name(name);
        let texts = column.and_then(|column| cast(column, &DataType::Utf8).ok());
        Self(texts.map(|texts| texts.as_string::<i32>().clone()))
    }

    /// The text of a row.
    pub fn get(&self, row: usize) -> Option<&str> {
        let texts = self.0.as_ref()?;
        texts.is_valid(row).then(|| texts.value(row))
    }
}

/// Whether µs since 1970-01-01 UTC are a time of a clock: they fit into ns, from 1677 until 2262. The
/// difference of two such times is no overflow, and all of them have a date.
pub fn is_time(us: i64) -> bool {
    us.checked_mul(1000).is_some()
}

/// Times of a column, µs since 1970-01-01 UTC; `None` for null, if the column is missing, and for what is
/// [no time](is_time).
pub fn times(batch: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    let unit = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let column = batch.column_by_name(name);
    match column.and_then(|column| cast(column, &unit).ok()) {
        Some(times) => times
            .as_primitive::<TimestampMicrosecondType>()
            .iter()
            .map(|time| time.filter(|us| is_time(*us)))
            .collect(),
        None => vec![None; batch.num_rows()],
    }
}

/// Integers of a column, `None` for null and if the column is missing.
pub fn integers(batch: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    let column = batch.column_by_name(name);
    match column.and_then(|column| cast(column, &DataType::Int64).ok()) {
        Some(values) => values.as_primitive::<Int64Type>().iter().collect(),
        None => vec![None; batch.num_rows()],
    }
}

/// The process of each row; `None` in rows without one.
pub fn processes(batch: &RecordBatch) -> Vec<Option<ProcessKey>> {
    let pids = batch.column_by_name("pid");
    let pids = pids.and_then(|pids| pids.as_primitive_opt::<UInt32Type>());
    match pids {
        Some(pids) => pids
            .iter()
            .zip(times(batch, "start_ts"))
            .map(|(pid, start)| pid.zip(start))
            .collect(),
        None => vec![None; batch.num_rows()],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    #[test]
    fn differences_of_times_fit() {
        let [first, last] = [i64::MIN / 1000, i64::MAX / 1000];
        let column = [
            Some(i64::MIN),
            Some(first),
            None,
            Some(last),
            Some(last + 1),
        ];
        let column: ArrayRef = Arc::new(Int64Array::from_iter(column));
        let batch = RecordBatch::try_from_iter([("ts", column)]).expect("a batch");
        let found = times(&batch, "ts");
        assert_eq!(found, [None, Some(first), None, Some(last), None]);
        assert!(last.checked_sub(first).is_some());
    }
}
