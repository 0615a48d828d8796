//! Manifests and directories of a run.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
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
    job::announcement,
    output::dataset::{
        files::{Directory, host_directory, host_of_directory, is_plain_name},
        manifest::{self, Manifest},
        views,
    },
};

/// Limit of the size of a `run.json` in bytes.
const MAX_MANIFEST: u64 = 64 << 20;
/// Directories that are read at the same time.
const READERS: usize = 8;

impl Report {
    /// Reads the manifests of all hosts, and lists their directories.
    pub(super) fn overview(
        &mut self,
        run: &Directory,
    ) -> io::Result<(BTreeMap<String, Manifest>, Directories)> {
        let mut manifests = BTreeMap::new();
        let mut directories = Vec::new();
        for name in run.names()? {
            if manifest::is_manifest(&name) {
                match read_manifest(run, &name) {
                    Ok(manifest) if !is_plain_name(&manifest.hostname) => {
                        self.problem(format!("{name}: it does not say of which host it is"));
                    }
                    Ok(manifest) => {
                        let host = manifest.hostname.clone();
                        if manifests.insert(host.clone(), manifest).is_some() {
                            self.problem(format!("{name}: another file about {host}"));
                        }
                    }
                    Err(error) => self.problem(format!("{name}: {error}")),
                }
                continue;
            }
            let Ok(table) = run.sub(&name) else {
                if !views::is_description(&name) && !announcement::is_file(&name) {
                    self.note(format!("{name}: not of the profiler"));
                }
                continue;
            };
            let names = table.names();
            if let Err(error) = &names {
                self.problem(format!("{name}: {error}"));
            }
            for entry in names.unwrap_or_default() {
                match host_of_directory(&entry) {
                    Some(host) if table.sub(&entry).is_ok() => {
                        directories.push((name.clone(), host.to_owned()));
                    }
                    _ => self.note(format!("{name}/{entry}: not of the profiler")),
                }
            }
        }
        Ok((manifests, directories))
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

fn read_manifest(run: &Directory, name: &str) -> io::Result<Manifest> {
    let mut text = Vec::new();
    run.read(name)?
        .take(MAX_MANIFEST + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_MANIFEST {
        return Err(io::Error::other("too large for a run.json"));
    }
    Ok(serde_json::from_slice(&text)?)
}
