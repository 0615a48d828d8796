//! Rows on their way into a part, kept as they came until there are enough of them to encode.

use arrow::{
    array::{Array, AsArray as _, RecordBatch},
    compute::{concat_batches, sort_to_indices, take_record_batch},
    datatypes::{SchemaRef, TimestampNanosecondType},
    error::ArrowError,
};

/// A last batch shorter than this is merged with the next one: the arrays of a batch with few rows are mostly
/// overhead.
const SHORT: usize = 1024;

/// Batches of one table in the order in which they came.
#[derive(Debug)]
pub struct Rows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    bytes: usize,
}

impl Rows {
    /// None yet; all will have `schema`.
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

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.batches.iter().map(|rows| rows.num_rows() as u64).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// All rows, sorted by `ts` where there is such a column.
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

/// Whether the column does not fall, over all batches; a column of another type counts as sorted.
fn is_sorted(batches: &[RecordBatch], column: usize) -> bool {
    let mut last = i64::MIN;
    batches.iter().all(|batch| {
        let column = batch.column(column);
        column
            .as_primitive_opt::<TimestampNanosecondType>()
            .is_none_or(|ts| {
                ts.null_count() == 0
                    && ts
                        .values()
                        .iter()
                        .all(|ts| std::mem::replace(&mut last, *ts) <= *ts)
            })
    })
}
