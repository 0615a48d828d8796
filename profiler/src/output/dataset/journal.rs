//! The journal: every tick appended to an Arrow IPC stream, until a part holds the same rows.
//!
//! One `writev` per batch: after `kill -9` the file ends at most in the middle of its last batch.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, IoSlice, Write as _},
};

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    datatypes::SchemaRef,
    error::ArrowError,
    ipc::{
        MetadataVersion,
        writer::{IpcWriteOptions, StreamEncoder},
    },
};
use rustix::fs::FlockOperation;

use super::files::Directory;

/// Alignment of buffers in the stream in bytes.
const ALIGNMENT: usize = 8;
/// The kernel takes this many buffers in one call (`IOV_MAX`).
const MAX_SLICES: usize = 1024;

/// Name of the journal that becomes part `number`. Readers of whole directories (pyarrow) pass over names with an
/// underscore in front.
pub fn name(number: u32) -> String {
    format!("_part-{number:05}.arrows")
}

/// The number in the name of a journal.
pub fn number(name: &str) -> Option<u32> {
    name.strip_prefix("_part-")?
        .strip_suffix(".arrows")?
        .parse()
        .ok()
}

/// A journal being written.
#[derive(Debug)]
pub struct Journal {
    /// The number of the part it becomes.
    pub number: u32,
    /// Rows in whole batches.
    pub rows: u64,
    /// Bytes of the schema and the whole batches.
    pub bytes: u64,
    /// Whether it holds every row that it was given.
    pub complete: bool,
    file: File,
    /// Whether the name of the file survives a power cut.
    named: bool,
    schema: SchemaRef,
    encoder: Encoder,
}

impl Journal {
    /// Creates the journal of part `number`. It stays locked while this process has it open, so that nobody
    /// takes it for an orphan.
    ///
    /// # Errors
    ///
    /// When the file cannot be created, in particular when it exists.
    pub fn create(directory: &Directory, number: u32, schema: SchemaRef) -> io::Result<Self> {
        let encoder = Encoder::new(&schema, false)?;
        let file = directory.create(&name(number))?;
        // A file system without locks costs only that protection.
        let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(Self {
            number,
            rows: 0,
            bytes: 0,
            complete: true,
            file,
            named: false,
            schema,
            encoder,
        })
    }

    /// Appends one batch. On an error the file is cut back to the whole batches before it.
    ///
    /// # Errors
    ///
    /// When the batch could not be written whole.
    pub fn append(&mut self, rows: &RecordBatch) -> io::Result<()> {
        let written = self
            .encoder
            .encode(rows)
            .and_then(|buffers| write_all(&mut self.file, &buffers));
        match written {
            Ok(bytes) => {
                self.bytes += bytes;
                self.rows += rows.num_rows() as u64;
                Ok(())
            }
            Err(error) => {
                self.complete = false;
                self.file.set_len(self.bytes)?;
                // The stream goes on after its last whole batch; the dictionaries in the torn one are gone.
                self.encoder = Encoder::new(&self.schema, self.bytes > 0)?;
                Err(error)
            }
        }
    }

    /// Makes the batches so far survive a power cut; `directory` is where the journal was created.
    ///
    /// # Errors
    ///
    /// When the kernel could not write them.
    pub fn sync(&mut self, directory: &Directory) -> io::Result<()> {
        self.file.sync_data()?;
        if !self.named {
            directory.sync()?;
            self.named = true;
        }
        Ok(())
    }
}

/// Writes all buffers, with one system call if the kernel takes them.
fn write_all(file: &mut File, buffers: &[Buffer]) -> io::Result<u64> {
    let mut written = 0;
    for buffers in buffers.chunks(MAX_SLICES) {
        let mut slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
        let mut rest = &mut slices[..];
        while rest.iter().any(|slice| !slice.is_empty()) {
            match file.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    written += bytes as u64;
                    IoSlice::advance_slices(&mut rest, bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(written)
}

/// Turns batches into messages of one stream.
struct Encoder {
    stream: StreamEncoder,
    /// Messages to leave out: the schema, where the file has it.
    skip: VecDeque<Buffer>,
}

impl Encoder {
    fn new(schema: &SchemaRef, resumed: bool) -> io::Result<Self> {
        let options = || IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5);
        let stream = || StreamEncoder::try_new_with_options(schema, options()?);
        let skip = if resumed {
            // A stream without batches is the schema and the end mark.
            let mut empty = stream().and_then(StreamEncoder::finish).map_err(invalid)?;
            empty.pop();
            empty.into()
        } else {
            VecDeque::new()
        };
        Ok(Self {
            stream: stream().map_err(invalid)?,
            skip,
        })
    }

    fn encode(&mut self, rows: &RecordBatch) -> io::Result<Vec<Buffer>> {
        let mut buffers = self.stream.encode(rows).map_err(invalid)?;
        let skip = std::mem::take(&mut self.skip);
        let begins_with = |skip: &VecDeque<Buffer>| {
            let lengths = buffers.iter().map(Buffer::len);
            lengths.take(skip.len()).eq(skip.iter().map(Buffer::len))
        };
        if !begins_with(&skip) {
            return Err(io::Error::other(
                "the stream does not begin with its schema",
            ));
        }
        buffers.drain(..skip.len());
        Ok(buffers)
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

fn invalid(error: ArrowError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
