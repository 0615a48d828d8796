//! Feather, version 2: a file of Arrow IPC. Columns have their units in their metadata.

use std::io::Write;

use arrow::{array::RecordBatch, datatypes::SchemaRef, ipc::writer::FileWriter};

use super::output::{RowWriter, failed};
use crate::failure::Failure;

pub struct Feather<W: Write>(FileWriter<W>);

impl<W: Write> Feather<W> {
    pub fn new(output: W, schema: &SchemaRef) -> Result<Self, Failure> {
        FileWriter::try_new(output, schema)
            .map(Self)
            .map_err(failed)
    }
}

impl<W: Write> RowWriter for Feather<W> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), Failure> {
        self.0.write(rows).map_err(failed)
    }

    fn finish(self: Box<Self>) -> Result<(), Failure> {
        let output = self.0.into_inner();
        output.map_err(failed)?.flush().map_err(failed)
    }
}
