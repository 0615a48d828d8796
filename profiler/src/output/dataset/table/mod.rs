//! Writing one table: rows go to the journal and, at a checkpoint, to a Parquet file. A disk that
//! is full or missing delays both.

mod partition;
mod unstored;

use std::io;

use arrow::{array::RecordBatch, datatypes::SchemaRef};

use self::{
    partition::Partition,
    unstored::{EncodedFile, Unstored},
};
use super::{
    DatasetOptions,
    files::Directory,
    journal::{self, Journal},
    keyed::KeyedRows,
    metadata::{nullable, with_metadata},
    parquet_file,
    row_buffer::RowBuffer,
};
use crate::{schema::Table, support::labels::Labels};

/// New keys of a keyed table after which its file is ended before the checkpoint.
const MANY_KEYS: usize = 50_000;

/// State that all tables of a dataset share.
#[derive(Debug)]
pub struct WriteContext {
    pub run: Directory,
    /// Name of the directory of this host in every table.
    pub host_directory: String,
    /// Size in bytes at which a Parquet file is ended before the checkpoint.
    pub file_bytes: usize,
    /// Errors that have not been reported.
    pub errors: Vec<String>,
    /// Parquet files of all tables so far.
    pub files_ended: u64,
}

impl WriteContext {
    fn error(&mut self, table: &str, activity: &str, error: impl std::fmt::Display) {
        self.errors.push(format!("{table}: {activity}: {error}"));
    }
}

/// Counts of one table since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows received.
    pub rows: u64,
    /// Rows in Parquet files.
    pub stored: u64,
    /// Rows that are lost.
    pub dropped: u64,
    /// Rows that are only in a journal; recovery turns it into a Parquet file.
    pub in_journal: u64,
    /// Parquet files written.
    pub parts: u64,
    /// Bytes written to journals.
    pub journal_bytes: u64,
    /// Bytes written as Parquet files.
    pub part_bytes: u64,
}

/// Writes one table.
pub struct TableWriter {
    pub table: &'static Table,
    /// What has been written.
    pub counts: Counts,
    schema: SchemaRef,
    partition: Partition,
    /// Rows that are not encoded yet.
    rows: RowBuffer,
    /// Rows of a keyed table.
    keyed: Option<KeyedRows>,
    /// Keys that were open when the last file ended.
    open_before: usize,
    /// The present file: its encoded row groups, and the journal with all of its rows.
    encoder: Option<parquet_file::Encoder>,
    journal: Option<Journal>,
    /// The journal could not be written; the next attempt is at the next checkpoint.
    journal_failed: bool,
    /// Rows of the present file that are not in the journal.
    missed: u64,
    unstored: Unstored,
}

impl TableWriter {
    /// Creates a writer; files are created when rows arrive.
    pub fn new(table: &'static Table, options: &DatasetOptions) -> Self {
        let labels = options.manifest.as_ref().map(|manifest| &manifest.labels);
        let schema = if options.all_nullable {
            nullable(table)
        } else {
            table.schema().clone()
        };
        let schema = with_metadata(
            table,
            &schema,
            &options.run_id,
            &options.hostname,
            labels.unwrap_or(&Labels::default()),
            options.sparse,
        );
        Self {
            table,
            counts: Counts::default(),
            partition: Partition::default(),
            rows: RowBuffer::new(schema.clone()),
            keyed: table.keyed.then(|| KeyedRows::new(schema.clone())),
            open_before: 0,
            schema,
            encoder: None,
            journal: None,
            journal_failed: false,
            missed: 0,
            unstored: Unstored::default(),
        }
    }

    /// Adds rows to the journal and to the present file.
    pub fn add(&mut self, context: &mut WriteContext, rows: RecordBatch) {
        let count = rows.num_rows() as u64;
        self.counts.rows += count;
        self.append(context, &rows);
        let added = match &mut self.keyed {
            Some(keyed) => keyed.push(rows),
            None => self.rows.push(rows),
        };
        if let Err(error) = added {
            context.error(self.table.name, "rows with another schema", error);
            self.counts.dropped += count;
        }
        let keys = self.keyed.as_ref().map_or(0, KeyedRows::count);
        if keys >= self.open_before + MANY_KEYS && self.unstored.is_empty() {
            self.end_file(context, false);
            self.store(context, false);
        }
    }

    /// Makes the journal durable.
    pub fn sync(&mut self, context: &mut WriteContext) {
        if let (Some(journal), Some(directory)) = (&mut self.journal, self.partition.opened())
            && let Err(error) = journal.sync(directory)
        {
            context.error(self.table.name, "syncing the journal", error);
        }
    }

    /// Memory in bytes of rows that can be encoded.
    pub fn raw_bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Memory in bytes of everything that is not stored.
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
            + self.keyed.as_ref().map_or(0, KeyedRows::bytes)
            + self
                .encoder
                .as_ref()
                .map_or(0, parquet_file::Encoder::bytes)
            + self.unstored.bytes()
    }

    /// Position of the oldest file that could not be stored, among those of all tables.
    pub fn oldest(&self) -> Option<u64> {
        self.unstored.oldest()
    }

    /// Encodes the waiting rows as a row group. A file that has become large is ended.
    pub fn encode(&mut self, context: &mut WriteContext) {
        self.encode_rows(context);
        if self
            .encoder
            .as_ref()
            .is_some_and(|encoder| encoder.bytes() >= context.file_bytes)
        {
            self.end_file(context, false);
            self.store(context, false);
        }
    }

    fn encode_rows(&mut self, context: &mut WriteContext) {
        if self.rows.is_empty() {
            return;
        }
        let count = self.rows.count();
        let encoded = self.rows.take().map_err(Into::into).and_then(|rows| {
            let encoder = match &mut self.encoder {
                Some(encoder) => encoder,
                none => none.insert(parquet_file::Encoder::new(self.schema.clone())?),
            };
            encoder.encode(&rows)
        });
        if let Err(error) = encoded {
            context.error(self.table.name, "encoding Parquet", error);
            self.lose_file(count);
        }
    }

    /// Stores as much as possible; with `last`, also the open rows of a keyed table.
    pub fn checkpoint(&mut self, context: &mut WriteContext, last: bool) {
        self.journal_failed = false;
        self.store(context, last);
        // While the disk is full, one growing file takes less memory than many small ones.
        if last || self.unstored.is_empty() {
            self.end_file(context, last);
            self.store(context, last);
        }
    }

    /// Abandons the oldest file that could not be stored. Its journal remains.
    pub fn drop_oldest(&mut self) {
        self.unstored.drop_oldest(&mut self.counts);
    }

    /// Abandons all files that could not be stored.
    pub fn close(&mut self) {
        while !self.unstored.is_empty() {
            self.drop_oldest();
        }
    }

    /// Looks for the directory again at the next write.
    pub fn forget_directory(&mut self) {
        self.partition.forget();
    }

    fn store(&mut self, context: &mut WriteContext, all: bool) {
        self.unstored.store(
            context,
            self.table.name,
            &mut self.partition,
            &mut self.counts,
            all,
        );
    }

    /// Ends the present file and begins the next one.
    fn end_file(&mut self, context: &mut WriteContext, last: bool) {
        if let Some(keyed) = &mut self.keyed {
            let closed = keyed.take(last).and_then(|rows| match rows {
                Some(rows) => self.rows.push(rows),
                None => Ok(()),
            });
            if let Err(error) = closed {
                context.error(self.table.name, "closing rows", error);
            }
            self.open_before = keyed.count();
        }
        self.encode_rows(context);
        let Some(encoder) = self.encoder.take() else {
            self.rotate(context);
            return;
        };
        context.files_ended += 1;
        let mut file = EncodedFile {
            sequence: context.files_ended,
            bytes: Vec::new(),
            rows: encoder.rows(),
            missed: std::mem::take(&mut self.missed),
            journal: self
                .journal
                .take()
                .map(|journal| (journal.number, journal.bytes)),
        };
        match encoder.finish() {
            Ok(mut bytes) => {
                bytes.shrink_to_fit();
                file.bytes = bytes;
                self.unstored.push(file);
            }
            Err(error) => {
                context.error(self.table.name, "encoding Parquet", error);
                file.abandon(&mut self.counts);
            }
        }
        self.carry_open_rows(context);
    }

    /// Copies the open rows of a keyed table to a new journal, so that the old one can be removed.
    fn carry_open_rows(&mut self, context: &mut WriteContext) {
        let open = self.keyed.as_ref().map(KeyedRows::all);
        match open {
            Some(Ok(Some(rows))) => self.append(context, &rows),
            Some(Err(error)) => context.error(self.table.name, "open rows", error),
            _ => {}
        }
    }

    /// Replaces the journal of a keyed table, if most of its rows have been replaced by later ones.
    fn rotate(&mut self, context: &mut WriteContext) {
        let open = self.keyed.as_ref().map_or(0, KeyedRows::count) as u64;
        let Some(old) = self
            .journal
            .take_if(|journal| open > 0 && journal.rows > 10 * open + 1000)
        else {
            return;
        };
        let missed = std::mem::take(&mut self.missed);
        self.carry_open_rows(context);
        if self.missed == 0 {
            let directory = self.partition.opened();
            let removed = directory.map_or(Ok(()), |d| d.remove(&journal::name(old.number)));
            if let Err(error) = removed {
                context.error(self.table.name, "removing a journal", error);
            }
        } else {
            // The new journal is incomplete.
            self.journal = Some(old);
            self.missed = missed;
        }
    }

    /// Abandons the present file after an error, with `more` rows.
    fn lose_file(&mut self, more: u64) {
        let encoder = self.encoder.take();
        let lost = EncodedFile {
            sequence: 0,
            bytes: Vec::new(),
            rows: encoder.map_or(0, |encoder| encoder.rows()) + more,
            missed: std::mem::take(&mut self.missed),
            journal: self.journal.take().map(|j| (j.number, j.bytes)),
        };
        lost.abandon(&mut self.counts);
    }

    /// Appends rows to the journal of the present file.
    fn append(&mut self, context: &mut WriteContext, rows: &RecordBatch) {
        if !self.journal_failed {
            match self.try_append(context, rows) {
                Ok(bytes) => {
                    self.counts.journal_bytes += bytes;
                    return;
                }
                Err(error) => {
                    self.journal_failed = true;
                    self.partition.forget_if_gone(&error);
                    context.error(self.table.name, "writing the journal", error);
                }
            }
        }
        self.missed += rows.num_rows() as u64;
    }

    fn try_append(&mut self, context: &WriteContext, rows: &RecordBatch) -> io::Result<u64> {
        if self.journal.is_none() {
            self.journal = Some(self.create_journal(context)?);
        }
        let Some(journal) = &mut self.journal else {
            return Ok(0);
        };
        let before = journal.bytes;
        journal.append(rows)?;
        Ok(journal.bytes - before)
    }

    fn create_journal(&mut self, context: &WriteContext) -> io::Result<Journal> {
        let table = self.table.name;
        loop {
            let number = self.partition.free_number(context, table)?;
            let directory = self.partition.open(context, table)?;
            match Journal::create(directory, number, self.schema.clone()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => return result,
            }
        }
    }
}
