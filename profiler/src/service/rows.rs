//! Rows as messages: the name of the table with its length as one byte, then messages of an Arrow
//! IPC stream. There is one stream per table, whose schema comes with the first rows.

use std::{collections::HashMap, io};

use arrow::{
    array::RecordBatch,
    error::ArrowError,
    ipc::writer::{IpcWriteOptions, StreamWriter},
};

use crate::{
    output::arrow_stream::ArrowStream,
    schema::{Batch, DatasetSchema, Table},
};

/// Encodes rows.
#[derive(Default)]
pub struct RowEncoder {
    streams: HashMap<&'static str, StreamWriter<Vec<u8>>>,
}

impl RowEncoder {
    /// The content of a message with these rows.
    ///
    /// # Errors
    ///
    /// When the rows do not have the schema of the table.
    pub fn encode(&mut self, batch: &Batch) -> Result<Vec<u8>, ArrowError> {
        let name = batch.table.name;
        let stream = match self.streams.entry(name) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let schema = batch.table.schema();
                let options = IpcWriteOptions::default();
                entry.insert(StreamWriter::try_new_with_options(
                    Vec::new(),
                    &schema,
                    options,
                )?)
            }
        };
        stream.write(&batch.rows)?;
        let length = u8::try_from(name.len())
            .map_err(|_| ArrowError::InvalidArgumentError(format!("table {name}")))?;
        let mut content = vec![length];
        content.extend_from_slice(name.as_bytes());
        content.append(stream.get_mut());
        Ok(content)
    }
}

/// Decodes rows. They are not trusted: the service may be another version.
pub struct RowDecoder {
    schema: &'static DatasetSchema,
    streams: HashMap<&'static str, ArrowStream>,
}

impl RowDecoder {
    /// A decoder of rows of these tables.
    pub fn new(schema: &'static DatasetSchema) -> Self {
        Self {
            schema,
            streams: HashMap::new(),
        }
    }

    /// The rows of a message.
    ///
    /// # Errors
    ///
    /// When the message is malformed or this schema has no such table.
    pub fn decode(&mut self, content: &[u8]) -> io::Result<Vec<Batch>> {
        let malformed = || io::Error::other("malformed rows");
        let (length, rest) = content.split_first().ok_or_else(malformed)?;
        let (name, mut stream) = rest
            .split_at_checked((*length).into())
            .ok_or_else(malformed)?;
        let name = str::from_utf8(name).map_err(|_| malformed())?;
        let table = self.schema.table(name);
        let table = table.ok_or_else(|| io::Error::other(format!("unknown table {name}")))?;
        let decoder = self.streams.entry(table.name).or_default();
        let mut batches = Vec::new();
        while !stream.is_empty() {
            let message = decoder
                .next_message(&mut stream)?
                .map_err(io::Error::other)?;
            if let Some(rows) = message.rows {
                batches.push(Batch {
                    table,
                    rows: checked(table, &rows)?,
                });
            }
        }
        Ok(batches)
    }
}

/// The rows, if they have the schema of the table.
fn checked(table: &'static Table, rows: &RecordBatch) -> io::Result<RecordBatch> {
    let schema = table.schema();
    let columns = rows
        .schema()
        .fields()
        .iter()
        .map(|field| field.name())
        .eq(schema.fields().iter().map(|field| field.name()));
    if !columns {
        return Err(io::Error::other(format!(
            "table {} has other columns",
            table.name
        )));
    }
    RecordBatch::try_new(schema, rows.columns().to_vec()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        columns,
        schema::{Label, TableBuilder, TickKey, Timestamp, TypedTable},
    };

    columns! {
        /// A number and a word.
        pub struct Row {
            value: u64 = Gauge("1", "A number"),
            word: Label = Label("", "A word"),
        }
    }

    static TABLE: TypedTable<TickKey, Row> = TypedTable::new("words", "One row per word");

    fn rows(word: &'static str) -> Batch {
        let mut builder = TableBuilder::new(&TABLE);
        for value in 0..3 {
            builder.push(
                TickKey {
                    ts: Timestamp::from_us(7),
                    interval_ns: 1,
                },
                Row {
                    value,
                    word: word.into(),
                },
            );
        }
        let mut out = Vec::new();
        builder.finish(&mut out);
        out.remove(0)
    }

    fn schema() -> &'static DatasetSchema {
        let table: &'static Table = &TABLE;
        Box::leak(Box::new(DatasetSchema::new(
            [("source", table)],
            Vec::new(),
        )))
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let mut encoder = RowEncoder::default();
        let mut decoder = RowDecoder::new(schema());
        // The dictionary of the labels changes.
        let mut sizes = Vec::new();
        for word in ["first", "second", "first"] {
            let sent = rows(word);
            let content = encoder.encode(&sent).unwrap();
            sizes.push(content.len());
            let received = decoder.decode(&content).unwrap();
            assert_eq!(received.len(), 1);
            assert_eq!(received[0].rows, sent.rows);
        }
        assert!(sizes[1] < sizes[0], "the schema is sent once: {sizes:?}");
    }

    #[test]
    fn malformed_rows_are_refused() {
        let content = RowEncoder::default().encode(&rows("a")).unwrap();
        let mut accepted = Vec::new();
        for end in 0..content.len() {
            if let Ok(rows) = RowDecoder::new(schema()).decode(&content[..end]) {
                assert!(rows.is_empty(), "{end}");
                accepted.push(end);
            }
        }
        assert_eq!(
            accepted.len(),
            3,
            "after the name, the schema and the dictionary: {accepted:?}"
        );
        let mut other = content.clone();
        other[1] = b'x';
        assert!(RowDecoder::new(schema()).decode(&other).is_err());
    }
}
