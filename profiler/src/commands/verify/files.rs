//! Content of the directory of one host in one table: Parquet files, which are read completely,
//! journals, and other files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use arrow::{
    array::{Array as _, ArrayRef, AsArray as _, RecordBatch, StringArray},
    datatypes::{Int32Type, Schema, TimestampMicrosecondType, TimestampNanosecondType, UInt64Type},
};
use serde::Serialize;

use crate::{
    output::{
        arrow_stream::End,
        dataset::{
            compacted::{self, CompactedRows, Filter},
            files::{Directory, is_temporary},
            foreign_file::Limits,
            journal,
            journal_reader::JournalReader,
            metadata, parquet_file,
            parquet_reader::ParquetReader,
        },
    },
    schema::Timestamp,
    sources::{
        dataset_schema,
        overhead::{self, OverheadRow},
    },
    support::self_metrics::Component,
};

/// Content of the directory.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Rows in complete Parquet files.
    pub rows: u64,
    /// Rows of older days that a compaction has merged into others, or removed.
    pub reduced: u64,
    /// Number of complete Parquet files.
    pub parts: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Journals without a Parquet file, with the number of their complete rows.
    pub journals: Vec<(String, u64)>,
    /// Files that are damaged or belong elsewhere, with the reason.
    pub damage: Vec<(String, String)>,
    /// Other files, with their kind.
    pub besides: Vec<(String, &'static str)>,
    /// Wall clocks of ticks, ns, if the table has rows per tick.
    pub ticks: BTreeSet<i64>,
    /// Ticks that the profiler has counted as missed, with their wall clocks (table `overhead`).
    pub missed: Vec<(i64, u64)>,
    /// Types of all columns.
    pub columns: BTreeMap<String, String>,
    /// Columns with several types.
    pub conflicts: BTreeSet<String>,
    /// Versions of the schema.
    pub versions: BTreeSet<String>,
    /// Time of the last write, s since 1970 by the clock of the file system.
    pub last_write: Option<i64>,
}

/// Place of a directory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Place<'a> {
    /// Name of the run; `None` if unknown.
    pub run_id: Option<&'a str>,
    /// Name of the table.
    pub table: &'a str,
    /// Name of the host.
    pub host: &'a str,
}

impl Contents {
    /// Reads all files.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read. Errors of single files are in the result.
    pub fn read(
        directory: &Directory,
        place: Place<'_>,
        compacted: Option<&CompactedRows>,
    ) -> io::Result<Self> {
        let mut contents = Self::default();
        let names = directory.names()?;
        let numbers = names.iter().filter_map(|name| parquet_file::number(name));
        let mut remaining: BTreeSet<u32> = numbers.collect();
        if let Some(compacted) = compacted {
            remaining = compacted.remaining(directory, remaining)?;
        }
        for name in &names {
            let number = parquet_file::number(name);
            let kind = if let Some(number) = journal::number(name) {
                // Its Parquet file exists: the next start removes the journal.
                if directory.has_file(&parquet_file::name(number))? {
                    Some("the journal of a part that is there")
                } else {
                    contents.journal(directory, name);
                    None
                }
            } else if number.is_some_and(|number| !remaining.contains(&number)) {
                Some("compacted; the next compaction removes it")
            } else if number.is_some_and(|number| parquet_file::name(number) == *name) {
                contents.part(directory, name, place);
                None
            } else if is_temporary(name) {
                Some("a file that was being written")
            } else if name.starts_with("part-") && name.ends_with(".parquet") {
                let why = "readers take it for a part, and it is none of ours".to_owned();
                contents.damage.push((name.to_owned(), why));
                None
            } else if name.contains(".arrows.corrupt") {
                let why = "a damaged journal that recovery has kept aside".to_owned();
                contents.damage.push((name.to_owned(), why));
                None
            } else {
                Some("not of the profiler")
            };
            contents
                .besides
                .extend(kind.map(|kind| (name.clone(), kind)));
        }
        Ok(contents)
    }

    /// Adds the rows of the run and host in compacted files.
    pub fn add_compacted(
        &mut self,
        run: &Directory,
        place: Place<'_>,
        run_id: &str,
        compacted: &CompactedRows,
    ) {
        let mut rows = 0;
        for file in &compacted.files {
            let mut part = Part::default();
            let filter = Filter {
                run: run_id,
                host: place.host,
                table: place.table,
                columns: None,
                times: None,
            };
            let read = compacted::for_each_batch(run, file, filter, |batch| {
                part.add_compacted(&batch, place);
            });
            rows += part.rows;
            // The share of the run, which no file shows exactly.
            if let Ok((bytes, all @ 1..)) = compacted::size(run, place.table, file) {
                let share = u128::from(bytes) * u128::from(part.rows) / u128::from(all);
                self.bytes += u64::try_from(share).unwrap_or(bytes);
            }
            match read {
                Ok(()) => self.add(&compacted::place(place.table, file), part),
                Err(error) => {
                    let name = compacted::place(place.table, file);
                    self.damage.push((name, error.to_string()));
                }
            }
        }
        if rows != compacted.rows {
            let why = format!(
                "{rows} rows in compacted files instead of {}",
                compacted.rows
            );
            self.damage.push((compacted::FILE.to_owned(), why));
        }
        let original = compacted.original_rows;
        self.reduced += original.saturating_sub(compacted.rows);
    }

    fn part(&mut self, directory: &Directory, name: &str, place: Place<'_>) {
        let checked = self.opened(directory, name).and_then(|(file, limits)| {
            // The bytes are not trusted: a panic of a decoder is an error.
            let found = catch_unwind(AssertUnwindSafe(|| Part::read(file, limits, place)));
            found.map_err(|_| "the decoder has failed".to_owned())?
        });
        match checked {
            Ok(part) => self.add(name, part),
            Err(why) => self.damage.push((name.to_owned(), why)),
        }
    }

    fn add(&mut self, name: &str, part: Part) {
        self.rows += part.rows;
        self.parts += 1;
        self.ticks.extend(part.ticks);
        self.missed.extend(part.missed);
        self.versions.extend(part.version);
        for (column, of_type) in part.columns {
            let known = self
                .columns
                .entry(column.clone())
                .or_insert_with(|| of_type.clone());
            if *known != of_type {
                self.conflicts.insert(column);
            }
        }
        let stray = part.strange.into_iter();
        self.damage.extend(stray.map(|why| (name.to_owned(), why)));
    }

    fn journal(&mut self, directory: &Directory, name: &str) {
        let rows = self.opened(directory, name).and_then(|(file, limits)| {
            let mut stream = JournalReader::of(file, limits).map_err(|error| error.to_string())?;
            let mut rows = 0;
            while let Some(batches) = stream.next_step().map_err(|error| error.to_string())? {
                rows += batches
                    .iter()
                    .map(|batch| batch.num_rows() as u64)
                    .sum::<u64>();
            }
            match stream.end {
                Some(End::Damaged(why)) => Err(format!("{why}, after {rows} rows")),
                _ => Ok(rows),
            }
        });
        match rows {
            Ok(rows) => self.journals.push((name.to_owned(), rows)),
            Err(why) => self.damage.push((name.to_owned(), why)),
        }
    }

    fn opened(
        &mut self,
        directory: &Directory,
        name: &str,
    ) -> Result<(File, Option<Limits>), String> {
        let file = directory.read(name).map_err(|error| error.to_string())?;
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        self.bytes += metadata.len();
        let written = std::os::unix::fs::MetadataExt::mtime(&metadata);
        self.last_write = self.last_write.max(Some(written));
        let limits = directory.trust().limits(&file);
        Ok((file, limits.map_err(|error| error.to_string())?))
    }
}

/// One complete Parquet file.
#[derive(Default)]
struct Part {
    rows: u64,
    ticks: BTreeSet<i64>,
    missed: Vec<(i64, u64)>,
    columns: Vec<(String, String)>,
    version: Option<String>,
    /// Problems of a file that can be read.
    strange: Vec<String>,
}

impl Part {
    /// Adds rows of a compacted file.
    fn add_compacted(&mut self, batch: &RecordBatch, place: Place<'_>) {
        let schema = batch.schema();
        if self.columns.is_empty() {
            self.columns = columns(&schema);
        }
        self.rows += batch.num_rows() as u64;
        let Some(times) = times(batch, "ts") else {
            return;
        };
        let table = dataset_schema().table(place.table);
        let is_keyed = table.is_some_and(|table| table.keyed);
        if !is_keyed && has_intervals(&schema) {
            self.ticks.extend(&times);
        }
        if place.table == overhead::TABLE.name {
            self.missed.extend(missed(batch, &times));
        }
    }

    fn read(file: File, limits: Option<Limits>, place: Place<'_>) -> Result<Self, String> {
        if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            return Err("empty".to_owned());
        }
        let wrong = |error: &dyn std::fmt::Display| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().to_owned()
        };
        let reader = ParquetReader::of(file, limits).map_err(|e| wrong(&e))?;
        let schema = reader.schema().clone();
        let promised = u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
        let fact = |key| schema.metadata().get(key).map(String::as_str);
        let mut part = Self {
            columns: columns(&schema),
            version: fact(metadata::SCHEMA_VERSION).map(str::to_owned),
            ..Self::default()
        };
        for (key, what, expected) in [
            (metadata::RUN_ID, "run", place.run_id),
            (metadata::HOSTNAME, "host", Some(place.host)),
            (metadata::TABLE, "table", Some(place.table)),
        ] {
            match (fact(key), expected) {
                (None, _) => part
                    .strange
                    .push(format!("it does not say of which {what} it is")),
                (Some(found), Some(expected)) if found != expected => {
                    part.strange.push(format!("it is of {what} {found}"));
                }
                _ => {}
            }
        }
        let per_tick = schema.index_of("ts").is_ok()
            && has_intervals(&schema)
            && fact(metadata::KEYED).is_none();
        let mut last = i64::MIN;
        for batch in reader.build().map_err(|error| wrong(&error))? {
            let batch = batch.map_err(|error| wrong(&error))?;
            part.rows += batch.num_rows() as u64;
            let Some(times) = times(&batch, "ts") else {
                continue;
            };
            if times
                .iter()
                .any(|ts| std::mem::replace(&mut last, *ts) > *ts)
                && !part.strange.iter().any(|why| why == UNSORTED)
            {
                part.strange.push(UNSORTED.to_owned());
            }
            if per_tick {
                part.ticks.extend(&times);
            }
            if place.table == overhead::TABLE.name {
                part.missed.extend(missed(&batch, &times));
            }
        }
        if part.rows != promised {
            let found = part.rows;
            part.strange
                .push(format!("{found} rows instead of {promised}"));
        }
        Ok(part)
    }
}

/// Names and types of the columns.
fn columns(schema: &Schema) -> Vec<(String, String)> {
    let fields = schema.fields().iter();
    fields
        .map(|field| (field.name().clone(), field.data_type().to_string()))
        .collect()
}

fn has_intervals(schema: &Schema) -> bool {
    let intervals = schema.field_with_name("interval_ns");
    intervals.is_ok_and(|field| !field.is_nullable())
}

const UNSORTED: &str = "its rows are not sorted by ts";

/// Values of a column in ns since 1970-01-01 UTC. Files of version 2 of the schema have ns.
fn times(batch: &RecordBatch, name: &str) -> Option<Vec<i64>> {
    let column = batch.column_by_name(name)?;
    if let Some(times) = column.as_primitive_opt::<TimestampNanosecondType>() {
        return Some(times.values().to_vec());
    }
    let times = column.as_primitive_opt::<TimestampMicrosecondType>()?;
    let times = times.values().iter();
    Some(times.map(|us| Timestamp::from_us(*us).ns()).collect())
}

/// Values of a column of texts. Files of version 2 of the schema have dictionaries.
fn texts(column: &ArrayRef) -> Option<Vec<Option<&str>>> {
    if let Some(texts) = column.as_string_opt::<i32>() {
        return Some(texts.iter().collect());
    }
    let dictionary = column.as_dictionary_opt::<Int32Type>()?;
    let texts = dictionary.downcast_dict::<StringArray>()?;
    Some(texts.into_iter().collect())
}

/// Ticks that the profiler missed, from the rows of table `overhead`.
fn missed(batch: &RecordBatch, times: &[i64]) -> Vec<(i64, u64)> {
    let parts = batch
        .column_by_name(OverheadRow::component_kind.name())
        .and_then(texts);
    let dropped = batch
        .column_by_name(OverheadRow::dropped.name())
        .and_then(|column| column.as_primitive_opt::<UInt64Type>());
    let (Some(parts), Some(dropped)) = (parts, dropped) else {
        return Vec::new();
    };
    (0..batch.num_rows())
        .filter(|&row| parts[row] == Some(Component::Profiler.as_str()))
        .filter(|&row| dropped.is_valid(row) && dropped.value(row) != 0)
        .map(|row| (times[row], dropped.value(row)))
        .collect()
}
