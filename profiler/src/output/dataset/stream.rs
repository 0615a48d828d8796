//! Reading a journal back: every whole batch, and how the stream ends.

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

use super::{files::Directory, journal, metadata};
use crate::schema::is_column_type;

/// A journal is read in steps of this many bytes; each becomes a row group.
const STEP: usize = 4 << 20;
/// What every message of a stream begins with, before its length.
const MARKER: [u8; 4] = [0xff; 4];
/// No message of ours has a header larger than this (bytes).
const MAX_HEADER: usize = 16 << 20;
/// No batch of ours is larger (bytes): twice the memory for rows that wait.
const MAX_BODY: usize = 128 << 20;

const IMPOSSIBLE: &str = "a message of impossible length";

/// How a stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// After a whole batch, or in the middle of one.
    Torn,
    /// With something that is no stream.
    Garbage(String),
}

/// A journal being read.
pub struct Stream {
    /// The number of the part it becomes.
    pub number: u32,
    file: BufReader<File>,
    decoder: StreamDecoder,
    /// Batches of the step that was read ahead.
    ahead: Vec<RecordBatch>,
    /// How it ends, once that is known.
    pub end: Option<End>,
}

impl Stream {
    /// Opens a journal and reads its first step; `None` when somebody is writing it.
    pub fn open(directory: &Directory, number: u32) -> io::Result<Option<Self>> {
        let file = directory.read(&journal::name(number))?;
        // Any other error: a file system without locks.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Ok(None);
        }
        let stream = Self::of(file)?;
        Ok(Some(Self { number, ..stream }))
    }

    /// A journal that nobody else is asked about.
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

    /// The schema, once it has been read.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.decoder.schema()
    }

    /// Whether the table is one of [lifetimes](crate::schema::Table::keyed).
    pub fn is_of_lifetimes(&self) -> bool {
        self.schema()
            .is_some_and(|schema| schema.metadata().contains_key(metadata::LIFETIMES))
    }

    /// The next whole batches; `None` at the end.
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

    /// Reads on until there is at least one batch, or the end.
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
                Err(error) => self.end = Some(End::Garbage(error)),
            }
        }
        Ok(batches)
    }

    /// The next whole message, or how the stream ends.
    fn next_message(&mut self) -> io::Result<Result<Vec<u8>, End>> {
        let mut message = Vec::new();
        let prefix = MARKER.len() + size_of::<u32>();
        self.read_more(&mut message, prefix)?;
        let marker = &message[..message.len().min(MARKER.len())];
        if !MARKER.starts_with(marker) {
            return Ok(Err(End::Garbage("not an Arrow IPC stream".to_owned())));
        }
        let Some(&[a, b, c, d]) = message.get(MARKER.len()..prefix) else {
            return Ok(Err(End::Torn));
        };
        let header = u32::from_le_bytes([a, b, c, d]) as usize;
        if header > MAX_HEADER {
            return Ok(Err(End::Garbage(IMPOSSIBLE.to_owned())));
        }
        if !self.read_more(&mut message, header)? {
            return Ok(Err(End::Torn));
        }
        let body = match root_as_message(&message[prefix..]) {
            Ok(message)
                if message
                    .header_as_schema()
                    .is_some_and(|it| !is_of_table(it)) =>
            {
                return Ok(Err(End::Garbage("columns that no table has".to_owned())));
            }
            Ok(message) => usize::try_from(message.bodyLength()),
            Err(error) => return Ok(Err(End::Garbage(error.to_string()))),
        };
        match body {
            Ok(body) if body <= MAX_BODY => {
                let whole = self.read_more(&mut message, body)?;
                Ok(if whole { Ok(message) } else { Err(End::Torn) })
            }
            _ => Ok(Err(End::Garbage(IMPOSSIBLE.to_owned()))),
        }
    }

    /// Appends the next bytes of the file; whether there were so many.
    fn read_more(&mut self, message: &mut Vec<u8>, length: usize) -> io::Result<bool> {
        let read = self
            .file
            .by_ref()
            .take(length as u64)
            .read_to_end(message)?;
        Ok(read == length)
    }
}

/// Whether all columns have types that columns of tables have: the decoder has never met others.
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

/// One batch out of `buffer`. The decoder is given bytes that may be anything: a panic in it is an error.
fn decode(decoder: &mut StreamDecoder, buffer: &mut Buffer) -> Result<Option<RecordBatch>, String> {
    catch_unwind(AssertUnwindSafe(|| decoder.decode(buffer)))
        .map_err(|_| "the decoder has failed".to_owned())?
        .map_err(|error| error.to_string())
}
