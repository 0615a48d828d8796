//! What a run's directory contains: manifests of its hosts, and directories of its tables. Nothing in
//! it is trusted.

use std::{collections::BTreeMap, io};

use super::{
    compacted::{self, CompactedRun},
    files::{Directory, host_of_directory, is_plain_name},
    manifest::{self, Manifest, State},
    views,
};
use crate::{failure::os_error::without_code, job::announcement};

/// Directory in a run with the exports of `profiler run --export`.
pub const EXPORTS: &str = "exports";

/// Content of a run's directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// By host.
    pub manifests: BTreeMap<String, Manifest>,
    /// Table and host of all rows: every directory, and every place in compacted files.
    pub directories: Vec<(String, String)>,
    /// The rows in compacted files, if there are any.
    pub compacted: Option<CompactedRun>,
    /// Manifests and directories that cannot be read, with the reason.
    pub problems: Vec<String>,
    /// Files and directories that the profiler has not created.
    pub foreign: Vec<String>,
}

impl Listing {
    /// Reads the directory `run`.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is not that of a run.
    pub fn read(run: &Directory) -> io::Result<Self> {
        let mut listing = Self::default();
        for name in run.names()? {
            if manifest::is_manifest(&name) {
                listing.add_manifest(&name, Manifest::read(run, &name));
                continue;
            }
            if name == EXPORTS {
                continue;
            }
            if name == compacted::FILE {
                match CompactedRun::read(run) {
                    Ok(compacted) => listing.compacted = compacted,
                    Err(error) => listing.problems.push(format!("{name}: {error}")),
                }
                continue;
            }
            match run.sub(&name) {
                Ok(table) => listing.add_table(&name, &table),
                Err(_)
                    if (views::is_description(&name) || announcement::is_file(&name))
                        && run.has_file(&name)? => {}
                Err(_) => listing.foreign.push(name),
            }
        }
        let compacted = listing.compacted.iter().flat_map(CompactedRun::places);
        let compacted = compacted.map(|(table, host)| (table.to_owned(), host.to_owned()));
        listing.directories.extend(compacted);
        for problem in &mut listing.problems {
            *problem = without_code(problem).into_owned();
        }
        listing.directories.sort();
        listing.directories.dedup();
        if listing.manifests.is_empty() && listing.directories.is_empty() {
            let why = "not the directory of a run: neither run.json nor tables";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        Ok(listing)
    }

    /// Tells why the run is not finished on all of its hosts with all rows in Parquet files.
    pub fn require_finished(&self) -> Result<(), String> {
        if self.manifests.is_empty() {
            return Err("no run.json".to_owned());
        }
        if let Some(problem) = self.problems.first() {
            return Err(problem.clone());
        }
        for (host, manifest) in &self.manifests {
            match manifest.state {
                State::Complete | State::Recovered if !manifest.has_journals() => {}
                State::Running if manifest.process.is_alive_here() == Some(true) => {
                    return Err(format!("{host} is being profiled"));
                }
                State::Running => {
                    return Err(format!(
                        "{host} has not ended, or its profiler was killed: `profiler recover`"
                    ));
                }
                _ => {
                    return Err(format!(
                        "{host} has lost rows, or has them in a journal only"
                    ));
                }
            }
        }
        Ok(())
    }

    fn add_manifest(&mut self, name: &str, read: io::Result<Manifest>) {
        let problem = match read {
            Ok(manifest) if !is_plain_name(&manifest.hostname) => {
                "it does not say of which host it is".to_owned()
            }
            Ok(manifest) => {
                let host = manifest.hostname.clone();
                if self.manifests.insert(host.clone(), manifest).is_none() {
                    return;
                }
                format!("another file about {host}")
            }
            Err(error) => error.to_string(),
        };
        self.problems.push(format!("{name}: {problem}"));
    }

    fn add_table(&mut self, name: &str, table: &Directory) {
        let names = table.names().unwrap_or_else(|error| {
            self.problems.push(format!("{name}: {error}"));
            Vec::new()
        });
        for entry in names {
            match host_of_directory(&entry) {
                Some(host) if table.sub(&entry).is_ok() => {
                    self.directories.push((name.to_owned(), host.to_owned()));
                }
                _ => self.foreign.push(format!("{name}/{entry}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn damaged_and_foreign_entries_are_listed() {
        let run = tempfile::TempDir::new().unwrap();
        let path = |name: &str| run.path().join(name);
        fs::create_dir_all(path("usage/host=a")).unwrap();
        fs::create_dir(path("usage/other")).unwrap();
        fs::write(path("notes.txt"), "").unwrap();
        fs::write(path("run.b.json"), "{").unwrap();
        let large = fs::File::create(path("run.json")).unwrap();
        large.set_len((64 << 20) + 1).unwrap();
        let open = || Directory::open(run.path(), None).unwrap();
        let listing = Listing::read(&open()).unwrap();
        assert_eq!(listing.directories, [("usage".to_owned(), "a".to_owned())]);
        let mut foreign = listing.foreign;
        foreign.sort();
        assert_eq!(foreign, ["notes.txt", "usage/other"]);
        assert!(listing.manifests.is_empty());
        let problems = listing.problems.join("\n");
        assert!(
            problems.contains("run.json: too large, over 64.0 MiB"),
            "{problems}"
        );
        assert!(problems.contains("run.b.json: EOF"), "{problems}");
        fs::remove_dir_all(path("usage")).unwrap();
        let error = Listing::read(&open()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
