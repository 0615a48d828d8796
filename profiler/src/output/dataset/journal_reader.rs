//! Reading journals: all complete batches, and the state of the end.
//!
//! The content is not trusted.

use std::{
    fs::File,
    io::{self, BufReader},
};

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use rustix::{fs::FlockOperation, io::Errno};

use super::{files::Directory, foreign_file::Limits, journal, metadata};
use crate::output::arrow_stream::{ArrowStream, End};

/// Locks a journal; whether no other process has locked it. Only a profiler that writes or recovers it does.
pub fn lock(journal: &File) -> bool {
    let locked = rustix::fs::flock(journal, FlockOperation::NonBlockingLockExclusive);
    // Other errors mean that the file system has no locks.
    locked != Err(Errno::WOULDBLOCK)
}

/// Size of a step in bytes. Each step becomes a row group.
const STEP: usize = 4 << 20;
/// Reads a journal.
pub struct JournalReader {
    /// Number of the Parquet file that it becomes.
    pub number: u32,
    file: BufReader<File>,
    stream: ArrowStream,
    /// Batches of the first step, which is read with the schema.
    ahead: Vec<RecordBatch>,
    /// The end, once it has been reached.
    pub end: Option<End>,
    limits: Option<Limits>,
}

impl JournalReader {
    /// Opens a journal and reads its first step; `None` if a profiler is writing it.
    pub fn open(directory: &Directory, number: u32) -> io::Result<Option<Self>> {
        let file = directory.read(&journal::name(number))?;
        if !lock(&file) {
            return Ok(None);
        }
        let limits = directory.trust().limits(&file)?;
        let stream = Self::of(file, limits)?;
        Ok(Some(Self { number, ..stream }))
    }

    /// Reads a journal without checking whether it is locked.
    pub fn of(file: File, limits: Option<Limits>) -> io::Result<Self> {
        let mut stream = Self {
            number: 0,
            file: BufReader::new(file),
            stream: ArrowStream::default(),
            ahead: Vec::new(),
            end: None,
            limits,
        };
        stream.ahead = stream.read_step()?;
        Ok(stream)
    }

    /// The schema, unless the stream ends before it.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.stream.schema()
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
            match self.stream.next_message(&mut self.file)? {
                Ok(message) => {
                    bytes += message.length;
                    if let (Some(limits), Some(rows)) = (&mut self.limits, &message.rows) {
                        let checked = limits.check_batch(rows);
                        checked
                            .map_err(|error| limits.refused().unwrap_or_else(|| error.into()))?;
                    }
                    batches.extend(message.rows);
                }
                Err(end) => self.end = Some(end),
            }
        }
        Ok(batches)
    }
}
