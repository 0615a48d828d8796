//! Encoding rows as Parquet, in memory.
//!
//! A row group is encoded at once, column by column, so that only one column has buffers at a time
//! and a table with few rows takes little memory.

use std::{
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray},
    datatypes::{DataType, Field, Fields, Int32Type, Schema, SchemaRef},
};
use parquet::{
    arrow::{
        ArrowWriter, add_encoded_arrow_schema_to_metadata,
        arrow_writer::{
            ArrowColumnWriter, ArrowRowGroupWriterFactory, ArrowWriterOptions, compute_leaves,
        },
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

use super::metadata;
use crate::schema::{Kind, RUN_COLUMN};

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

/// Distinct values of a row group that a Bloom filter is sized for. Filters of fewer are made smaller.
const BLOOM_VALUES: u64 = 128 * 1024;

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

/// Encodes one file. Its last column is [`RUN_COLUMN`], so that several runs can be read as one
/// dataset. Journals do not have it.
pub struct Encoder<W: Write + Send = Vec<u8>> {
    writer: SerializedFileWriter<W>,
    columns: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    /// Name of the run, from the metadata of the schema.
    run_id: Option<String>,
    rows: u64,
}

/// Order and indices of a file.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// Columns that the rows are sorted by; nulls first.
    pub sorted_by: &'a [&'a str],
    /// Columns with Bloom filters.
    pub ids: &'a [&'a str],
}

impl Layout<'static> {
    /// Rows in the order of their samples.
    pub const BY_TIME: Self = Self {
        sorted_by: &["ts"],
        ids: &[],
    };
}

impl Encoder {
    /// An empty file in memory for rows of `schema`. The metadata of the schema becomes that of the
    /// file.
    ///
    /// # Errors
    ///
    /// When Parquet cannot store the schema.
    pub fn new(schema: SchemaRef) -> Result<Self, ParquetError> {
        Self::to(Vec::new(), schema, Layout::BY_TIME)
    }
}

impl<W: Write + Send> Encoder<W> {
    /// Like [`Encoder::new`], with another place and layout. A row group is still encoded in memory.
    ///
    /// # Errors
    ///
    /// When Parquet cannot store the schema, or the file cannot be written.
    pub fn to(writer: W, schema: SchemaRef, layout: Layout<'_>) -> Result<Self, ParquetError> {
        let run_id = schema.metadata().get(metadata::RUN_ID).cloned();
        let schema = match run_id {
            Some(_) => with_run(&schema),
            None => schema,
        };
        let mut properties = properties(&schema, layout)?;
        add_encoded_arrow_schema_to_metadata(&without_dictionaries(&schema), &mut properties);
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(writer, schema.clone(), options)?;
        let (writer, columns) = writer.into_serialized_writer()?;
        Ok(Self {
            writer,
            columns,
            schema,
            run_id,
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
                let values = match (batch.columns().get(index), &self.run_id) {
                    (None, Some(run_id)) => &same(run_id, batch.num_rows())?,
                    (values, _) => values.ok_or_else(|| missing(field))?,
                };
                let leaves = compute_leaves(field, values)?;
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

    /// Adds an entry to the metadata of the file.
    pub fn note(&mut self, key: &str, value: String) {
        let entry = KeyValue::new(key.to_owned(), value);
        self.writer.append_key_value_metadata(entry);
    }

    /// Ends the file and returns its content, or the file.
    ///
    /// # Errors
    ///
    /// When the footer cannot be encoded.
    pub fn finish(self) -> Result<W, ParquetError> {
        self.writer.into_inner()
    }
}

/// The schema with the column of the run.
fn with_run(schema: &Schema) -> SchemaRef {
    let run = Arc::new(RUN_COLUMN.field());
    let fields: Vec<_> = schema.fields().iter().cloned().chain([run]).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The schema as readers find it. Many of them cannot merge dictionaries of several files; in
/// Parquet, these columns have dictionaries anyway.
fn without_dictionaries(schema: &Schema) -> Schema {
    let plain = |field: &Arc<Field>| match field.data_type() {
        DataType::Dictionary(_, values) => {
            Arc::new(Field::clone(field).with_data_type(DataType::clone(values)))
        }
        _ => field.clone(),
    };
    let fields: Fields = schema.fields().iter().map(plain).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// A column with the same text in each row.
fn same(text: &str, rows: usize) -> Result<ArrayRef, ParquetError> {
    let texts = Arc::new(StringArray::from_iter_values([text]));
    let keys = Int32Array::from(vec![0; rows]);
    Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(
        keys, texts,
    )?))
}

fn missing(field: &Field) -> ParquetError {
    ParquetError::General(format!("rows without column {}", field.name()))
}

fn properties(schema: &Schema, layout: Layout<'_>) -> Result<WriterProperties, ParquetError> {
    let mut metadata: Vec<_> = schema
        .metadata()
        .iter()
        .map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
        .collect();
    metadata.sort_by(|a, b| a.key.cmp(&b.key));
    let sorted_by = layout.sorted_by.iter().filter_map(|name| {
        let index = schema.index_of(name).ok()?;
        Some(SortingColumn {
            column_idx: i32::try_from(index).ok()?,
            descending: false,
            nulls_first: *name != "ts",
        })
    });
    let sorted_by: Vec<_> = sorted_by.collect();
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
        .set_sorting_columns(Some(sorted_by).filter(|columns| !columns.is_empty()));
    let of_processes = schema.index_of("tid").is_ok();
    for field in schema.fields() {
        if let Some((encoding, dictionary)) = encoding(field, of_processes) {
            let column = ColumnPath::from(field.name().as_str());
            // With a dictionary, this encoding is used when the dictionary exceeds its limit.
            properties = properties
                .set_column_encoding(column.clone(), encoding)
                .set_column_dictionary_enabled(column, dictionary);
        }
    }
    for id in layout.ids.iter().filter(|id| schema.index_of(id).is_ok()) {
        let column = ColumnPath::from(*id);
        properties = properties
            .set_column_bloom_filter_enabled(column.clone(), true)
            .set_column_bloom_filter_max_ndv(column, BLOOM_VALUES);
    }
    Ok(properties.build())
}

/// Encoding of a column, and whether a dictionary is tried first; `None` for the default.
///
/// In one row per sample, counters are mostly zero, which a dictionary stores best. Gauges, identities
/// and times change little from row to row, so their differences are stored.
///
/// Rows of the same processes, at each sample, repeat values that are far apart in the column. The
/// compression finds them in plain values. Gauges and counts have few distinct values, which a
/// dictionary stores best.
fn encoding(field: &Field, of_processes: bool) -> Option<(Encoding, bool)> {
    let fact = |name: &str| field.metadata().get(name).map_or("", String::as_str);
    let is = |kind: Kind| fact("kind") == kind.as_str();
    match field.data_type() {
        DataType::Int32
        | DataType::UInt32
        | DataType::Int64
        | DataType::UInt64
        | DataType::Timestamp(..) => Some(match fact("unit") {
            "ns" | "us" if of_processes => (Encoding::PLAIN, false),
            "bytes" if of_processes && is(Kind::Counter) => (Encoding::PLAIN, false),
            _ => {
                let dictionary = is(Kind::Counter) || of_processes && is(Kind::Gauge);
                (Encoding::DELTA_BINARY_PACKED, dictionary)
            }
        }),
        DataType::Utf8 => Some((Encoding::DELTA_BYTE_ARRAY, true)),
        _ => None,
    }
}
