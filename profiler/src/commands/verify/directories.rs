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
use crate::output::dataset::{
    files::{Directory, host_directory},
    listing::Listing,
    manifest::Manifest,
};

/// Directories that are read at the same time.
const READERS: usize = 8;

impl Report {
    /// Lists the manifests and directories of all hosts.
    pub(super) fn overview(
        &mut self,
        run: &Directory,
    ) -> io::Result<(BTreeMap<String, Manifest>, Directories)> {
        let listing = Listing::read(run)?;
        self.problems.extend(listing.problems);
        for name in listing.foreign {
            self.note(format!("{name}: not of the profiler"));
        }
        Ok((listing.manifests, listing.directories))
    }

    /// Reads all directories, several at the same time.
    pub(super) fn read(&mut self, run: &Directory, directories: &Directories) -> All {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        let run_id = self.run_id.as_deref();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(READERS) {
                scope.spawn(|| {
                    while let Some((table, host)) =
                        directories.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let place = Place {
                            run_id,
                            table,
                            host,
                        };
                        let contents = run
                            .sub(table)
                            .and_then(|directory| directory.sub(host_directory(host)))
                            .and_then(|directory| Contents::read(&directory, place));
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.push(((table.clone(), host.clone()), contents));
                    }
                });
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
