//! CSV: a header, then a line per row. Null is an empty field.

use std::io::Write;

use arrow::{array::RecordBatch, csv::Writer, csv::WriterBuilder};

use super::output::{RowWriter, failed};
use crate::failure::Failure;

pub struct Csv<W: Write>(Writer<W>);

impl<W: Write> Csv<W> {
    pub fn new(output: W) -> Self {
        Self(WriterBuilder::new().build(output))
    }
}

impl<W: Write> RowWriter for Csv<W> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), Failure> {
        self.0.write(rows).map_err(failed)
    }

    fn finish(self: Box<Self>) -> Result<(), Failure> {
        self.0.into_inner().flush().map_err(failed)
    }
}
