//! Reading journals: all complete batches, and the state of the end.
//!
//! The content is not trusted.

use std::{
    fs::File,
    io::{self, BufReader, Read as _},
    panic::{AssertUnwindSafe, catch_unwind},
};

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    datatypes::{Schema, SchemaRef},
    ipc::{convert::try_fb_to_schema, reader::StreamDecoder, root_as_message},
};
use rustix::{fs::FlockOperation, io::Errno};
use thiserror::Error;

use super::{files::Directory, journal, metadata};
use crate::schema::is_column_type;

/// Size of a step in bytes. Each step becomes a row group.
const STEP: usize = 4 << 20;
/// Start of every message, before its length.
const MARKER: [u8; 4] = [0xff; 4];
/// Limit of the header of a message, bytes.
const MAX_HEADER: usize = 16 << 20;
/// Limit of a batch, bytes: twice the memory budget of a writer.
const MAX_BODY: usize = 128 << 20;

/// End of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// After a complete batch, or within one.
    Truncated,
    /// At data that cannot be read.
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

/// Reads a journal.
pub struct JournalReader {
    /// Number of the Parquet file that it becomes.
    pub number: u32,
    file: BufReader<File>,
    decoder: StreamDecoder,
    /// Batches of the first step, which is read with the schema.
    ahead: Vec<RecordBatch>,
    /// The end, once it has been reached.
    pub end: Option<End>,
}

impl JournalReader {
    /// Opens a journal and reads its first step; `None` if a profiler is writing it.
    pub fn open(directory: &Directory, number: u32) -> io::Result<Option<Self>> {
        let file = directory.read(&journal::name(number))?;
        // Other errors mean that the file system has no locks.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Ok(None);
        }
        let stream = Self::of(file)?;
        Ok(Some(Self { number, ..stream }))
    }

    /// Reads a journal without checking whether it is locked.
    pub fn of(file: File) -> io::Result<Self> {
        let mut stream = Self {
            number: 0,
            file: BufReader::new(file),
            decoder: StreamDecoder::new(),
            ahead: Vec::new(),
            end: None,
        };
        stream.ahead = stream.read_step()?;
        Ok(stream)
    }

    /// The schema, unless the stream ends before it.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.decoder.schema()
    }

    /// Whether the table is [keyed](crate::schema::Table::keyed).
    pub fn is_keyed(&self) -> bool {
        self.schema()
            .is_some_and(|schema| schema.metadata().contains_key(metadata::KEYED))
    }

    /// The next complete batches; `None` at the end.
    pub fn next_step(&mut self) -> io::Result<Option<Vec<RecordBatch>>> {
        let ahead = std::mem::take(&mut self.ahead);
        if !ahead.is_empty() {
            return Ok(Some(ahead));
        }
        if self.end.is_some() {
            return Ok(None);
        }
        self.read_step().map(Some)
    }

    /// Reads at least one batch, unless the stream ends.
    fn read_step(&mut self) -> io::Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        let mut bytes = 0;
        while self.end.is_none() && (batches.is_empty() || bytes < STEP) {
            let message = match self.next_message()? {
                Ok(message) => message,
                Err(end) => {
                    self.end = Some(end);
                    break;
                }
            };
            bytes += message.len();
            match decode(&mut self.decoder, &mut Buffer::from(message)) {
                Ok(batch) => batches.extend(batch),
                Err(damage) => self.end = Some(End::Damaged(damage)),
            }
        }
        Ok(batches)
    }

    /// The next complete message, or the end of the stream.
    fn next_message(&mut self) -> io::Result<Result<Vec<u8>, End>> {
        let mut message = Vec::new();
        let prefix = MARKER.len() + size_of::<u32>();
        self.read_more(&mut message, prefix)?;
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
        if !self.read_more(&mut message, header)? {
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
                let whole = self.read_more(&mut message, body)?;
                Ok(if whole {
                    Ok(message)
                } else {
                    Err(End::Truncated)
                })
            }
            _ => Ok(Err(End::Damaged(Damage::Length))),
        }
    }

    /// Appends the next bytes of the file. Returns whether the file had this many.
    fn read_more(&mut self, message: &mut Vec<u8>, length: usize) -> io::Result<bool> {
        let read = self
            .file
            .by_ref()
            .take(length as u64)
            .read_to_end(message)?;
        Ok(read == length)
    }
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
