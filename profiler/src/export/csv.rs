//! CSV: a header, then a line per row. Null is an empty field.

use std::{io::Write, sync::Arc};

use arrow::{
    array::{ArrayRef, AsArray as _, RecordBatch, StringArray},
    csv::{Writer, WriterBuilder},
};

use super::output::{RowWriter, failed};
use crate::failure::Failure;

/// How texts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    AsStored,
    /// With an apostrophe before those that a spreadsheet could take for formulas.
    Marked,
}

pub struct Csv<W: Write> {
    writer: Writer<W>,
    texts: Texts,
}

impl<W: Write> Csv<W> {
    pub fn new(output: W, texts: Texts) -> Self {
        Self {
            writer: WriterBuilder::new().build(output),
            texts,
        }
    }
}

impl<W: Write> RowWriter for Csv<W> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), Failure> {
        let written = match self.texts {
            Texts::AsStored => self.writer.write(rows),
            Texts::Marked => {
                let columns = rows.columns().iter().map(marked).collect();
                let marked = RecordBatch::try_new(rows.schema(), columns);
                marked.and_then(|rows| self.writer.write(&rows))
            }
        };
        written.map_err(failed)
    }

    fn finish(self: Box<Self>) -> Result<(), Failure> {
        self.writer.into_inner().flush().map_err(failed)
    }
}

/// The column, with an apostrophe before texts with the first character of a formula, or white space
/// that a spreadsheet can remove.
fn marked(column: &ArrayRef) -> ArrayRef {
    let Some(texts) = column.as_string_opt::<i32>() else {
        return column.clone();
    };
    let is_formula = |text: &str| text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    if !texts.iter().flatten().any(is_formula) {
        return column.clone();
    }
    let marked = texts.iter().map(|text| match text {
        Some(text) if is_formula(text) => Some(format!("'{text}")),
        text => text.map(str::to_owned),
    });
    Arc::new(marked.collect::<StringArray>())
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::Int64Array,
        datatypes::{DataType, Field, Schema},
    };

    use super::*;

    #[test]
    fn texts_like_formulas_are_marked_and_numbers_are_not() {
        let texts = [
            "=a", "+a", "-a", "@a", "\ta", "\ra", "\na", "a=", "'a", " =a",
        ];
        let texts = texts.into_iter().map(Some).chain([Some(""), None]);
        let texts: StringArray = texts.collect();
        let numbers = Int64Array::from_iter_values((0..12).map(|number| -number));
        let schema = Arc::new(Schema::new(vec![
            Field::new("text", DataType::Utf8, true),
            Field::new("number", DataType::Int64, true),
        ]));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(texts), Arc::new(numbers)]);
        let rows = rows.expect("of this schema");
        let written = |texts| {
            let mut bytes = Vec::new();
            let mut csv = Box::new(Csv::new(&mut bytes, texts));
            csv.write(&rows).expect("in memory");
            csv.finish().expect("in memory");
            String::from_utf8(bytes).expect("text")
        };
        let stored = "text,number\n=a,0\n+a,-1\n-a,-2\n@a,-3\n\ta,-4\n\"\ra\",-5\n\"\na\",-6\n\
                      a=,-7\n'a,-8\n =a,-9\n,-10\n,-11\n";
        assert_eq!(written(Texts::AsStored), stored);
        let marked = "text,number\n'=a,0\n'+a,-1\n'-a,-2\n'@a,-3\n'\ta,-4\n\"'\ra\",-5\n\"'\na\",-6\n\
                      a=,-7\n'a,-8\n =a,-9\n,-10\n,-11\n";
        assert_eq!(written(Texts::Marked), marked);
    }
}
