//! Checks the compacted files of a dataset as a whole.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Report, TableReport};
use crate::output::{
    compaction::{Inspection, inspect},
    dataset::{compacted::DIRECTORY, foreign_file::Trust},
};

/// The dataset, if the path is that of its compacted files.
pub fn dataset(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let is_compacted = path.file_name().is_some_and(|name| name == DIRECTORY);
    let dataset = path.parent().filter(|_| is_compacted);
    dataset.map(Path::to_owned)
}

/// Reads all compacted files.
///
/// # Errors
///
/// When a directory cannot be read.
pub fn verify(path: &Path, dataset: &Path, trust: Trust) -> io::Result<Report> {
    let Inspection {
        tables,
        problems,
        notes,
    } = inspect(dataset, trust)?;
    let tables = tables.into_iter().map(|(name, files)| {
        let report = TableReport {
            hosts: files.hosts.len() as u64,
            rows: files.rows,
            parts: files.count,
            bytes: files.bytes,
        };
        (name, report)
    });
    Ok(Report {
        path: path.to_owned(),
        ok: problems.is_empty(),
        tables: tables.collect(),
        problems,
        notes,
        ..Report::default()
    })
}
