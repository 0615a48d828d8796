//! The Parquet files of a table that are merged.

use std::{collections::BTreeSet, io};

use arrow::datatypes::{DataType, Field, TimeUnit};

use super::{check::Checksums, columns::Fields, keep::DAY_US, plan::Source, stored::in_file};
use crate::{
    output::dataset::{
        compacted::{PartFile, span},
        files::{Directory, host_directory},
        metadata, parquet_file,
        parquet_reader::ParquetReader,
    },
    schema::{DatasetSchema, HOST_COLUMN},
};

/// A Parquet file of a run.
pub struct Part {
    /// Index of its source.
    pub source: usize,
    pub number: u32,
    pub rows: u64,
    /// First and last day, since 1970-01-01.
    pub days: (i64, i64),
}

/// All Parquet files of a table.
pub struct Parts {
    pub list: Vec<Part>,
    pub fields: Fields,
    pub bytes: u64,
    /// By source.
    pub files: Vec<BTreeSet<PartFile>>,
}

impl Parts {
    /// Reads the footers of all files.
    pub fn read(
        out: &Directory,
        table: &str,
        sources: &[Source],
        schema: &DatasetSchema,
    ) -> io::Result<Self> {
        let mut all = Self {
            list: Vec::new(),
            fields: Fields::default(),
            bytes: 0,
            files: Vec::new(),
        };
        for (index, source) in sources.iter().enumerate() {
            let directory = open(out, table, source)?;
            let mut files = BTreeSet::new();
            for &number in &source.parts {
                let name = parquet_file::name(number);
                let part = all.add(&directory, &name, table, source);
                let part = part.map_err(|error| in_file(&directory, &name, &error))?;
                let (file, rows, days) = part;
                let file = PartFile { number, ..file };
                all.bytes += file.bytes;
                files.insert(file);
                all.list.push(Part {
                    source: index,
                    number,
                    rows,
                    days,
                });
            }
            all.files.push(files);
        }
        if let Some(table) = schema.table(table) {
            all.fields.known_first(table);
        }
        Ok(all)
    }

    fn add(
        &mut self,
        directory: &Directory,
        name: &str,
        table: &str,
        source: &Source,
    ) -> io::Result<(PartFile, u64, (i64, i64))> {
        let file = directory.read(name)?;
        let identity = PartFile::of(0, &file.metadata()?);
        let limits = directory.trust().limits(&file)?;
        let reader = ParquetReader::of(file, limits)?;
        let schema = reader.schema().clone();
        for (key, expected) in [
            (metadata::RUN_ID, &*source.run),
            (metadata::HOSTNAME, &*source.host),
            (metadata::TABLE, table),
        ] {
            match schema.metadata().get(key) {
                Some(found) if found == expected => {}
                found => {
                    let found = found.map_or("unknown", String::as_str);
                    return Err(io::Error::other(format!(
                        "{key} is {found}, not {expected}"
                    )));
                }
            }
        }
        if schema.index_of(HOST_COLUMN.name).is_ok() {
            return Err(io::Error::other("it has a column host"));
        }
        let per_us = match schema.field_with_name("ts").map(Field::data_type) {
            Ok(DataType::Timestamp(TimeUnit::Microsecond, _)) => 1,
            Ok(DataType::Timestamp(TimeUnit::Nanosecond, _)) => 1000,
            _ => return Err(no_times()),
        };
        let mut days: Option<(i64, i64)> = None;
        let mut rows = 0;
        for group in reader.metadata().row_groups() {
            rows += u64::try_from(group.num_rows()).unwrap_or(0);
            if group.num_rows() == 0 {
                continue;
            }
            let (first, last) = span(group).ok_or_else(no_times)?;
            let day = |ts: i64| ts.div_euclid(per_us).div_euclid(DAY_US);
            let (from, to) = days.unwrap_or((day(first), day(last)));
            days = Some((from.min(day(first)), to.max(day(last))));
        }
        self.fields.add(&schema);
        // A file without rows is of no day.
        Ok((identity, rows, days.unwrap_or((1, 0))))
    }

    /// Checks that every row of each source was read, and not more.
    pub fn check(&self, sources: &[Source], read: &Checksums) -> io::Result<()> {
        let mut expected = vec![0; sources.len()];
        for part in &self.list {
            expected[part.source] += part.rows;
        }
        for (source, expected) in sources.iter().zip(expected) {
            let place = (source.host.clone(), source.run.clone());
            let found = read.get(&place).map_or(0, |sum| sum.rows);
            if found != expected {
                return Err(io::Error::other(format!(
                    "{} of {}: {found} rows instead of {expected}",
                    source.run, source.host
                )));
            }
        }
        Ok(())
    }
}

/// The directory of a source in the table.
///
/// # Errors
///
/// When it cannot be opened.
pub fn open(out: &Directory, table: &str, source: &Source) -> io::Result<Directory> {
    let table = out.sub(&source.run)?.sub(table)?;
    table.sub(host_directory(&source.host))
}

/// Error of a file without times.
pub fn no_times() -> io::Error {
    io::Error::other("rows without the time of a sample")
}
