//! JSON: an array of objects, or an object per line. Nulls are written, NaN is null.

use std::io::Write;

use arrow::{
    array::RecordBatch,
    json::{
        Writer, WriterBuilder,
        writer::{JsonArray, JsonFormat, LineDelimited},
    },
};

use super::output::{RowWriter, failed};
use crate::failure::Failure;

pub struct Json<W: Write, F: JsonFormat>(Writer<W, F>);

impl<W: Write> Json<W, JsonArray> {
    pub fn array(output: W) -> Self {
        Self(WriterBuilder::new().with_explicit_nulls(true).build(output))
    }
}

impl<W: Write> Json<W, LineDelimited> {
    pub fn lines(output: W) -> Self {
        Self(WriterBuilder::new().with_explicit_nulls(true).build(output))
    }
}

impl<W: Write, F: JsonFormat> RowWriter for Json<W, F> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), Failure> {
        self.0.write(rows).map_err(failed)
    }

    fn finish(mut self: Box<Self>) -> Result<(), Failure> {
        self.0.finish().map_err(failed)?;
        self.0.into_inner().flush().map_err(failed)
    }
}
