//! One table of a running sink: rows → journal, rows → part, and what to do when neither can be stored.

use std::{collections::VecDeque, io, sync::Arc};

use arrow::{
    array::RecordBatch,
    datatypes::{Schema, SchemaRef},
};
use rustix::io::Errno;

use super::{
    files::{Directory, is_full},
    journal::{self, Journal},
    keyed::KeyedRows,
    part,
    rows::Rows,
};
use crate::schema::{SCHEMA_VERSION, Table};

/// A part of a table of lifetimes is ended early after this many new ones.
const MANY_LIFETIMES: usize = 50_000;

/// Keys of the metadata of journals and parts.
pub mod metadata {
    /// The run that the rows belong to.
    pub const RUN_ID: &str = "profiler.run_id";
    /// The node that the rows come from.
    pub const HOSTNAME: &str = "profiler.hostname";
    /// The table that the rows belong to.
    pub const TABLE: &str = "profiler.table";
    /// [`SCHEMA_VERSION`](crate::schema::SCHEMA_VERSION) of the writer.
    pub const SCHEMA_VERSION: &str = "profiler.schema_version";
    /// `true` for [tables of lifetimes](crate::schema::Table::keyed).
    pub const LIFETIMES: &str = "profiler.lifetimes";
}

/// What all tables of a sink share.
#[derive(Debug)]
pub struct Context {
    /// The directory of the run.
    pub run: Directory,
    /// Name of the directory of this host in every table.
    pub host_directory: String,
    /// Parts are ended early at this size in bytes.
    pub part_bytes: usize,
    /// Errors that nobody has been told of yet.
    pub errors: Vec<String>,
    /// Parts ended so far.
    pub parts_ended: u64,
}

impl Context {
    fn error(&mut self, table: &str, what: &str, error: impl std::fmt::Display) {
        self.errors.push(format!("{table}: {what}: {error}"));
    }
}

/// Counts of one table since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows that came.
    pub rows: u64,
    /// Rows in parts.
    pub stored: u64,
    /// Rows that no part will have.
    pub dropped: u64,
    /// Rows that only a journal has; `recover` makes a part of it.
    pub in_journal: u64,
    /// Parts written.
    pub parts: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Bytes written as parts.
    pub part_bytes: u64,
}

/// A table being written.
pub struct TableWriter {
    /// What is being written.
    pub table: &'static Table,
    /// What has been written.
    pub counts: Counts,
    schema: SchemaRef,
    directory: Option<Directory>,
    next_number: u32,
    rows: Rows,
    keyed: Option<KeyedRows>,
    /// KeyedRows that were open when the last part ended.
    open_before: usize,
    part: Option<part::Encoder>,
    journal: Option<Journal>,
    /// The journal could not be written; it is tried again at the next checkpoint.
    resting: bool,
    /// Rows of the current part that the journal does not have.
    missed: u64,
    finished: VecDeque<Finished>,
}

/// A part that is not stored yet.
struct Finished {
    /// Position among the parts of all tables.
    sequence: u64,
    bytes: Vec<u8>,
    rows: u64,
    /// Rows that are not in the journal.
    missed: u64,
    /// Number, and size in bytes, of the journal with the same rows.
    journal: Option<(u32, u64)>,
}

impl TableWriter {
    /// A table of `run_id` on `hostname`.
    pub fn new(table: &'static Table, run_id: &str, hostname: &str) -> Self {
        let schema = with_metadata(table, run_id, hostname);
        Self {
            table,
            counts: Counts::default(),
            directory: None,
            next_number: 0,
            rows: Rows::new(schema.clone()),
            keyed: table.keyed.then(|| KeyedRows::new(schema.clone())),
            open_before: 0,
            schema,
            part: None,
            journal: None,
            resting: false,
            missed: 0,
            finished: VecDeque::new(),
        }
    }

    /// Takes the rows of one tick: into the journal, and into the part.
    pub fn add(&mut self, context: &mut Context, rows: RecordBatch) {
        self.counts.rows += rows.num_rows() as u64;
        self.append(context, &rows);
        let count = rows.num_rows() as u64;
        let taken = match &mut self.keyed {
            Some(keyed) => keyed.push(rows),
            None => self.rows.push(rows),
        };
        if let Err(error) = taken {
            context.error(self.table.name, "rows of another schema", error);
            self.counts.dropped += count;
        }
        let keyed = self.keyed.as_ref().map_or(0, KeyedRows::count);
        if keyed >= self.open_before + MANY_LIFETIMES && self.finished.is_empty() {
            self.end_part(context, false);
            self.store(context, false);
        }
    }

    /// Makes the journal durable.
    pub fn sync(&mut self, context: &mut Context) {
        if let (Some(journal), Some(directory)) = (&mut self.journal, &self.directory)
            && let Err(error) = journal.sync(directory)
        {
            context.error(self.table.name, "syncing the journal", error);
        }
    }

    /// Memory in bytes of the rows that are not encoded yet and can be.
    pub fn raw_bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Memory in bytes of everything that is not stored yet.
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
            + self.keyed.as_ref().map_or(0, KeyedRows::bytes)
            + self.part.as_ref().map_or(0, part::Encoder::bytes)
            + self.finished_bytes()
    }

    /// Memory in bytes of the parts that could not be stored.
    pub fn finished_bytes(&self) -> usize {
        self.finished.iter().map(|part| part.bytes.len()).sum()
    }

    /// Position of the oldest part that could not be stored, among those of all tables.
    pub fn oldest(&self) -> Option<u64> {
        self.finished.front().map(|part| part.sequence)
    }

    /// Encodes the rows collected so far as a row group; a part that has become large is ended.
    pub fn encode(&mut self, context: &mut Context) {
        if self.rows.is_empty() {
            return;
        }
        let count = self.rows.count();
        let encoded = self.rows.take().map_err(Into::into).and_then(|rows| {
            let part = match &mut self.part {
                Some(part) => part,
                part => part.insert(part::Encoder::new(self.schema.clone())?),
            };
            part.encode(&rows)
        });
        if let Err(error) = encoded {
            context.error(self.table.name, "encoding Parquet", error);
            self.lose_part(count);
        }
        if self
            .part
            .as_ref()
            .is_some_and(|part| part.bytes() >= context.part_bytes)
        {
            self.end_part(context, false);
            self.store(context, false);
        }
    }

    /// Stores what can be stored. `last` also stores the lifetimes that are still open.
    pub fn checkpoint(&mut self, context: &mut Context, last: bool) {
        self.resting = false;
        self.store(context, last);
        // While the disk is full, one growing part takes less memory than many small ones.
        if last || self.finished.is_empty() {
            self.end_part(context, last);
            self.store(context, last);
        }
    }

    /// Gives up the oldest part that could not be stored. Its journal stays, if it has one.
    pub fn drop_oldest(&mut self) {
        if let Some(part) = self.finished.pop_front() {
            self.give_up(&part);
        }
    }

    /// Gives up all parts that could not be stored.
    pub fn close(&mut self) {
        while !self.finished.is_empty() {
            self.drop_oldest();
        }
    }

    fn give_up(&mut self, part: &Finished) {
        let lost = match part.journal {
            Some(_) => part.missed.min(part.rows),
            None => part.rows,
        };
        self.counts.dropped += lost;
        self.counts.in_journal += part.rows - lost;
    }

    /// Ends the part being filled and begins the next one.
    fn end_part(&mut self, context: &mut Context, last: bool) {
        if let Some(keyed) = &mut self.keyed {
            let ended = keyed.take(last).and_then(|rows| match rows {
                Some(rows) => self.rows.push(rows),
                None => Ok(()),
            });
            if let Err(error) = ended {
                context.error(self.table.name, "ending lifetimes", error);
            }
            self.open_before = keyed.count();
        }
        if !self.rows.is_empty() {
            // No early end inside: the part is ended here.
            let limit = std::mem::replace(&mut context.part_bytes, usize::MAX);
            self.encode(context);
            context.part_bytes = limit;
        }
        let Some(part) = self.part.take() else {
            self.rotate(context);
            return;
        };
        let rows = part.rows();
        let missed = std::mem::take(&mut self.missed);
        let journal = self.journal.take();
        context.parts_ended += 1;
        let mut finished = Finished {
            sequence: context.parts_ended,
            bytes: Vec::new(),
            rows,
            missed,
            journal: journal.map(|journal| (journal.number, journal.bytes)),
        };
        match part.finish() {
            Ok(mut bytes) => {
                bytes.shrink_to_fit();
                finished.bytes = bytes;
                self.finished.push_back(finished);
            }
            Err(error) => {
                context.error(self.table.name, "encoding Parquet", error);
                self.give_up(&finished);
            }
        }
        self.carry(context);
    }

    /// Begins a new journal with the lifetimes that are still open, so that the one before can go.
    fn carry(&mut self, context: &mut Context) {
        let open = self.keyed.as_ref().map(KeyedRows::all);
        match open {
            Some(Ok(Some(rows))) => self.append(context, &rows),
            Some(Err(error)) => context.error(self.table.name, "open lifetimes", error),
            _ => {}
        }
    }

    /// A journal of lifetimes that are all still open consists mostly of rows that later ones replace.
    fn rotate(&mut self, context: &mut Context) {
        let open = self.keyed.as_ref().map_or(0, KeyedRows::count) as u64;
        if let Some(old) = self
            .journal
            .take_if(|journal| open > 0 && journal.rows > 10 * open + 1000)
        {
            let missed = std::mem::take(&mut self.missed);
            self.carry(context);
            if self.missed == 0 {
                let directory = self.directory.as_ref();
                let removed = directory.map_or(Ok(()), |f| f.remove(&journal::name(old.number)));
                if let Err(error) = removed {
                    context.error(self.table.name, "removing a journal", error);
                }
            } else {
                // Better the old one than none.
                self.journal = Some(old);
                self.missed = missed;
            }
        }
    }

    /// The part being filled is of no use after an error in it; it takes `more` rows with it.
    fn lose_part(&mut self, more: u64) {
        let part = self.part.take();
        let lost = Finished {
            sequence: 0,
            bytes: Vec::new(),
            rows: part.map_or(0, |part| part.rows()) + more,
            missed: std::mem::take(&mut self.missed),
            journal: self.journal.take().map(|j| (j.number, j.bytes)),
        };
        self.give_up(&lost);
    }

    /// Appends rows to the journal of the current part.
    fn append(&mut self, context: &mut Context, rows: &RecordBatch) {
        if !self.resting {
            let written = self.try_append(context, rows);
            match written {
                Ok(bytes) => {
                    self.counts.journal_bytes += bytes;
                    return;
                }
                Err(error) => {
                    self.resting = true;
                    self.forget_directory_if_gone(&error);
                    context.error(self.table.name, "writing the journal", error);
                }
            }
        }
        self.missed += rows.num_rows() as u64;
    }

    fn try_append(&mut self, context: &mut Context, rows: &RecordBatch) -> io::Result<u64> {
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

    fn create_journal(&mut self, context: &Context) -> io::Result<Journal> {
        loop {
            let number = self.free_number(context)?;
            let schema = self.schema.clone();
            match Journal::create(self.directory(context)?, number, schema) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => return result,
            }
        }
    }

    /// The directory of this host, made if missing.
    fn directory(&mut self, context: &Context) -> io::Result<&Directory> {
        let directory = if let Some(directory) = self.directory.take() {
            directory
        } else {
            let table = context.run.make(self.table.name)?;
            let directory = table.make(&context.host_directory)?;
            let used = directory.names()?;
            let used = used
                .iter()
                .filter_map(|name| part::number(name).or_else(|| journal::number(name)))
                .max();
            let free = used.map_or(0, |number| number.saturating_add(1));
            self.next_number = self.next_number.max(free);
            directory
        };
        Ok(self.directory.insert(directory))
    }

    /// A number that no part and no journal in the directory has.
    fn free_number(&mut self, context: &Context) -> io::Result<u32> {
        self.directory(context)?;
        let number = self.next_number;
        self.next_number = number.saturating_add(1);
        Ok(number)
    }

    /// Looks for the directory again at the next write.
    pub fn forget_directory(&mut self) {
        self.directory = None;
    }

    fn forget_directory_if_gone(&mut self, error: &io::Error) {
        if matches!(
            Errno::from_io_error(error),
            Some(Errno::NOENT | Errno::STALE | Errno::NODEV)
        ) {
            self.directory = None;
        }
    }

    /// Writes finished parts, oldest first, until one cannot be written; all that can be written, if `all`.
    fn store(&mut self, context: &mut Context, all: bool) {
        let mut left = VecDeque::new();
        while let Some(mut part) = self.finished.pop_front() {
            match self.store_one(context, &mut part) {
                Ok(()) => {
                    self.counts.parts += 1;
                    self.counts.stored += part.rows;
                    self.counts.part_bytes += part.bytes.len() as u64;
                }
                Err(error) => {
                    self.forget_directory_if_gone(&error);
                    context.error(self.table.name, "writing a part", error);
                    left.push_back(part);
                    if !all {
                        break;
                    }
                }
            }
        }
        left.append(&mut self.finished);
        self.finished = left;
    }

    fn store_one(&mut self, context: &Context, part: &mut Finished) -> io::Result<()> {
        let mut number = match part.journal {
            Some((number, _)) => number,
            None => self.free_number(context)?,
        };
        loop {
            let directory = self.directory(context)?;
            match (
                directory.write_new(&part::name(number), &part.bytes),
                part.journal,
            ) {
                (Ok(()), None) => return Ok(()),
                (Ok(()), Some(_)) => {
                    // A journal whose part exists is ignored, so an error here costs only space.
                    let _ = directory.remove(&journal::name(number));
                    return Ok(());
                }
                (Err(error), journal) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if journal.is_some() {
                        // Somebody has recovered the journal.
                        return Ok(());
                    }
                    number = self.free_number(context)?;
                }
                // The journal takes the space that the part needs; its rows are in memory.
                (Err(error), Some((_, bytes)))
                    if is_full(&error) && bytes > part.bytes.len() as u64 =>
                {
                    directory.remove(&journal::name(number))?;
                    part.journal = None;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }
}

/// The schema as it is stored: it says where its rows come from.
fn with_metadata(table: &Table, run_id: &str, hostname: &str) -> SchemaRef {
    let schema = table.schema();
    let mut all = schema.metadata().clone();
    all.extend(
        [
            (metadata::RUN_ID, run_id),
            (metadata::HOSTNAME, hostname),
            (metadata::TABLE, table.name),
            (metadata::SCHEMA_VERSION, &SCHEMA_VERSION.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    if table.keyed {
        all.insert(metadata::LIFETIMES.to_owned(), "true".to_owned());
    }
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), all))
}
