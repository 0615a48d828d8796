//! Rows of sleeping processes that were left out: see [`Table::sparse`](crate::schema::Table::sparse).

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, AsArray as _, BooleanArray, PrimitiveArray, RecordBatch, UInt32Array, UInt64Array,
    },
    compute::{nullif, take_record_batch},
    datatypes::{Field, Schema, TimestampMicrosecondType, UInt64Type},
    error::ArrowError,
};

use super::metadata::SPARSE;
use crate::schema::Sparse;

/// Whether rows are left out of a file with this schema.
pub fn is_sparse(schema: &Schema) -> bool {
    schema.metadata().contains_key(SPARSE)
}

/// The rows of a file with this schema, which readers of Parquet files leave without its metadata.
#[must_use]
pub fn of_file(batch: RecordBatch, file: &Schema) -> RecordBatch {
    if !is_sparse(file) {
        return batch;
    }
    let mut schema = Schema::clone(batch.schema_ref());
    schema.metadata.insert(SPARSE.to_owned(), "true".to_owned());
    let marked = batch.clone().with_schema(Arc::new(schema));
    // The metadata are all that differs.
    marked.unwrap_or(batch)
}

/// A row with those of its process before it that were left out.
#[derive(Clone, Copy, Debug)]
pub struct FilledRow {
    /// The row that is stored, or after which this one was left out.
    pub of: u32,
    pub part: Part,
}

/// What a row is made of.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// A stored row without the time, ns, of the rows before it that were left out.
    Stored { filled_ns: u64 },
    /// A row that was left out: its time, µs since 1970-01-01 UTC, and its interval.
    Asleep { ts: i64, interval_ns: u64 },
}

impl FilledRow {
    /// A stored row, with all of its time.
    pub fn stored(of: u32) -> Self {
        Self {
            of,
            part: Part::Stored { filled_ns: 0 },
        }
    }
}

/// Makes rows of those of a batch.
///
/// # Errors
///
/// When Arrow cannot select the rows.
pub fn fill(
    batch: &RecordBatch,
    sparse: &Sparse,
    rows: &[FilledRow],
) -> Result<RecordBatch, ArrowError> {
    let taken = take_record_batch(
        batch,
        &rows.iter().map(|row| row.of).collect::<UInt32Array>(),
    )?;
    let schema = taken.schema();
    let columns = schema.fields().iter().zip(taken.columns());
    let columns = columns.map(|(field, column)| filled(field, column, sparse, rows));
    RecordBatch::try_new(schema.clone(), columns.collect::<Result<_, _>>()?)
}

fn filled(
    field: &Field,
    column: &ArrayRef,
    sparse: &Sparse,
    rows: &[FilledRow],
) -> Result<ArrayRef, ArrowError> {
    let kind = field.metadata().get("kind").map(String::as_str);
    match &**field.name() {
        "ts" => Ok(times(column, rows)),
        "interval_ns" => Ok(spans(column, rows)),
        name if Some(name) == sparse.asleep => Ok(spans(column, rows)),
        name if sparse.occasional.contains(&name) => known_if_stored(column, rows),
        _ if kind == Some("counter") => counts(column, rows),
        _ => Ok(column.clone()),
    }
}

fn times(column: &ArrayRef, rows: &[FilledRow]) -> ArrayRef {
    let Some(stored) = column.as_primitive_opt::<TimestampMicrosecondType>() else {
        return column.clone();
    };
    let times = rows.iter().zip(stored).map(|(row, ts)| match row.part {
        Part::Stored { .. } => ts,
        Part::Asleep { ts, .. } => Some(ts),
    });
    let times: PrimitiveArray<TimestampMicrosecondType> = times.collect();
    Arc::new(times.with_data_type(column.data_type().clone()))
}

/// Times that are the interval while the process sleeps.
fn spans(column: &ArrayRef, rows: &[FilledRow]) -> ArrayRef {
    let Some(stored) = column.as_primitive_opt::<UInt64Type>() else {
        return column.clone();
    };
    let spans = rows.iter().zip(stored).map(|(row, ns)| match row.part {
        Part::Stored { filled_ns } => Some(ns?.saturating_sub(filled_ns)),
        Part::Asleep { interval_ns, .. } => ns.map(|_| interval_ns),
    });
    Arc::new(spans.collect::<UInt64Array>())
}

fn counts(column: &ArrayRef, rows: &[FilledRow]) -> Result<ArrayRef, ArrowError> {
    let Some(stored) = column.as_primitive_opt::<UInt64Type>() else {
        return known_if_stored(column, rows);
    };
    let counts = rows.iter().zip(stored).map(|(row, count)| match row.part {
        Part::Stored { .. } => count,
        Part::Asleep { .. } => count.map(|_| 0),
    });
    Ok(Arc::new(counts.collect::<UInt64Array>()))
}

fn known_if_stored(column: &ArrayRef, rows: &[FilledRow]) -> Result<ArrayRef, ArrowError> {
    let is_asleep = rows
        .iter()
        .map(|row| Some(matches!(row.part, Part::Asleep { .. })));
    nullif(column, &is_asleep.collect::<BooleanArray>())
}
