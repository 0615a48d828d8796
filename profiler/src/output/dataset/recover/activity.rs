//! Whether a profiler that is not visible here, on another machine or in a container, is still writing a run.

use std::{io, path::Path};

use super::Hosts;
use crate::output::dataset::{
    files::{self, Directory},
    journal, journal_reader,
    manifest::Manifest,
};

/// A profiler on another machine that has not written for this time (s) and three intervals has
/// ended. Clients of file servers buffer writes for up to 30 s.
const UNCHANGED: u64 = 120;

/// Whether the profiler of `manifest` can still be running where its locks are not seen: then the error.
///
/// Its process is not visible here, but its files are: it counts as running if it has written
/// recently, by the clock of the file system.
pub fn running_elsewhere(
    run: &Directory,
    file: &str,
    manifest: &Manifest,
    hosts: Hosts<'_>,
) -> io::Result<Option<String>> {
    let host = &manifest.hostname;
    // A process of this machine from before it was booted has ended.
    let here = manifest.process.is_alive_here().is_some()
        || hosts == Hosts::Only(host)
        || *host == crate::host::own_name(Path::new("/proc"));
    if here {
        return Ok(None);
    }
    let interval = manifest
        .config
        .get("interval_ns")
        .and_then(serde_json::Value::as_u64);
    let timeout = UNCHANGED + interval.unwrap_or(0).saturating_mul(3) / 1_000_000_000;
    let mut last = run.modified(file)?;
    for directory in directories(run, host)? {
        for name in directory.names().into_iter().flatten() {
            // A file can be removed in between.
            if let Ok(written) = directory.modified(&name) {
                last = last.max(written);
            }
        }
    }
    let ago = run.now()?.saturating_sub(last).max(0).unsigned_abs();
    Ok((ago < timeout).then(|| {
        format!(
            "{host} wrote {ago} s ago: its profiler may be running on another machine or in a container; if \
             it is not, recover again in {} s",
            timeout - ago
        )
    }))
}

/// Whether a process has locked a journal of the host: a profiler of this machine, in whatever pid namespace.
pub fn is_locked(run: &Directory, host: &str) -> bool {
    for directory in directories(run, host).into_iter().flatten() {
        for name in directory.names().into_iter().flatten() {
            // A journal can be removed in between.
            if journal::number(&name).is_some()
                && let Ok(journal) = directory.read(&name)
                && !journal_reader::lock(&journal)
            {
                return true;
            }
        }
    }
    false
}

/// The directories of a host in all tables.
fn directories(run: &Directory, host: &str) -> io::Result<Vec<Directory>> {
    let of_host = files::host_directory(host);
    let tables = run
        .names()?
        .into_iter()
        .filter_map(|table| run.sub(&table).ok());
    Ok(tables
        .filter_map(|table| table.sub(&of_host).ok())
        .collect())
}
