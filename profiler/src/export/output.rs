//! What formats of tables are made of.

use std::fmt::Display;

use arrow::array::RecordBatch;

use crate::failure::{Failure, Reason};

/// Receives rows.
pub trait RowWriter {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), Failure>;
    /// Writes what it holds, and flushes the output.
    fn finish(self: Box<Self>) -> Result<(), Failure>;
}

/// An error of a writer as a failure.
pub fn failed(error: impl Display) -> Failure {
    let text = error.to_string();
    Failure::new(Reason::Output, text.lines().next().unwrap_or_default())
}
