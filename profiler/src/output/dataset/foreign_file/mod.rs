//! Limits of files that other users have written. Parquet stores repetitions so well that a file of 36 KB
//! can have gigabytes of text, or millions of rows, and it can lie about them. Files of the own user
//! and of root have no limits.

mod bounded;
mod group;
mod pages;
mod texts;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use arrow::{
    array::{Array as _, AsArray as _, RecordBatch},
    datatypes::{DataType, Int32Type},
};
use parquet::{
    errors::ParquetError,
    file::metadata::{ParquetMetaData, RowGroupMetaData},
};

pub use self::{bounded::Bounded, group::ForeignGroups};
use crate::support::units::{counted, format_bytes};

/// Rows of a file, however small it is, and of a batch of a journal.
const ROWS: u64 = 1_000_000;
/// Further rows for each byte of the file.
const ROWS_PER_BYTE: u64 = 4;
/// Size of the metadata at the end of a Parquet file, in bytes.
const FOOTER_BYTES: u64 = 16 << 20;
/// Uncompressed size of a page in bytes.
const PAGE_BYTES: u64 = 64 << 20;
/// Uncompressed size of a column of a row group in bytes, and that of its decoded values.
const CHUNK_BYTES: u64 = 256 << 20;
/// Size of the decoded values of a row group in bytes.
const GROUP_BYTES: u64 = 512 << 20;
/// Size of one text in bytes. The longest that the profiler stores is a command line of 64 KiB.
const CELL_BYTES: u64 = 1 << 20;
/// Size of all decoded values of a file, however small it is, in bytes.
const FILE_BYTES: u64 = 1 << 30;
/// Further bytes of decoded values for each byte of the file.
const FILE_BYTES_PER_BYTE: u64 = 1024;
/// Memory of the command with which it reads on, in bytes.
const MEMORY_BYTES: u64 = 4 << 30;

/// Whose files are read without limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those of the effective user and of root.
    #[default]
    Own,
    /// All.
    Everyone,
    /// None: copies of what a server has sent.
    Nobody,
}

impl Trust {
    /// The limits of an open file, if it has any.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell whose file it is.
    pub fn limits(self, file: &File) -> io::Result<Option<Limits>> {
        let metadata = file.metadata()?;
        let is_foreign = match self {
            Self::Own => {
                metadata.uid() != 0 && metadata.uid() != rustix::process::geteuid().as_raw()
            }
            Self::Everyone => false,
            Self::Nobody => true,
        };
        // Holes cost nobody anything.
        let stored = metadata.len().min(metadata.blocks().saturating_mul(512));
        Ok(is_foreign.then(|| Limits::of(stored)))
    }
}

/// Limits of one file.
#[derive(Debug)]
pub struct Limits {
    rows: u64,
    /// Rows of a journal so far.
    found: u64,
    /// Bytes that can still be decoded.
    left: AtomicU64,
    bytes: u64,
    refused: OnceLock<String>,
}

impl Limits {
    /// Those of a file of this size in bytes.
    fn of(stored: u64) -> Self {
        let bytes = FILE_BYTES.saturating_add(stored.saturating_mul(FILE_BYTES_PER_BYTE));
        Self {
            rows: ROWS.saturating_add(stored.saturating_mul(ROWS_PER_BYTE)),
            found: 0,
            left: AtomicU64::new(bytes),
            bytes,
            refused: OnceLock::new(),
        }
    }

    /// Checks what a Parquet file says about itself.
    ///
    /// # Errors
    ///
    /// When it has too many rows, or a column of a row group is too large.
    pub fn check_metadata(&self, metadata: &ParquetMetaData) -> Result<(), ParquetError> {
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(u64::MAX);
        let groups = metadata.row_groups().iter();
        let rows = groups.map(|group| unsigned(group.num_rows()));
        let rows = rows.fold(0, u64::saturating_add);
        self.check_rows(rows.max(unsigned(metadata.file_metadata().num_rows())))?;
        for column in metadata
            .row_groups()
            .iter()
            .flat_map(RowGroupMetaData::columns)
        {
            let bytes = unsigned(column.uncompressed_size());
            if bytes > CHUNK_BYTES {
                let name = column.column_path().string();
                return Err(self.over_bytes(&format!("column {name}"), bytes, CHUNK_BYTES));
            }
        }
        Ok(())
    }

    /// Checks the next batch of a journal.
    ///
    /// # Errors
    ///
    /// When it has too many rows, or too long texts.
    pub fn check_batch(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let rows = batch.num_rows() as u64;
        if rows > ROWS {
            return Err(self.over_rows(rows, ROWS));
        }
        self.found += rows;
        self.check_rows(self.found)?;
        let (mut largest, mut all) = (0, 0);
        for column in batch.columns() {
            let lengths = |texts: &dyn arrow::array::Array| -> Vec<u64> {
                let texts = texts.as_string_opt::<i32>();
                let lengths = texts
                    .into_iter()
                    .flat_map(|texts| texts.offsets().windows(2));
                lengths
                    .map(|ends| u64::from((ends[1] - ends[0]).unsigned_abs()))
                    .collect()
            };
            match column.data_type() {
                DataType::Dictionary(..) => {
                    let Some(labels) = column.as_dictionary_opt::<Int32Type>() else {
                        continue;
                    };
                    let lengths = lengths(labels.values());
                    let words = labels.keys_iter().flatten();
                    all += words.filter_map(|key| lengths.get(key)).sum::<u64>();
                    largest = lengths.into_iter().fold(largest, u64::max);
                }
                DataType::Utf8 => largest = lengths(column).into_iter().fold(largest, u64::max),
                _ => {}
            }
        }
        self.check_cell(largest)?;
        if all > CHUNK_BYTES {
            return Err(self.over_bytes("a batch", all, CHUNK_BYTES));
        }
        Ok(())
    }

    /// Why the file is not read on, if it is over a limit.
    pub fn refused(&self) -> Option<io::Error> {
        self.refused.get().cloned().map(io::Error::other)
    }

    fn check_rows(&self, rows: u64) -> Result<(), ParquetError> {
        if rows > self.rows {
            return Err(self.over_rows(rows, self.rows));
        }
        Ok(())
    }

    fn check_cell(&self, bytes: u64) -> Result<(), ParquetError> {
        if bytes > CELL_BYTES {
            return Err(self.over_bytes("a text", bytes, CELL_BYTES));
        }
        Ok(())
    }

    /// Counts decoded values.
    fn decode(&self, bytes: u64) -> Result<(), ParquetError> {
        let left = |left: u64| left.checked_sub(bytes);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        taken
            .map_err(|left| self.over_bytes("all values", self.bytes - left + bytes, self.bytes))?;
        Ok(())
    }

    /// Checks the memory of this process.
    fn check_memory(&self) -> Result<(), ParquetError> {
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        let used = pages
            .unwrap_or(0_u64)
            .saturating_mul(rustix::param::page_size() as u64);
        if used > MEMORY_BYTES {
            return Err(self.over_bytes("memory", used, MEMORY_BYTES));
        }
        Ok(())
    }

    fn over_page(&self) -> ParquetError {
        self.refuse("a page", &format_bytes(PAGE_BYTES))
    }

    fn over_rows(&self, found: u64, limit: u64) -> ParquetError {
        self.refuse(&counted(found, "row"), &limit.to_string())
    }

    fn over_bytes(&self, what: &str, found: u64, limit: u64) -> ParquetError {
        let found = format!("{what} of {}", format_bytes(found));
        self.refuse(&found, &format_bytes(limit))
    }

    fn refuse(&self, found: &str, limit: &str) -> ParquetError {
        let text = format!(
            "{found}, over the limit of {limit} for a file of another user: --trust reads it"
        );
        ParquetError::General(self.refused.get_or_init(|| text).clone())
    }
}

fn damaged(what: &str) -> ParquetError {
    ParquetError::General(format!("damaged: {what}"))
}

#[cfg(test)]
mod tests;
