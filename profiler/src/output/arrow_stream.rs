//! Decoding of Arrow IPC streams that are not trusted.

use std::{
    io::{self, Read},
    panic::{AssertUnwindSafe, catch_unwind},
};

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    datatypes::{Schema, SchemaRef},
    ipc::{convert::try_fb_to_schema, reader::StreamDecoder, root_as_message},
};
use thiserror::Error;

use crate::schema::is_column_type;

/// Start of every message, before its length.
const MARKER: [u8; 4] = [0xff; 4];
/// Limit of the header of a message, bytes.
const MAX_HEADER: usize = 16 << 20;
/// Limit of a batch, bytes: twice the memory budget of a writer.
const MAX_BODY: usize = 128 << 20;

/// End of a stream.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum End {
    /// After a complete message, or within one.
    #[error("truncated")]
    Truncated,
    /// At data that cannot be read.
    #[error("{0}")]
    Damaged(Damage),
}

/// Why the rest of a stream cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Damage {
    /// No marker where a message should begin.
    #[error("not an Arrow IPC stream")]
    NotAStream,
    /// The length exceeds the limit.
    #[error("a message is too long")]
    Length,
    /// The schema has types that no table has.
    #[error("columns that no table has")]
    Columns,
    /// The header of a message is invalid.
    #[error("{0}")]
    Header(String),
    /// The decoder rejects a message.
    #[error("{0}")]
    Message(String),
    /// The decoder panicked.
    #[error("the decoder failed")]
    Panic,
}

/// A complete message of a stream.
pub struct Message {
    /// Its rows; `None` for the schema.
    pub rows: Option<RecordBatch>,
    /// Its length in bytes.
    pub length: usize,
}

/// Decodes the messages of a stream, in order.
#[derive(Default)]
pub struct ArrowStream(StreamDecoder);

impl ArrowStream {
    /// The schema, once its message has been decoded.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.0.schema()
    }

    /// The next message, or the end of the stream.
    ///
    /// # Errors
    ///
    /// When bytes cannot be read.
    pub fn next_message(&mut self, from: &mut impl Read) -> io::Result<Result<Message, End>> {
        Ok(read_message(from)?.and_then(|message| {
            let length = message.len();
            let rows = decode(&mut self.0, &mut Buffer::from(message)).map_err(End::Damaged)?;
            Ok(Message { rows, length })
        }))
    }
}

fn read_message(from: &mut impl Read) -> io::Result<Result<Vec<u8>, End>> {
    let mut message = Vec::new();
    let prefix = MARKER.len() + size_of::<u32>();
    read_more(from, &mut message, prefix)?;
    let marker = &message[..message.len().min(MARKER.len())];
    if !MARKER.starts_with(marker) {
        return Ok(Err(End::Damaged(Damage::NotAStream)));
    }
    let Some(&[a, b, c, d]) = message.get(MARKER.len()..prefix) else {
        return Ok(Err(End::Truncated));
    };
    let header = u32::from_le_bytes([a, b, c, d]) as usize;
    if header > MAX_HEADER {
        return Ok(Err(End::Damaged(Damage::Length)));
    }
    if !read_more(from, &mut message, header)? {
        return Ok(Err(End::Truncated));
    }
    let body = match root_as_message(&message[prefix..]) {
        Ok(message)
            if message
                .header_as_schema()
                .is_some_and(|it| !is_of_table(it)) =>
        {
            return Ok(Err(End::Damaged(Damage::Columns)));
        }
        Ok(message) => usize::try_from(message.bodyLength()),
        Err(error) => {
            let damage = Damage::Header(error.to_string());
            return Ok(Err(End::Damaged(damage)));
        }
    };
    match body {
        Ok(body) if body <= MAX_BODY => {
            let whole = read_more(from, &mut message, body)?;
            Ok(if whole {
                Ok(message)
            } else {
                Err(End::Truncated)
            })
        }
        _ => Ok(Err(End::Damaged(Damage::Length))),
    }
}

/// Appends the next bytes. Returns whether there were this many.
fn read_more(from: &mut impl Read, message: &mut Vec<u8>, length: usize) -> io::Result<bool> {
    let read = from.take(length as u64).read_to_end(message)?;
    Ok(read == length)
}

/// Whether the tables use the types of all columns. The decoder is not tested with others.
fn is_of_table(schema: arrow::ipc::Schema<'_>) -> bool {
    let of_table = |schema: Schema| {
        let mut fields = schema.fields().iter();
        fields.len() != 0 && fields.all(|field| is_column_type(field.data_type()))
    };
    catch_unwind(AssertUnwindSafe(|| {
        try_fb_to_schema(schema).is_ok_and(of_table)
    }))
    .unwrap_or(false)
}

/// Decodes a message. The decoder can panic on damaged data.
fn decode(decoder: &mut StreamDecoder, buffer: &mut Buffer) -> Result<Option<RecordBatch>, Damage> {
    catch_unwind(AssertUnwindSafe(|| decoder.decode(buffer)))
        .map_err(|_| Damage::Panic)?
        .map_err(|error| Damage::Message(error.to_string()))
}
