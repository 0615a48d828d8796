//! The compacted files of a day, which are written one after the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
};

use arrow::{array::RecordBatch, datatypes::SchemaRef};

use serde::{Deserialize, Serialize};

use super::{Limits, check::count, keep::Resolution, stored::RowPlace};
use crate::output::dataset::{
    compacted::SORTED_BY,
    files::Directory,
    metadata,
    parquet_file::{self, Encoder, Layout},
};

/// Columns with Bloom filters, as far as the table has them.
const IDS: &[&str] = &[
    "run",
    "host",
    "pid",
    "job_id",
    "region_id",
    "parent_region_id",
    "uuid",
    "parent_uuid",
];

/// A new file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NewFile {
    /// Directory of the day.
    pub day: String,
    pub number: u32,
}

impl NewFile {
    /// Its name in the table: `day=2026-01-31/part-00000.parquet`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.day, parquet_file::name(self.number))
    }
}

/// Name of a file that is being written.
pub fn temporary(number: u32) -> String {
    format!(".{}.tmp", parquet_file::name(number))
}

/// Files of a table and day.
pub struct DayFiles<'a> {
    directory: &'a Directory,
    /// Schema of the files: the last column is the host.
    schema: SchemaRef,
    resolution: Resolution,
    limits: &'a Limits,
    number: u32,
    open: Option<Encoder<File>>,
    group: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// Numbers of the complete files, with the places of their rows.
    pub files: BTreeMap<u32, BTreeSet<RowPlace>>,
    places: BTreeMap<RowPlace, u64>,
}

impl<'a> DayFiles<'a> {
    /// Begins after the existing files.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn new(
        directory: &'a Directory,
        schema: SchemaRef,
        resolution: Resolution,
        limits: &'a Limits,
    ) -> io::Result<Self> {
        let names = directory.names()?;
        let used = names.iter().filter_map(|name| parquet_file::number(name));
        Ok(Self {
            directory,
            schema,
            resolution,
            limits,
            number: used.max().map_or(0, |number| number.saturating_add(1)),
            open: None,
            group: Vec::new(),
            rows: 0,
            bytes: 0,
            files: BTreeMap::new(),
            places: BTreeMap::new(),
        })
    }

    /// Adds the next rows in the order of the files. Returns whether a file is complete.
    ///
    /// # Errors
    ///
    /// When they cannot be written.
    pub fn push(&mut self, batch: &RecordBatch) -> io::Result<bool> {
        self.rows += batch.num_rows();
        self.bytes += batch.get_array_memory_size();
        self.group.push(batch.clone());
        count(batch, &mut self.places)?;
        if self.rows < self.limits.group_rows && self.bytes < self.limits.group_bytes {
            return Ok(false);
        }
        let size = self.end_group()?;
        let is_full = size >= self.limits.file_bytes;
        if is_full {
            self.end_file()?;
        }
        Ok(is_full)
    }

    /// Ends the last file. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn finish(&mut self) -> io::Result<bool> {
        if !self.group.is_empty() {
            self.end_group()?;
        }
        let has_file = self.open.is_some();
        self.end_file()?;
        Ok(has_file)
    }

    /// Writes a row group. Returns the size of the file.
    fn end_group(&mut self) -> io::Result<u64> {
        let encoder = match &mut self.open {
            Some(encoder) => encoder,
            none => {
                let name = temporary(self.number);
                self.directory.remove(&name)?;
                let file = self.directory.create(&name)?;
                let layout = Layout {
                    sorted_by: SORTED_BY,
                    ids: IDS,
                };
                none.insert(Encoder::to(file, self.schema.clone(), layout)?)
            }
        };
        encoder.encode(&std::mem::take(&mut self.group))?;
        (self.rows, self.bytes) = (0, 0);
        Ok(encoder.bytes() as u64)
    }

    fn end_file(&mut self) -> io::Result<()> {
        if let Some(mut encoder) = self.open.take() {
            let places = std::mem::take(&mut self.places);
            let mut rows: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
            for ((host, run), count) in &places {
                rows.entry(host).or_default().insert(run, *count);
            }
            encoder.note(metadata::ROWS, serde_json::to_string(&rows)?);
            if self.resolution != Resolution::RAW {
                encoder.note(metadata::RESOLUTION, self.resolution.0.to_string());
            }
            encoder.finish()?.sync_all()?;
            self.files.insert(self.number, places.into_keys().collect());
            self.number = self.number.saturating_add(1);
        }
        Ok(())
    }
}
