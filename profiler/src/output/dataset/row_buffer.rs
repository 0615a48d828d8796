//! Rows that wait to be encoded as a row group of a Parquet file.

use arrow::{
    array::{Array, AsArray as _, RecordBatch},
    compute::{concat_batches, sort_to_indices, take_record_batch},
    datatypes::{SchemaRef, TimestampMicrosecondType},
    error::ArrowError,
};

/// Batches with fewer rows are merged: most of the memory of a small batch is overhead.
const SHORT: usize = 1024;

/// Batches of one table, oldest first.
#[derive(Debug)]
pub struct RowBuffer {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    bytes: usize,
}

impl RowBuffer {
    /// No rows; all rows to come have `schema`.
    pub fn new(schema: SchemaRef) -> Self {
        Self {
            schema,
            batches: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds rows.
    pub fn push(&mut self, mut rows: RecordBatch) -> Result<(), ArrowError> {
        if let Some(last) = self.batches.pop_if(|last| last.num_rows() < SHORT) {
            self.bytes -= last.get_array_memory_size();
            rows = concat_batches(&self.schema, [&last, &rows])?;
        }
        self.bytes += rows.get_array_memory_size();
        self.batches.push(rows);
        Ok(())
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.batches.iter().map(|rows| rows.num_rows() as u64).sum()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Takes all rows, sorted by `ts` if the table has this column.
    pub fn take(&mut self) -> Result<Vec<RecordBatch>, ArrowError> {
        self.bytes = 0;
        let batches = std::mem::take(&mut self.batches);
        let Ok(ts) = self.schema.index_of("ts") else {
            return Ok(batches);
        };
        if is_sorted(&batches, ts) {
            return Ok(batches);
        }
        let all = concat_batches(&self.schema, &batches)?;
        let order = sort_to_indices(all.column(ts), None, None)?;
        Ok(vec![take_record_batch(&all, &order)?])
    }
}

/// Whether the values of a column never decrease over all batches. A column of another type counts
/// as sorted.
fn is_sorted(batches: &[RecordBatch], column: usize) -> bool {
    let mut last = i64::MIN;
    batches.iter().all(|batch| {
        let column = batch.column(column);
        column
            .as_primitive_opt::<TimestampMicrosecondType>()
            .is_none_or(|ts| {
                ts.null_count() == 0
                    && ts
                        .values()
                        .iter()
                        .all(|ts| std::mem::replace(&mut last, *ts) <= *ts)
            })
    })
}
