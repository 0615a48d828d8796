//! Journals: an Arrow IPC stream with the rows since the last checkpoint.
//!
//! Each batch is appended with one `writev`, so after `kill -9` at most the last batch is
//! truncated.

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
/// Limit of buffers per system call (`IOV_MAX`).
const MAX_SLICES: usize = 1024;

/// Name of the journal that becomes the Parquet file with this number. Readers of directories
/// (pyarrow) skip names that begin with an underscore.
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
    /// Number of the Parquet file that it becomes.
    pub number: u32,
    /// Rows in complete batches.
    pub rows: u64,
    /// Size of the schema and the complete batches, bytes.
    pub bytes: u64,
    /// Whether all appended rows were written.
    pub complete: bool,
    file: File,
    /// Whether the name of the file is durable.
    named: bool,
    schema: SchemaRef,
    encoder: Encoder,
}

impl Journal {
    /// Creates a journal. It is locked while this process has it open, so that it is not taken for
    /// an abandoned one.
    ///
    /// # Errors
    ///
    /// When the file cannot be created, or exists.
    pub fn create(directory: &Directory, number: u32, schema: SchemaRef) -> io::Result<Self> {
        let encoder = Encoder::new(&schema, false)?;
        let file = directory.create(&name(number))?;
        // A file system without locks only lacks this protection.
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

    /// Appends a batch. An error truncates the file to the complete batches.
    ///
    /// # Errors
    ///
    /// When the batch could not be written completely.
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
                // The stream continues after its last complete batch, without the dictionaries of
                // this one.
                self.encoder = Encoder::new(&self.schema, self.bytes > 0)?;
                Err(error)
            }
        }
    }

    /// Makes all batches durable; `directory` is that of the journal.
    ///
    /// # Errors
    ///
    /// When the kernel cannot write them.
    pub fn sync(&mut self, directory: &Directory) -> io::Result<()> {
        self.file.sync_data()?;
        if !self.named {
            directory.sync()?;
            self.named = true;
        }
        Ok(())
    }
}

/// Writes all buffers, if possible with one system call.
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

/// Encodes batches as messages of a stream.
struct Encoder {
    stream: StreamEncoder,
    /// Messages to leave out: the schema, if the file already has it.
    skip: VecDeque<Buffer>,
}

impl Encoder {
    fn new(schema: &SchemaRef, resumed: bool) -> io::Result<Self> {
        let options = || IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5);
        let stream = || StreamEncoder::try_new_with_options(schema, options()?);
        let skip = if resumed {
            // A stream without batches has the schema and the end marker.
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
