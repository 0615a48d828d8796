//! Reads the rows of a Parquet file in Rust, for guests without Python.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::Path,
};

use arrow::{
    array::{Array, ArrayRef, AsArray as _, RecordBatch},
    buffer::Buffer,
    datatypes::{
        DataType, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
        UInt8Type, UInt16Type, UInt32Type, UInt64Type,
    },
    ipc::reader::StreamDecoder,
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// A value that is not null.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Unsigned(u64),
    /// Integers, and timestamps in ns since 1970.
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<u64>),
    Words(Vec<String>),
}

/// A row of a table. Reading a missing column, or one of another type, fails the test.
#[derive(Clone, Debug)]
pub struct Row(BTreeMap<String, Option<Value>>);

impl Row {
    /// All rows of a file.
    pub fn read(path: &Path) -> Vec<Self> {
        let file = File::open(path).expect("a file");
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
        let batches = reader.build().expect("Parquet");
        batches
            .flat_map(|batch| Self::of(&batch.expect("a batch")))
            .collect()
    }

    /// The rows of a journal up to its last complete message; none if it has become a Parquet file.
    pub fn read_journal(path: &Path) -> Vec<Self> {
        let mut bytes = Buffer::from(std::fs::read(path).unwrap_or_default());
        let mut decoder = StreamDecoder::new();
        let mut rows = Vec::new();
        while let Ok(Some(batch)) = decoder.decode(&mut bytes) {
            rows.extend(Self::of(&batch));
        }
        rows
    }

    fn of(batch: &RecordBatch) -> Vec<Self> {
        let schema = batch.schema();
        let row = |index| {
            let columns = schema.fields().iter().zip(batch.columns());
            let values =
                columns.map(|(field, column)| (field.name().clone(), value(column, index)));
            Self(values.collect())
        };
        (0..batch.num_rows()).map(row).collect()
    }

    /// An unsigned integer.
    pub fn u64(&self, column: &str) -> Option<u64> {
        match self.value(column)? {
            Value::Unsigned(number) => Some(*number),
            other => panic!("{column} is {other:?}"),
        }
    }

    /// A signed integer, or a timestamp in ns.
    pub fn i64(&self, column: &str) -> Option<i64> {
        match self.value(column)? {
            Value::Signed(number) => Some(*number),
            other => panic!("{column} is {other:?}"),
        }
    }

    /// A floating-point number.
    pub fn f64(&self, column: &str) -> Option<f64> {
        match self.value(column)? {
            Value::Float(number) => Some(*number),
            other => panic!("{column} is {other:?}"),
        }
    }

    /// A boolean.
    pub fn bool(&self, column: &str) -> Option<bool> {
        match self.value(column)? {
            Value::Bool(truth) => Some(*truth),
            other => panic!("{column} is {other:?}"),
        }
    }

    pub fn text(&self, column: &str) -> Option<&str> {
        match self.value(column)? {
            Value::Text(text) => Some(text),
            other => panic!("{column} is {other:?}"),
        }
    }

    /// A list of unsigned integers.
    pub fn list(&self, column: &str) -> Option<&[u64]> {
        match self.value(column)? {
            Value::List(numbers) => Some(numbers),
            other => panic!("{column} is {other:?}"),
        }
    }

    /// A list of texts.
    pub fn words(&self, column: &str) -> Option<&[String]> {
        match self.value(column)? {
            Value::Words(words) => Some(words),
            other => panic!("{column} is {other:?}"),
        }
    }

    fn value(&self, column: &str) -> Option<&Value> {
        let value = self.0.get(column);
        let names = || self.0.keys().map(String::as_str).collect::<Vec<_>>();
        value
            .unwrap_or_else(|| panic!("no column {column} in {:?}", names()))
            .as_ref()
    }
}

/// Columns in which at least one row has a value.
pub fn known_columns(rows: &[Row]) -> BTreeSet<String> {
    let columns = rows.iter().flat_map(|row| &row.0);
    columns
        .filter(|(_, value)| value.is_some())
        .map(|(name, _)| name.clone())
        .collect()
}

/// The sum of a column of unsigned integers, ignoring nulls.
pub fn sum(rows: &[Row], column: &str) -> u64 {
    rows.iter().filter_map(|row| row.u64(column)).sum()
}

fn value(column: &ArrayRef, index: usize) -> Option<Value> {
    macro_rules! number {
        ($type:ty, $value:ident) => {
            Value::$value(column.as_primitive::<$type>().value(index).into())
        };
    }
    if column.is_null(index) {
        return None;
    }
    Some(match column.data_type() {
        DataType::UInt8 => number!(UInt8Type, Unsigned),
        DataType::UInt16 => number!(UInt16Type, Unsigned),
        DataType::UInt32 => number!(UInt32Type, Unsigned),
        DataType::UInt64 => number!(UInt64Type, Unsigned),
        DataType::Int8 => number!(Int8Type, Signed),
        DataType::Int16 => number!(Int16Type, Signed),
        DataType::Int32 => number!(Int32Type, Signed),
        DataType::Int64 => number!(Int64Type, Signed),
        // In ns, as the durations that they are compared with.
        DataType::Timestamp(..) => {
            let us = column
                .as_primitive::<TimestampMicrosecondType>()
                .value(index);
            Value::Signed(us * 1_000)
        }
        DataType::Float64 => number!(Float64Type, Float),
        DataType::Boolean => Value::Bool(column.as_boolean().value(index)),
        DataType::Utf8 => Value::Text(column.as_string::<i32>().value(index).to_owned()),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let key = dictionary.normalized_keys()[index];
            return value(dictionary.values(), key);
        }
        DataType::List(_) => {
            let items = column.as_list::<i32>().value(index);
            if let Some(words) = items.as_string_opt::<i32>() {
                let words = words.iter().map(|word| word.expect("a text").to_owned());
                return Some(Value::Words(words.collect()));
            }
            let number = |index| match value(&items, index) {
                Some(Value::Unsigned(number)) => number,
                other => panic!("a list with {other:?}"),
            };
            Value::List((0..items.len()).map(number).collect())
        }
        other => panic!("unsupported column type {other}"),
    })
}
