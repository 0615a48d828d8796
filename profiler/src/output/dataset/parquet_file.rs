//! Encoding rows as Parquet, in memory.
//!
//! A row group is encoded at once, column by column, so that only one column has buffers at a time
//! and a table with few rows takes little memory.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow::{
    array::RecordBatch,
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use parquet::{
    arrow::{
        ArrowWriter,
        arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves},
    },
    basic::{Compression, Encoding, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{KeyValue, SortingColumn},
        properties::{EnabledStatistics, WriterProperties, WriterVersion},
        writer::SerializedFileWriter,
    },
    schema::types::ColumnPath,
};

use crate::schema::Kind;

/// Level 3 makes files 3 % smaller for 15 % more CPU time.
const ZSTD_LEVEL: i32 = 1;
/// Limit of a dictionary in bytes; values beyond it are stored without one.
const DICTIONARY_BYTES: usize = 16 * 1024;
/// Uncompressed size of a page in bytes.
const PAGE_BYTES: usize = 128 * 1024;
/// Limit of rows per page.
const PAGE_ROWS: usize = 20_000;
/// Rows that a column writer encodes per step.
const BATCH_ROWS: usize = 4096;

/// Name of the file with this number.
pub fn name(number: u32) -> String {
    format!("part-{number:05}.parquet")
}

/// The number in the name of a Parquet file.
pub fn number(name: &str) -> Option<u32> {
    name.strip_prefix("part-")?
        .strip_suffix(".parquet")?
        .parse()
        .ok()
}

/// Calls a decoder on data that is not trusted: a panic becomes an error.
pub fn decode<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(io::Error::other("the decoder failed")))
}

/// Encodes one file.
pub struct Encoder {
    writer: SerializedFileWriter<Vec<u8>>,
    columns: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    rows: u64,
}

impl Encoder {
    /// An empty file for rows of `schema`. The metadata of the schema becomes that of the file.
    ///
    /// # Errors
    ///
    /// When Parquet cannot store the schema.
    pub fn new(schema: SchemaRef) -> Result<Self, ParquetError> {
        let writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties(&schema)?))?;
        let (writer, columns) = writer.into_serialized_writer()?;
        Ok(Self {
            writer,
            columns,
            schema,
            rows: 0,
        })
    }

    /// Adds a row group. After an error the file cannot be used.
    ///
    /// # Errors
    ///
    /// When the rows do not have the schema of the file.
    pub fn encode(&mut self, batches: &[RecordBatch]) -> Result<(), ParquetError> {
        let index = self.writer.flushed_row_groups().len();
        let mut writers = self.columns.create_column_writers(index)?.into_iter();
        let mut group = self.writer.next_row_group()?;
        for (index, field) in self.schema.fields().iter().enumerate() {
            let mut column: Vec<ArrowColumnWriter> = Vec::new();
            for batch in batches {
                let leaves = compute_leaves(field, batch.column(index))?;
                if column.is_empty() {
                    column.extend(writers.by_ref().take(leaves.len()));
                }
                for (writer, leaf) in column.iter_mut().zip(&leaves) {
                    writer.write(leaf)?;
                }
            }
            for writer in column {
                writer.close()?.append_to_row_group(&mut group)?;
            }
        }
        group.close()?;
        self.rows += batches
            .iter()
            .map(|batch| batch.num_rows() as u64)
            .sum::<u64>();
        Ok(())
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Encoded bytes so far.
    pub fn bytes(&self) -> usize {
        self.writer.bytes_written()
    }

    /// Ends the file and returns its content.
    ///
    /// # Errors
    ///
    /// When the footer cannot be encoded.
    pub fn finish(self) -> Result<Vec<u8>, ParquetError> {
        self.writer.into_inner()
    }
}

fn properties(schema: &Schema) -> Result<WriterProperties, ParquetError> {
    let mut metadata: Vec<_> = schema
        .metadata()
        .iter()
        .map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
        .collect();
    metadata.sort_by(|a, b| a.key.cmp(&b.key));
    let sorted_by_ts = schema
        .index_of("ts")
        .ok()
        .and_then(|index| i32::try_from(index).ok())
        .map(|column_idx| {
            vec![SortingColumn {
                column_idx,
                descending: false,
                nulls_first: false,
            }]
        });
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(BATCH_ROWS)
        .set_max_row_group_row_count(None)
        .set_key_value_metadata(Some(metadata))
        .set_sorting_columns(sorted_by_ts);
    for field in schema.fields() {
        if let Some((encoding, dictionary)) = encoding(field) {
            let column = ColumnPath::from(field.name().as_str());
            // With a dictionary, this encoding is used when the dictionary exceeds its limit.
            properties = properties
                .set_column_encoding(column.clone(), encoding)
                .set_column_dictionary_enabled(column, dictionary);
        }
    }
    Ok(properties.build())
}

/// Encoding of a column, and whether a dictionary is tried first; `None` for the default.
///
/// Counters are mostly zero, which a dictionary stores best. Gauges, identities and times change
/// little from row to row, so their differences are stored.
fn encoding(field: &Arc<Field>) -> Option<(Encoding, bool)> {
    match field.data_type() {
        DataType::Int32
        | DataType::UInt32
        | DataType::Int64
        | DataType::UInt64
        | DataType::Timestamp(..) => {
            let kind = field.metadata().get("kind");
            let counter = kind.is_some_and(|kind| kind == Kind::Counter.as_str());
            Some((Encoding::DELTA_BINARY_PACKED, counter))
        }
        DataType::Utf8 => Some((Encoding::DELTA_BYTE_ARRAY, true)),
        _ => None,
    }
}
