//! Recovery: turns the journals of a killed profiler into Parquet files.
//!
//! Every step can be interrupted and repeated. A journal is removed only after a Parquet file has
//! its rows, and a journal whose Parquet file exists is stale.

mod abandoned;
mod activity;
mod journals;
mod manifests;

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

pub use self::{
    abandoned::{abandoned_runs, recover_abandoned},
    manifests::manifests,
};
use self::{
    activity::{is_locked, running_elsewhere},
    journals::recover_directory,
    manifests::update_manifest,
};
use super::{
    files::{self, Directory},
    foreign_file::Trust,
    manifest::{Manifest, State},
    parquet_file, views,
};
use crate::schema::{DatasetSchema, run::RUN};

/// Hosts whose journals are recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts<'a> {
    /// One host.
    Only(&'a str),
    /// All hosts. None of them may be writing.
    All,
}

impl Hosts<'_> {
    fn include(self, hostname: &str) -> bool {
        match self {
            Self::Only(only) => only == hostname,
            Self::All => true,
        }
    }
}

/// Why a run could not be recovered.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// A profiler is writing it.
    #[error("{} is being written by process {pid}; wait until it has ended", path.display())]
    Running {
        /// The run directory.
        path: PathBuf,
        /// Process id of the profiler.
        pid: i32,
    },
    /// It cannot be read or written.
    #[error("cannot recover {}: {source}", path.display())]
    Io {
        /// The path in question.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Result for one journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalOutcome {
    /// Its rows are in a Parquet file.
    Recovered {
        /// The Parquet file.
        path: PathBuf,
        /// Rows in the file.
        rows: u64,
    },
    /// A Parquet file already had its rows.
    Stale,
    /// It had no complete batch.
    Empty,
    /// A profiler is writing it.
    InUse,
    /// It is damaged; the rows before the damage are in a Parquet file.
    Damaged {
        /// New path of the journal.
        path: PathBuf,
        /// Rows before the damage.
        rows: u64,
        /// Kind of the damage.
        error: String,
    },
    /// The Parquet file could not be written; the journal is unchanged.
    Failed {
        /// The reason.
        error: String,
    },
}

impl JournalOutcome {
    /// Whether all rows of the journal are in Parquet files.
    fn is_complete(&self) -> bool {
        matches!(self, Self::Recovered { .. } | Self::Stale | Self::Empty)
    }
}

/// Result for one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Journals, in the order of recovery.
    pub journals: Vec<(PathBuf, JournalOutcome)>,
    /// Recovered rows per table.
    pub rows: BTreeMap<String, u64>,
    /// Other errors.
    pub errors: Vec<String>,
}

impl RecoveryReport {
    /// Whether all rows of the journals are in Parquet files now.
    pub fn is_complete(&self) -> bool {
        self.errors.is_empty()
            && self
                .journals
                .iter()
                .all(|(_, outcome)| outcome.is_complete())
    }

    /// Whether all rows of the journals of one host are in Parquet files now.
    fn is_complete_for(&self, host: &str) -> bool {
        let directory = files::host_directory(host);
        let is_of_host = |path: &Path| path.parent().is_some_and(|of| of.ends_with(&directory));
        let mut journals = self.journals.iter().filter(|(path, _)| is_of_host(path));
        journals.all(|(_, outcome)| outcome.is_complete())
    }
}

/// Turns the journals of a run into Parquet files. Can be repeated. `views.sql` gets the tables and
/// views of `schema`.
///
/// # Errors
///
/// When a profiler is writing the run, or it cannot be read. Errors of single journals are in the
/// report.
pub fn recover(
    run_dir: &Path,
    hosts: Hosts<'_>,
    schema: &DatasetSchema,
    trust: Trust,
) -> Result<RecoveryReport, RecoverError> {
    let io_error = |source| RecoverError::Io {
        path: run_dir.to_owned(),
        source,
    };
    let run = Directory::open_run(run_dir, None).map_err(io_error)?;
    let run = owned_by_its_user(run).map_err(io_error)?.trusting(trust);
    let mut report = RecoveryReport::default();
    let all = manifests(&run, hosts);
    if let [(_, manifest)] = &all[..]
        && manifest.state == State::Running
        && manifest.process.is_alive()
    {
        return Err(RecoverError::Running {
            path: run_dir.to_owned(),
            pid: manifest.process.pid,
        });
    }
    let writing = writing_hosts(&run, &all, hosts, &mut report).map_err(io_error)?;
    let skip = |host: &str| !hosts.include(host) || writing.contains(host);
    let unread = recover_tables(&run, skip, &mut report).map_err(io_error)?;
    // Before run.json: a run that is marked as recovered is complete.
    let writer = match hosts {
        Hosts::Only(host) => host.to_owned(),
        Hosts::All => format!("recover.{}", std::process::id()),
    };
    let refresh_views = |report: &mut RecoveryReport| {
        if let Err(error) = views::refresh(&run, &writer, schema) {
            report.errors.push(format!("{}: {error}", views::FILE));
        }
    };
    refresh_views(&mut report);
    let had_run_table = run.sub(RUN.name).is_ok();
    for (file, manifest) in manifests(&run, hosts) {
        let host = &manifest.hostname;
        if writing.contains(host) {
            continue;
        }
        // The state of a host does not depend on errors of other hosts.
        let complete = report.is_complete_for(host) && !unread.contains(host);
        let any_rows = !report.rows.is_empty();
        match update_manifest(&run, &file, manifest, any_rows, complete) {
            Ok(unreadable) => report.errors.extend(unreadable),
            Err(error) => report.errors.push(format!("{file}: {error}")),
        }
    }
    if !had_run_table {
        refresh_views(&mut report);
    }
    Ok(report)
}

/// Hosts whose profiler is running. Each is an error of the report.
fn writing_hosts(
    run: &Directory,
    manifests: &[(String, Manifest)],
    hosts: Hosts<'_>,
    report: &mut RecoveryReport,
) -> io::Result<HashSet<String>> {
    let mut writing = HashSet::new();
    for (file, manifest) in manifests {
        if manifest.state != State::Running {
            continue;
        }
        let error = if manifest.process.is_alive() {
            Some(format!(
                "{} is being written by process {}",
                manifest.hostname, manifest.process.pid
            ))
        } else if is_locked(run, &manifest.hostname) {
            Some(format!(
                "{} is being written by a process that is not visible here, or is being recovered",
                manifest.hostname
            ))
        } else {
            running_elsewhere(run, file, manifest, hosts)?
        };
        if let Some(error) = error {
            report.errors.push(error);
            writing.insert(manifest.hostname.clone());
        }
    }
    Ok(writing)
}

/// Recovers the journals of all tables and hosts that are not skipped. Returns the hosts with
/// errors.
fn recover_tables(
    run: &Directory,
    skip: impl Fn(&str) -> bool,
    report: &mut RecoveryReport,
) -> io::Result<HashSet<String>> {
    let mut unread = HashSet::new();
    for table in run.names()? {
        // Other entries are not tables.
        let Ok(table_directory) = run.sub(&table) else {
            continue;
        };
        for name in table_directory.names()? {
            if let Some(host) = files::host_of_directory(&name)
                && !skip(host)
                && let Ok(directory) = table_directory.sub(&name)
                && let Err(error) =
                    parquet_file::decode(|| recover_directory(&directory, &table, report))
            {
                unread.insert(host.to_owned());
                report
                    .errors
                    .push(format!("{}: {error}", directory.path().display()));
            }
        }
    }
    Ok(unread)
}

/// If root recovers a run, new files get the owner of its directory.
fn owned_by_its_user(run: Directory) -> io::Result<Directory> {
    if !rustix::process::geteuid().is_root() {
        return Ok(run);
    }
    let owner = run.owned_by()?;
    Ok(run.owned(Some(owner)))
}
