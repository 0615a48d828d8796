//! The compacted files of a table as they are, and which of them are written again.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use arrow::datatypes::SchemaRef;

use super::{Limits, keep::Resolution};
use crate::output::dataset::{
    compacted::{CompactedRows, DAY},
    files::Directory,
    metadata, parquet_file,
    parquet_reader::ParquetReader,
};

/// Host and run of rows.
pub type RowPlace = (String, String);

/// A compacted file.
pub struct StoredFile {
    /// Its name: `day=2026-01-31/part-00000.parquet`.
    pub name: String,
    pub bytes: u64,
    pub resolution: Resolution,
    pub schema: SchemaRef,
    /// Number of rows.
    pub rows: u64,
    /// Number of rows by place.
    pub places: BTreeMap<RowPlace, u64>,
    /// Places of rows that a run refers to.
    pub live: BTreeSet<RowPlace>,
    /// Number of rows that no run refers to: those of removed runs.
    pub dead: u64,
}

/// The files of each day.
pub type StoredDays = BTreeMap<String, Vec<StoredFile>>;

/// Reads the footers of all files of a table. `runs` has what the runs know about it.
///
/// # Errors
///
/// When a file cannot be read.
pub fn read(table: &Directory, runs: &BTreeMap<RowPlace, CompactedRows>) -> io::Result<StoredDays> {
    let mut users: BTreeMap<&str, BTreeSet<&RowPlace>> = BTreeMap::new();
    for (place, rows) in runs {
        for file in &rows.files {
            users.entry(file).or_default().insert(place);
        }
    }
    let mut days = StoredDays::new();
    for day in table.names()? {
        let Ok(directory) = table.sub(&day) else {
            continue;
        };
        if !day.starts_with(DAY) {
            continue;
        }
        for file in directory.names()? {
            if parquet_file::number(&file).is_none() {
                continue;
            }
            let name = format!("{day}/{file}");
            let users = users.get(&*name);
            let read = parquet_file::decode(|| StoredFile::read(&directory, &file, &name, users));
            let read = read.map_err(|error| in_file(&directory, &file, &error))?;
            days.entry(day.clone()).or_default().push(read);
        }
    }
    Ok(days)
}

/// An error with the path of the file.
pub fn in_file(directory: &Directory, name: &str, error: &io::Error) -> io::Error {
    let path = directory.path().join(name);
    io::Error::other(format!("{}: {error}", path.display()))
}

impl StoredFile {
    fn read(
        directory: &Directory,
        file: &str,
        name: &str,
        users: Option<&BTreeSet<&RowPlace>>,
    ) -> io::Result<Self> {
        let reader = ParquetReader::open(directory, file)?;
        let bytes = reader.bytes()?;
        let footer = reader.metadata().file_metadata();
        let rows = u64::try_from(footer.num_rows()).unwrap_or(0);
        let notes = footer.key_value_metadata().into_iter().flatten();
        let note = |key: &str| {
            let mut notes = notes.clone().filter(|note| note.key == key);
            notes.next().and_then(|note| note.value.as_deref())
        };
        let resolution = note(metadata::RESOLUTION).map(str::parse);
        let resolution = resolution.transpose().map_err(io::Error::other)?;
        let places: BTreeMap<String, BTreeMap<String, u64>> = match note(metadata::ROWS) {
            Some(text) => serde_json::from_str(text)?,
            None => return Err(io::Error::other("it does not say of which runs it is")),
        };
        let places = places.into_iter().flat_map(|(host, runs)| {
            let runs = runs.into_iter();
            runs.map(move |(run, rows)| ((host.clone(), run), rows))
        });
        let places: BTreeMap<RowPlace, u64> = places.collect();
        let (mut live, mut dead) = (BTreeSet::new(), 0);
        for (place, rows) in &places {
            if users.is_some_and(|users| users.contains(place)) {
                live.insert(place.clone());
            } else {
                dead += rows;
            }
        }
        Ok(Self {
            name: name.to_owned(),
            bytes,
            resolution: Resolution(resolution.unwrap_or(0)),
            schema: reader.schema().clone(),
            rows,
            places,
            live,
            dead,
        })
    }
}

/// The files of a day that are written again, together with new rows if there are any: those of a
/// finer resolution than the one wanted, those of which half the rows are of removed runs, and then
/// small ones too.
pub fn to_rewrite(
    files: Vec<StoredFile>,
    wanted: Option<Resolution>,
    has_new_rows: bool,
    limits: &Limits,
) -> Vec<StoredFile> {
    // Rows of a longer period than is wanted now would lose their extremes.
    let fits = |file: &StoredFile| wanted.is_none_or(|wanted| file.resolution <= wanted);
    let must = |file: &StoredFile| {
        let is_finer = wanted.is_none_or(|wanted| file.resolution < wanted);
        fits(file) && (is_finer || file.dead * 2 > file.rows)
    };
    let can = |file: &StoredFile| fits(file) && file.bytes < limits.file_bytes / 2;
    let small = files.iter().filter(|file| can(file)).count();
    let with_small = has_new_rows || small > 1 || files.iter().any(must);
    let chosen = files.into_iter();
    chosen
        .filter(|file| must(file) || (with_small && can(file)))
        .collect()
}
