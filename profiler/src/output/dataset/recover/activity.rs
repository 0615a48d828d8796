//! Whether a profiler on another machine is still writing a run.

use std::{io, path::Path};

use super::Hosts;
use crate::output::dataset::{
    files::{self, Directory},
    manifest::Manifest,
};

/// A profiler on another machine that has not written for this time (s) and three intervals has
/// ended. Clients of file servers buffer writes for up to 30 s.
const UNCHANGED: u64 = 120;

/// Whether the profiler of `manifest` can still be running on another machine: then the error.
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
    for table in run.names()? {
        let directory = run
            .sub(&table)
            .and_then(|table| table.sub(files::host_directory(host)));
        for name in directory.iter().flat_map(Directory::names).flatten() {
            // A file can be removed in between.
            if let Some(written) = directory.as_ref().ok().and_then(|f| f.modified(&name).ok()) {
                last = last.max(written);
            }
        }
    }
    let ago = run.now()?.saturating_sub(last).max(0).unsigned_abs();
    Ok((ago < timeout).then(|| {
        format!(
            "{host} wrote {ago} s ago: its profiler may be running on another machine; if it is not, \
             recover again in {} s",
            timeout - ago
        )
    }))
}
