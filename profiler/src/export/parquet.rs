//! Parquet: one file for all parts and nodes. Columns have their units in their metadata.

use std::io::Write;

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};

use super::output::{RowWriter, failed};
use crate::failure::Failure;

/// Rows that are held in memory.
const GROUP_ROWS: usize = 128 * 1024;

pub struct Parquet<W: Write + Send>(ArrowWriter<W>);

impl<W: Write + Send> Parquet<W> {
    pub fn new(output: W, schema: &SchemaRef) -> Result<Self, Failure> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let writer = ArrowWriter::try_new(output, schema.clone(), Some(properties));
        writer.map(Self).map_err(failed)
    }
}

impl<W: Write + Send> RowWriter for Parquet<W> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), Failure> {
        self.0.write(rows).map_err(failed)
    }

    fn finish(self: Box<Self>) -> Result<(), Failure> {
        let output = self.0.into_inner();
        output.map_err(failed)?.flush().map_err(failed)
    }
}
