//! Manifests and directories of a run.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    All, Directories, Report,
    files::{Contents, Place},
};
use crate::{
    output::dataset::{
        compacted::CompactedRun,
        files::{Directory, host_directory},
        listing::Listing,
        manifest::Manifest,
    },
    support::worker::in_threads,
};

/// Directories that are read at the same time.
const READERS: usize = 8;

impl Report {
    /// Lists the manifests and directories of all hosts.
    pub(super) fn overview(
        &mut self,
        run: &Directory,
    ) -> io::Result<(BTreeMap<String, Manifest>, Directories, CompactedRun)> {
        let listing = Listing::read(run)?;
        self.problems.extend(listing.problems);
        for name in listing.foreign {
            self.note(format!("{name}: not of the profiler"));
        }
        let compacted = listing.compacted.unwrap_or_default();
        Ok((listing.manifests, listing.directories, compacted))
    }

    /// Reads all directories, several at the same time.
    pub(super) fn read(
        &mut self,
        run: &Directory,
        directories: &Directories,
        compacted: &CompactedRun,
    ) -> All {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        let run_id = self.run_id.as_deref();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        in_threads(threads.min(READERS), || {
            while let Some((table, host)) = directories.get(next.fetch_add(1, Ordering::Relaxed)) {
                let place = Place {
                    run_id,
                    table,
                    host,
                };
                let contents = contents(run, place, compacted);
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.push(((table.clone(), host.clone()), contents));
            }
        });
        let mut all = All::new();
        for ((table, host), contents) in found.into_inner().unwrap_or_else(PoisonError::into_inner)
        {
            match contents {
                Ok(contents) => {
                    all.insert((table, host), contents);
                }
                Err(error) => self.problem(format!("{table}/host={host}: {error}")),
            }
        }
        for ((table, host), contents) in &all {
            for (file, why) in &contents.damage {
                self.problem(format!("{table}/host={host}/{file}: {why}"));
            }
            for (file, what) in &contents.besides {
                self.note(format!("{table}/host={host}/{file}: {what}"));
            }
        }
        all
    }
}

/// Rows of a table and host in their own directory and in compacted files.
fn contents(run: &Directory, place: Place<'_>, compacted: &CompactedRun) -> io::Result<Contents> {
    let directory = run.sub(place.table);
    let directory = directory.and_then(|table| table.sub(host_directory(place.host)));
    let Some(rows) = compacted.of(place.table, place.host) else {
        return Contents::read(&directory?, place, None);
    };
    let mut contents = match directory {
        Ok(directory) => Contents::read(&directory, place, Some(rows))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
        Err(error) => return Err(error),
    };
    contents.add_compacted(run, place, &compacted.run_id, rows);
    Ok(contents)
}
