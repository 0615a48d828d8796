//! Rows that wait to be encoded as a row group of a Parquet file.

use arrow::{
    array::{Array, AsArray as _, RecordBatch},
    compute::{concat_batches, sort_to_indices, take_record_batch},
    datatypes::{SchemaRef, TimestampMicrosecondType},
    error::ArrowError,
};

/// Batches with fewer rows are merged: most of the memory of a small batch is overhead.
const SHORT: usize = 1024;
/// So many at a time: merging copies all their rows.
const MERGED: usize = 4;

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
    pub fn push(&mut self, rows: RecordBatch) -> Result<(), ArrowError> {
        let types = self.schema.fields().iter().map(|field| field.data_type());
        if !types.eq(rows.columns().iter().map(Array::data_type)) {
            let message = "columns of other types".to_owned();
            return Err(ArrowError::SchemaError(message));
        }
        self.bytes += rows.get_array_memory_size();
        self.batches.push(rows);
        let last = self.batches.len().checked_sub(MERGED);
        let last = last.map(|first| &self.batches[first..]);
        if let Some(last) = last.filter(|last| last.iter().all(|rows| rows.num_rows() < SHORT)) {
            let merged = concat_batches(&self.schema, last)?;
            let replaced: usize = last.iter().map(RecordBatch::get_array_memory_size).sum();
            self.bytes = self.bytes + merged.get_array_memory_size() - replaced;
            self.batches.truncate(self.batches.len() - MERGED);
            self.batches.push(merged);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::{
        array::{ArrayRef, Int32Array, UInt64Array},
        datatypes::{DataType, Field, Schema, UInt64Type},
    };

    use super::*;

    fn rows(first: u64, count: u64) -> RecordBatch {
        let column: ArrayRef = Arc::new(UInt64Array::from_iter_values(first..first + count));
        RecordBatch::try_from_iter([("number", column)]).expect("a batch")
    }

    /// All rows stay in their order, and one row at a time does not take a batch each.
    #[test]
    fn short_batches_are_merged() {
        let number = Field::new("number", DataType::UInt64, false);
        let mut buffer = RowBuffer::new(Arc::new(Schema::new(vec![number])));
        let mut next = 0;
        for count in std::iter::repeat_n(1, 3000).chain([5000, 1, 2, 3]) {
            buffer.push(rows(next, count)).expect("the same schema");
            next += count;
            let memory = buffer
                .batches
                .iter()
                .map(RecordBatch::get_array_memory_size);
            assert_eq!(buffer.bytes(), memory.sum::<usize>());
        }
        let another: ArrayRef = Arc::new(Int32Array::from(vec![7]));
        let another = RecordBatch::try_from_iter([("number", another)]).expect("a batch");
        buffer.push(another).expect_err("a column of another type");
        assert_eq!(buffer.count(), next);
        let batches = buffer.take().expect("rows");
        assert!(batches.len() < 3 + 2 * MERGED, "{}", batches.len());
        let numbers = batches.iter().flat_map(|batch| {
            let numbers = batch.column(0).as_primitive::<UInt64Type>();
            numbers.values().to_vec()
        });
        assert!(numbers.eq(0..next));
        assert!(buffer.is_empty() && buffer.bytes() == 0);
    }
}
