//! Rows of keyed tables (`process`, `region`): of all rows with the same key, only the last one is
//! stored, and only when it is closed.
//!
//! After the checkpoint that stores a closed row, a later row with the same key is stored as well.

use std::collections::HashMap;

use arrow::{
    array::{Array as _, ArrayRef, AsArray as _, RecordBatch},
    compute::interleave_record_batch,
    datatypes::{
        DataType, Int32Type, Int64Type, SchemaRef, TimeUnit, TimestampMicrosecondType,
        TimestampNanosecondType, UInt32Type, UInt64Type,
    },
    error::ArrowError,
};

/// Replaced rows are discarded when they exceed the others by this many.
const SLACK: usize = 1024;

/// Key of a row: `pid`, and the column that [`KINDS`] has for the table.
pub type Key = (i64, i64);

/// The second column of the key, and the column that is null while a row is open. A region also has
/// the `start_ts` of its process, so its columns come first; before version 4 of the schema, its
/// number was `region`.
const KINDS: [[&str; 2]; 3] = [
    ["region_id", "region_end_ts"],
    ["region", "region_end_ts"],
    ["start_ts", "end_ts"],
];

fn kind(rows: &RecordBatch) -> [&'static str; 2] {
    let is = |[key, _]: &[&str; 2]| rows.column_by_name(key).is_some();
    KINDS.into_iter().find(is).unwrap_or(KINDS[2])
}

/// The last row of each key.
#[derive(Debug)]
pub struct KeyedRows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    bytes: usize,
    rows: usize,
    last: HashMap<Key, Place>,
}

/// Position of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    batch: usize,
    row: usize,
    open: bool,
}

impl KeyedRows {
    /// No rows; all rows to come have `schema`.
    pub fn new(schema: SchemaRef) -> Self {
        Self {
            schema,
            batches: Vec::new(),
            bytes: 0,
            rows: 0,
            last: HashMap::new(),
        }
    }

    /// Adds rows, which replace earlier ones with the same keys.
    ///
    /// # Errors
    ///
    /// When the columns of the key are missing.
    pub fn push(&mut self, rows: RecordBatch) -> Result<(), ArrowError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let keys = keys(&rows)?;
        let end = column(&rows, kind(&rows)[1])?;
        let batch = self.batches.len();
        for (row, key) in keys.into_iter().enumerate() {
            let open = end.is_null(row);
            self.last.insert(key, Place { batch, row, open });
        }
        self.bytes += rows.get_array_memory_size();
        self.rows += rows.num_rows();
        self.batches.push(rows);
        if self.rows > 2 * self.last.len() + SLACK || self.batches.len() > SLACK {
            self.compact()?;
        }
        Ok(())
    }

    /// Number of keys.
    pub fn count(&self) -> usize {
        self.last.len()
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.last.capacity() * size_of::<(Key, Place)>()
    }

    /// Removes the rows whose key is selected.
    pub fn remove(&mut self, is_selected: impl Fn(&Key) -> bool) {
        self.last.retain(|key, _| !is_selected(key));
    }

    /// Takes the closed rows, with `open` also the open ones.
    pub fn take(&mut self, open: bool) -> Result<Option<RecordBatch>, ArrowError> {
        let taken = self.gather(|place| open || !place.open)?;
        self.last.retain(|_, place| place.open && !open);
        self.compact()?;
        Ok(taken)
    }

    /// The last row of each key.
    pub fn all(&self) -> Result<Option<RecordBatch>, ArrowError> {
        self.gather(|_| true)
    }

    fn gather(&self, wanted: impl Fn(&Place) -> bool) -> Result<Option<RecordBatch>, ArrowError> {
        let mut places: Vec<_> = self.last.values().filter(|place| wanted(place)).collect();
        if places.is_empty() {
            return Ok(None);
        }
        places.sort_unstable();
        let places: Vec<_> = places
            .iter()
            .map(|place| (place.batch, place.row))
            .collect();
        let batches: Vec<_> = self.batches.iter().collect();
        let rows = interleave_record_batch(&batches, &places)?;
        Ok(Some(rows.with_schema(self.schema.clone())?))
    }

    /// Copies the last rows into one batch, without those that they replaced.
    fn compact(&mut self) -> Result<(), ArrowError> {
        let all = self.all()?;
        let mut compacted = Self::new(self.schema.clone());
        if let Some(all) = all {
            compacted.push(all)?;
        }
        *self = compacted;
        Ok(())
    }
}

/// The keys of rows.
///
/// # Errors
///
/// When the columns are missing or of another type.
pub fn keys(rows: &RecordBatch) -> Result<Vec<Key>, ArrowError> {
    let pids = integers(column(rows, "pid")?)?;
    let starts = integers(column(rows, kind(rows)[0])?)?;
    Ok(pids.into_iter().zip(starts).collect())
}

fn column<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, ArrowError> {
    rows.column_by_name(name)
        .ok_or_else(|| ArrowError::SchemaError(format!("a keyed table without column {name}")))
}

/// The values as `i64`, null as `i64::MIN`.
fn integers(column: &ArrayRef) -> Result<Vec<i64>, ArrowError> {
    macro_rules! values {
        ($type:ty, $convert:expr) => {
            column
                .as_primitive::<$type>()
                .iter()
                .map(|value| value.map_or(i64::MIN, $convert))
                .collect()
        };
    }
    Ok(match column.data_type() {
        DataType::Int32 => values!(Int32Type, i64::from),
        DataType::UInt32 => values!(UInt32Type, i64::from),
        DataType::Int64 => values!(Int64Type, |value| value),
        DataType::UInt64 => values!(UInt64Type, u64::cast_signed),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            values!(TimestampMicrosecondType, |value| value)
        }
        // Version 2 of the schema.
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            values!(TimestampNanosecondType, |value| value)
        }
        other => {
            return Err(ArrowError::SchemaError(format!(
                "a key cannot have the type {other}"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{TimestampMicrosecondArray, UInt32Array, UInt64Array};

    use super::*;

    /// Regions of a process have rows of their own, also in journals of former versions.
    #[test]
    fn regions_of_a_process_are_apart() {
        for number in ["region_id", "region"] {
            let rows = RecordBatch::try_from_iter([
                (
                    "pid",
                    Arc::new(UInt32Array::from(vec![7, 7, 7])) as ArrayRef,
                ),
                (
                    "start_ts",
                    Arc::new(TimestampMicrosecondArray::from(vec![1, 1, 1])),
                ),
                (number, Arc::new(UInt64Array::from(vec![1, 2, 1]))),
                (
                    "region_end_ts",
                    Arc::new(TimestampMicrosecondArray::from(vec![None, None, Some(3)])),
                ),
            ])
            .unwrap();
            let mut keyed = KeyedRows::new(rows.schema());
            keyed.push(rows).unwrap();
            assert_eq!(keyed.count(), 2, "{number}");
            assert_eq!(keyed.take(false).unwrap().unwrap().num_rows(), 1);
        }
    }
}
