//! Reading a journal back: every whole batch, and how the stream ends.

use std::{
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
};

use arrow::{array::RecordBatch, buffer::Buffer, datatypes::SchemaRef, ipc::reader::StreamDecoder};
use rustix::{fs::FlockOperation, io::Errno};

use super::{files::Folder, journal, metadata};

/// A journal is read in steps of this many bytes; each becomes a row group.
const STEP: usize = 4 << 20;
/// What every message of a stream begins with, before its length.
const MARKER: [u8; 4] = [0xff; 4];
/// No message of ours has a header larger than this (bytes).
const MAX_HEADER: u32 = 16 << 20;

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
    file: std::fs::File,
    decoder: StreamDecoder,
    /// Batches of the step that was read ahead.
    ahead: Vec<RecordBatch>,
    /// Bytes read.
    read: u64,
    /// Bytes up to the end of the last whole batch.
    whole: u64,
    /// How it ends, once that is known.
    pub end: Option<End>,
}

impl Stream {
    /// Opens a journal and reads its first step; `None` when somebody is writing it.
    pub fn open(folder: &Folder, number: u32) -> io::Result<Option<Self>> {
        let file = folder.read(&journal::name(number))?;
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
    pub fn of(file: std::fs::File) -> io::Result<Self> {
        let mut stream = Self {
            number: 0,
            file,
            decoder: StreamDecoder::new(),
            ahead: Vec::new(),
            read: 0,
            whole: 0,
            end: None,
        };
        stream.ahead = stream.read_step()?;
        Ok(stream)
    }

    /// The schema, once it has been read.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.decoder.schema()
    }

    /// Whether the table is one of [lifetimes](crate::schema::Table::lifetimes).
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
        while batches.is_empty() && self.end.is_none() {
            let mut bytes = Vec::with_capacity(STEP);
            self.file
                .by_ref()
                .take(STEP as u64)
                .read_to_end(&mut bytes)?;
            if bytes.is_empty() {
                self.end = Some(self.judge_tail()?);
                break;
            }
            self.read += bytes.len() as u64;
            let mut buffer = Buffer::from(bytes);
            while !buffer.is_empty() && self.end.is_none() {
                match decode(&mut self.decoder, &mut buffer) {
                    Ok(Some(batch)) => {
                        self.whole = self.read - buffer.len() as u64;
                        batches.push(batch);
                    }
                    Ok(None) => {}
                    Err(error) => self.end = Some(End::Garbage(error)),
                }
            }
        }
        Ok(batches)
    }

    /// Whether what follows the last whole batch looks like the beginning of a message.
    fn judge_tail(&self) -> io::Result<End> {
        let mut head = [0; 8];
        let mut length = 0;
        while length < head.len() {
            match self
                .file
                .read_at(&mut head[length..], self.whole + length as u64)?
            {
                0 => break,
                read => length += read,
            }
        }
        let marker = &head[..length.min(MARKER.len())];
        let [.., a, b, c, d] = head;
        if !MARKER.starts_with(marker) {
            return Ok(End::Garbage("not an Arrow IPC stream".to_owned()));
        }
        if length == head.len() && u32::from_le_bytes([a, b, c, d]) > MAX_HEADER {
            return Ok(End::Garbage("a message of impossible length".to_owned()));
        }
        Ok(End::Torn)
    }
}

/// One batch out of `buffer`. The decoder is given bytes that may be anything: a panic in it is an error.
fn decode(decoder: &mut StreamDecoder, buffer: &mut Buffer) -> Result<Option<RecordBatch>, String> {
    catch_unwind(AssertUnwindSafe(|| decoder.decode(buffer)))
        .map_err(|_| "the decoder has failed".to_owned())?
        .map_err(|error| error.to_string())
}
