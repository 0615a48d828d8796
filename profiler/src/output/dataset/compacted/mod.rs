//! `compacted.json`: where the rows of a compacted run are.
//!
//! `profiler compact` moves the rows of finished runs into files that many runs share, in
//! `compacted/TABLE/day=YYYY-MM-DD/` beside the runs. This file in the directory of a run names them.
//! It is replaced atomically, and it also names the Parquet files of the run that they replace. So
//! at every moment, a reader of a run finds each row in exactly one file. Only `profiler compact`
//! writes it; `run.json` is not changed.

mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::Metadata,
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use serde::{Deserialize, Serialize};

pub use self::rows::{Filter, aligned, for_each_batch, plain, read_by_time, size, span};
use super::{
    files::{Directory, is_plain_name},
    parquet_file,
};

/// Name of the file.
pub const FILE: &str = "compacted.json";
/// Directory of the compacted files, beside the runs.
pub const DIRECTORY: &str = "compacted";
/// Beginning of the names of the directories of days.
pub const DAY: &str = "day=";
/// Columns that compacted files are sorted by, as far as the table has them.
pub const SORTED_BY: &[&str] = &["host", "pid", "start_ts", "ts"];

/// Limit of the size of the file in bytes: its content is not trusted.
const MAX_BYTES: u64 = 64 << 20;
/// That of other users: it becomes many times as large in memory.
const MAX_FOREIGN_BYTES: u64 = 8 << 20;

/// Content of `compacted.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompactedRun {
    /// Name of the run in the compacted files.
    pub run_id: String,
    /// By table and host.
    pub tables: BTreeMap<String, BTreeMap<String, CompactedRows>>,
}

/// Rows of a table and host in compacted files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompactedRows {
    /// Number of rows.
    pub rows: u64,
    /// Number of rows as they were sampled: more, if those of older days became fewer.
    pub original_rows: u64,
    /// Files with rows, below the directory of the table: `day=2026-01-31/part-00000.parquet`.
    pub files: BTreeSet<String>,
    /// Parquet files of the run that have the same rows and are about to be removed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub replaced: BTreeSet<PartFile>,
}

/// A Parquet file of a run. A later file can have the same number, but is another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartFile {
    pub number: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change, ns since 1970-01-01.
    pub modified_ns: i64,
}

impl PartFile {
    /// The file `number`.
    pub fn of(number: u32, metadata: &Metadata) -> Self {
        let seconds = metadata.mtime().saturating_mul(1_000_000_000);
        Self {
            number,
            bytes: metadata.len(),
            modified_ns: seconds.saturating_add(metadata.mtime_nsec()),
        }
    }
}

impl CompactedRun {
    /// Reads the file of a run; `None` if the run is not compacted.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is too large or damaged.
    pub fn read(run: &Directory) -> io::Result<Option<Self>> {
        let text = match run.read_whole(FILE, MAX_BYTES, MAX_FOREIGN_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Replaces the file of a run.
    ///
    /// # Errors
    ///
    /// When it cannot be written; the old file remains.
    pub fn write(&self, run: &Directory) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        run.replace(FILE, "compact", &bytes)
    }

    /// Rows of a table and host.
    pub fn of(&self, table: &str, host: &str) -> Option<&CompactedRows> {
        self.tables.get(table)?.get(host)
    }

    /// Files of a table with rows of any host.
    pub fn files_of(&self, table: &str) -> BTreeSet<&str> {
        let hosts = self.tables.get(table).into_iter().flatten();
        hosts
            .flat_map(|(_, rows)| &rows.files)
            .map(String::as_str)
            .collect()
    }

    /// Table and host of all rows.
    pub fn places(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tables.iter().flat_map(|(table, hosts)| {
            let hosts = hosts.keys();
            hosts.map(|host| (table.as_str(), host.as_str()))
        })
    }
}

impl CompactedRows {
    /// The numbers of the Parquet files of the run with other rows.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn remaining(
        &self,
        directory: &Directory,
        mut numbers: BTreeSet<u32>,
    ) -> io::Result<BTreeSet<u32>> {
        for part in &self.replaced {
            if numbers.contains(&part.number) && part.is_in(directory)? {
                numbers.remove(&part.number);
            }
        }
        Ok(numbers)
    }
}

impl PartFile {
    /// Whether the directory has this file.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn is_in(&self, directory: &Directory) -> io::Result<bool> {
        let name = parquet_file::name(self.number);
        if !directory.has_file(&name)? {
            return Ok(false);
        }
        match directory.read(&name) {
            Ok(file) => Ok(Self::of(self.number, &file.metadata()?) == *self),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The directory of a day in a table, and the name of a file in it. The text is not trusted.
pub fn day_and_name(file: &str) -> io::Result<(&str, &str)> {
    let parts = file.split_once('/').filter(|(day, name)| {
        day.starts_with(DAY) && is_plain_name(day) && parquet_file::number(name).is_some()
    });
    parts.ok_or_else(|| io::Error::other(format!("{file}: not the name of a compacted file")))
}

/// Name of a compacted file for messages.
pub fn place(table: &str, file: &str) -> String {
    let path = Path::new("..").join(DIRECTORY).join(table).join(file);
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        assert!(day_and_name("day=2026-01-31/part-00000.parquet").is_ok());
        for file in [
            "part-00000.parquet",
            "day=a/../part-00000.parquet",
            "2026/part-00000.parquet",
            "day=2026-01-31/notes",
        ] {
            assert!(day_and_name(file).is_err(), "{file}");
        }
    }

    #[test]
    fn later_file_with_the_same_number_is_not_replaced() {
        let path = tempfile::TempDir::new().unwrap();
        let directory = Directory::open(path.path(), None).unwrap();
        directory.write_new("part-00000.parquet", b"old").unwrap();
        let file = directory.read("part-00000.parquet").unwrap();
        let rows = CompactedRows {
            replaced: [PartFile::of(0, &file.metadata().unwrap())].into(),
            ..CompactedRows::default()
        };
        let remaining = || rows.remaining(&directory, [0, 1].into()).unwrap();
        assert_eq!(remaining(), [1].into());
        directory.remove("part-00000.parquet").unwrap();
        directory.write_new("part-00000.parquet", b"new").unwrap();
        assert_eq!(remaining(), [0, 1].into());
    }
}
