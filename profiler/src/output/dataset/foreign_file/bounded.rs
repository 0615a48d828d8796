//! Reading parts of a Parquet file whose sizes are not trusted.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use bytes::Bytes;
use parquet::{
    errors::{ParquetError, Result},
    file::reader::{ChunkReader, Length},
};

use super::{FOOTER_BYTES, PAGE_BYTES};

/// Limit of the header of a page in bytes; usual ones have less than a hundred.
const HEADER_BYTES: u64 = 1 << 20;

/// A file of which no more than a page, a header or the metadata is read at once.
#[derive(Clone, Debug)]
pub struct Bounded(pub Arc<File>);

impl Length for Bounded {
    fn len(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }
}

impl ChunkReader for Bounded {
    type T = BufReader<Header>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::new(Header {
            file: self.0.clone(),
            at: start,
            left: HEADER_BYTES,
        }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length as u64 > FOOTER_BYTES.max(PAGE_BYTES) {
            return Err(ParquetError::General(format!("{length} bytes at once")));
        }
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Bytes of a file that can be the header of a page.
#[derive(Debug)]
pub struct Header {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Header {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..length], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
