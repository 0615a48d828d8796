//! Parquet files that are encoded and not stored yet.

use std::{collections::VecDeque, io};

use super::{Counts, WriteContext, partition::Partition};
use crate::output::dataset::{files::is_full, journal, parquet_file};

/// An encoded Parquet file.
pub struct EncodedFile {
    /// Position among the files of all tables.
    pub sequence: u64,
    /// The content.
    pub bytes: Vec<u8>,
    /// Rows in the file.
    pub rows: u64,
    /// Those of them that are not in the journal.
    pub missed: u64,
    /// Number of the journal with the same rows, and its size in bytes.
    pub journal: Option<(u32, u64)>,
}

impl EncodedFile {
    /// Counts the rows of a file that will not be stored. Its journal remains.
    pub fn abandon(&self, counts: &mut Counts) {
        let lost = match self.journal {
            Some(_) => self.missed.min(self.rows),
            None => self.rows,
        };
        counts.dropped += lost;
        counts.in_journal += self.rows - lost;
    }
}

/// The files of one table that could not be stored, oldest first.
#[derive(Default)]
pub struct Unstored(VecDeque<EncodedFile>);

impl Unstored {
    /// Adds a file.
    pub fn push(&mut self, file: EncodedFile) {
        self.0.push_back(file);
    }

    /// Whether all files are stored.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Memory of the files in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|file| file.bytes.len()).sum()
    }

    /// Position of the oldest file among those of all tables.
    pub fn oldest(&self) -> Option<u64> {
        self.0.front().map(|file| file.sequence)
    }

    /// Abandons the oldest file.
    pub fn drop_oldest(&mut self, counts: &mut Counts) {
        if let Some(file) = self.0.pop_front() {
            file.abandon(counts);
        }
    }

    /// Stores files, oldest first, until one cannot be stored; with `all`, tries every file.
    pub fn store(
        &mut self,
        context: &mut WriteContext,
        table: &'static str,
        partition: &mut Partition,
        counts: &mut Counts,
        all: bool,
    ) {
        let mut left = VecDeque::new();
        while let Some(mut file) = self.0.pop_front() {
            match store(&mut file, context, table, partition) {
                Ok(()) => {
                    counts.parts += 1;
                    counts.stored += file.rows;
                    counts.part_bytes += file.bytes.len() as u64;
                }
                Err(error) => {
                    partition.forget_if_gone(&error);
                    context.error(table, "writing a Parquet file", error);
                    left.push_back(file);
                    if !all {
                        break;
                    }
                }
            }
        }
        left.append(&mut self.0);
        self.0 = left;
    }
}

fn store(
    file: &mut EncodedFile,
    context: &WriteContext,
    table: &'static str,
    partition: &mut Partition,
) -> io::Result<()> {
    let mut number = match file.journal {
        Some((number, _)) => number,
        None => partition.free_number(context, table)?,
    };
    loop {
        let directory = partition.open(context, table)?;
        let written = directory.write_new(&parquet_file::name(number), &file.bytes);
        match (written, file.journal) {
            (Ok(()), None) => return Ok(()),
            (Ok(()), Some(_)) => {
                // A journal whose Parquet file exists is ignored: an error only costs space.
                let _ = directory.remove(&journal::name(number));
                return Ok(());
            }
            (Err(error), journal) if error.kind() == io::ErrorKind::AlreadyExists => {
                if journal.is_some() {
                    // The journal has been recovered.
                    return Ok(());
                }
                number = partition.free_number(context, table)?;
            }
            // The journal takes the space that the file needs; its rows are in memory.
            (Err(error), Some((_, bytes)))
                if is_full(&error) && bytes > file.bytes.len() as u64 =>
            {
                directory.remove(&journal::name(number))?;
                file.journal = None;
            }
            (Err(error), _) => return Err(error),
        }
    }
}
