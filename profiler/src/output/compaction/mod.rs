//! Compaction: merges the Parquet files of finished runs into few large ones.
//!
//! `DATASET/compacted/TABLE/day=YYYY-MM-DD/part-N.parquet` has the rows of many runs and hosts, sorted
//! by host, process and time. `compacted.json` of each run names the files with its rows: see
//! [`compacted`]. Tables are compacted one after the other, each in these steps:
//!
//! 1. The new files are written under temporary names, synced, read again and compared with the old
//!    ones: number of rows and checksum of all values, per run and host.
//! 2. `compacted/commit.json` is written. Before, the next compaction removes the temporary files; from
//!    now on, it completes what is missing.
//! 3. The new files get their names.
//! 4. For each run, `compacted.json` is replaced. At this moment, readers of the run change from the old
//!    files to the new ones. Then `views.sql` is replaced.
//! 5. For each run, the old files are removed, then their names from `compacted.json`.
//! 6. `commit.json` is removed.

mod check;
mod columns;
mod commit;
mod day;
mod day_files;
mod inspect;
mod keep;
mod merge;
mod parts;
mod plan;
mod reduce;
mod size;
mod sort;
mod stored;
mod totals;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use rustix::{fs::FlockOperation, io::Errno, system::uname};
use thiserror::Error;

use self::commit::Commit;
use super::{
    dataset::{
        compacted::{self, DIRECTORY},
        files::Directory,
        foreign_file::Trust,
        parquet_file,
    },
    retention::RunsDirectory,
};
use crate::schema::DatasetSchema;

pub use self::{
    inspect::{Inspection, inspect},
    keep::{Keep, KeepError},
    plan::{Plan, Skipped},
};

/// File that is locked during a compaction.
const LOCK: &str = ".lock";

/// What a compaction does.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tables of the newest version.
    pub schema: &'static DatasetSchema,
    /// What is kept of older rows.
    pub keep: Keep,
    /// Size of the compacted files in bytes, beyond which the rows of the oldest days are removed.
    pub max_bytes: Option<u64>,
    /// Time that the age of rows ends at, µs since 1970-01-01 UTC.
    pub now_us: i64,
    pub limits: Limits,
    /// Whose files are read without limits.
    pub trust: Trust,
}

/// Limits of a compaction.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of rows that are sorted in memory.
    pub sorted_bytes: usize,
    /// Sorted files that are merged at once.
    pub merged_files: usize,
    /// Size of a compacted file in bytes, at which the next one begins.
    pub file_bytes: u64,
    /// Rows of a row group.
    pub group_rows: usize,
    /// Bytes of rows of a row group in memory.
    pub group_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sorted_bytes: 64 << 20,
            merged_files: 8,
            file_bytes: 256 << 20,
            group_rows: 128 * 1024,
            group_bytes: 32 << 20,
        }
    }
}

/// Why a dataset could not be compacted.
#[derive(Debug, Error)]
pub enum CompactError {
    /// Another process compacts it.
    #[error("{}: another process is compacting it", .0.display())]
    Locked(PathBuf),
    /// It cannot be read or written.
    #[error("cannot compact {}: {source}", path.display())]
    Io {
        /// The path in question.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Result of a compaction.
#[derive(Debug, Default)]
pub struct CompactReport {
    /// Tables with new files.
    pub tables: Vec<CompactedTable>,
    /// Runs of which rows were compacted.
    pub runs: usize,
    /// Directories that were left alone.
    pub skipped: Vec<Skipped>,
    /// Tables that could not be compacted, with the reason. Their files are unchanged.
    pub failed: Vec<(String, String)>,
    /// Runs that were removed, because all of their rows were.
    pub removed: Vec<String>,
    /// Whether an interrupted compaction was completed first.
    pub is_continued: bool,
}

/// Result for one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactedTable {
    pub name: String,
    /// Rows read.
    pub rows: u64,
    /// Rows written: fewer, if older ones were reduced or removed.
    pub new_rows: u64,
    /// Replaced files, and their size in bytes.
    pub old: (u64, u64),
    /// New files, and their size in bytes.
    pub new: (u64, u64),
}

/// A step that has just been done. Tests stop the compaction after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    FileWritten,
    Verified,
    Recorded,
    FileNamed,
    RunSwitched,
    ViewsWritten,
    PartRemoved,
    RunFinished,
    OldFileRemoved,
    Forgotten,
}

/// Called after each step. The error [`Interrupted`](io::ErrorKind::Interrupted) ends the compaction at
/// once, as a kill does.
pub type AfterStep<'a> = &'a mut dyn FnMut(Step) -> io::Result<()>;

/// Compacts the finished runs in `out`.
///
/// # Errors
///
/// When the directory cannot be read or written, or another process compacts it. Errors of single
/// tables are in the report.
pub fn compact(
    out: &Path,
    options: &Options,
    after: AfterStep<'_>,
) -> Result<CompactReport, CompactError> {
    let failed = |source| CompactError::Io {
        path: out.to_owned(),
        source,
    };
    let directory = Directory::open(out, None).and_then(owned_by_its_user);
    let directory = directory.map_err(failed)?.trusting(options.trust);
    let first = Plan::of(&directory).map_err(failed)?;
    // A directory without finished runs stays as it is.
    if first.is_empty() && !directory.has(DIRECTORY).map_err(failed)? {
        return Ok(CompactReport {
            skipped: [first.skipped, first.unknown].concat(),
            ..CompactReport::default()
        });
    }
    let failed_at = |path, source| CompactError::Io { path, source };
    let path = out.join(DIRECTORY);
    let compacted = directory.make(DIRECTORY);
    let compacted = compacted.map_err(|error| failed_at(path.clone(), error))?;
    let locked = lock(&compacted).map_err(|error| failed_at(path.join(LOCK), error))?;
    let Some(_lock) = locked else {
        return Err(CompactError::Locked(out.to_owned()));
    };
    let is_continued = complete(&directory, &compacted, options.schema, after).map_err(failed)?;
    // Before the lock, another compaction may have changed the runs.
    let mut plan = Plan::of(&directory).map_err(failed)?;
    plan.add_tables_of(&compacted).map_err(failed)?;
    // Their rows could be taken for those of removed runs.
    let rewrite = plan.unknown.is_empty();
    let mut report = CompactReport {
        runs: plan.runs(),
        is_continued,
        ..CompactReport::default()
    };
    let compaction = Compaction {
        out: &directory,
        compacted: &compacted,
        rewrite,
    };
    let mut pass = |plan: &Plan, options: &Options, report: &mut CompactReport| {
        compaction.pass(plan, options, &mut *after, report)
    };
    pass(&plan, options, &mut report).map_err(failed)?;
    let excess = options
        .max_bytes
        .map(|limit| size::first_day(&compacted, limit));
    if let Some(first) = excess.transpose().map_err(failed)?.flatten()
        && rewrite
    {
        let mut options = options.clone();
        options.keep.begin_at(first);
        let mut plan = Plan::of(&directory).map_err(failed)?;
        plan.add_tables_of(&compacted).map_err(failed)?;
        pass(&plan, &options, &mut report).map_err(failed)?;
    }
    let expired = Plan::of(&directory).map_err(failed)?.without_rows();
    report.removed = remove_runs(&directory, &expired).map_err(failed)?;
    report.skipped = plan.skipped;
    report.skipped.extend(plan.unknown);
    Ok(report)
}

/// Removes runs without rows.
fn remove_runs(out: &Directory, names: &BTreeSet<String>) -> io::Result<Vec<String>> {
    let runs = RunsDirectory {
        out: out.path().to_owned(),
        hostname: uname().nodename().to_string_lossy().into_owned(),
        uid: out.owned_by()?.0,
    };
    if names.is_empty() {
        return Ok(Vec::new());
    }
    runs.remove_runs(names)
}

/// A locked dataset.
struct Compaction<'a> {
    out: &'a Directory,
    compacted: &'a Directory,
    /// Whether compacted files may be written again.
    rewrite: bool,
}

impl Compaction<'_> {
    /// Compacts all tables.
    fn pass(
        &self,
        plan: &Plan,
        options: &Options,
        after: AfterStep<'_>,
        report: &mut CompactReport,
    ) -> io::Result<()> {
        let (out, compacted) = (self.out, self.compacted);
        for (name, table) in &plan.tables {
            let merged = parquet_file::decode(|| {
                merge::merge(out, compacted, (name, table), self.rewrite, options, after)
            });
            let (commit, result) = match merged {
                Ok(None) => continue,
                Ok(Some(merged)) => merged,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => {
                    remove_temporary_files(compacted)?;
                    report.failed.push((name.clone(), error.to_string()));
                    continue;
                }
            };
            // The next table must not replace the commit of this one.
            commit.store(compacted)?;
            after(Step::Recorded)?;
            commit.complete(out, compacted, options.schema, after)?;
            report.tables.push(result);
        }
        Ok(())
    }
}

/// Completes an interrupted compaction, and removes its temporary files. Returns whether there was
/// something to complete.
fn complete(
    out: &Directory,
    compacted: &Directory,
    schema: &DatasetSchema,
    after: AfterStep<'_>,
) -> io::Result<bool> {
    let commit = Commit::read(compacted)?;
    if let Some(commit) = &commit {
        commit.complete(out, compacted, schema, after)?;
    }
    remove_temporary_files(compacted)?;
    Ok(commit.is_some())
}

/// Removes the files of a compaction that did not get to its commit.
pub fn remove_temporary_files(compacted: &Directory) -> io::Result<()> {
    compacted.remove_temporary_files()?;
    for name in compacted.names()? {
        // On file systems without files that have no name.
        if name.starts_with(".tmp") {
            compacted.remove(&name)?;
        }
        let Ok(table) = compacted.sub(&name) else {
            continue;
        };
        for day in table.names()? {
            if day.starts_with(compacted::DAY)
                && let Ok(day) = table.sub(&day)
            {
                day.remove_temporary_files()?;
            }
        }
    }
    Ok(())
}

/// Locks the dataset against other compactions, on all nodes if the file system can do that. The
/// kernel releases the lock when the process ends.
fn lock(compacted: &Directory) -> io::Result<Option<std::fs::File>> {
    let file = compacted.open_or_create(LOCK)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// If root compacts a dataset, new files get the owner of its directory.
fn owned_by_its_user(out: Directory) -> io::Result<Directory> {
    if !rustix::process::geteuid().is_root() {
        return Ok(out);
    }
    let owner = out.owned_by()?;
    Ok(out.owned(Some(owner)))
}
