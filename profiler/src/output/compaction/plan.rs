//! Which runs are compacted: those that are finished on all of their hosts.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::stored::RowPlace;
use crate::{
    output::dataset::{
        compacted::{self, CompactedRows, CompactedRun, DIRECTORY},
        files::{Directory, host_directory, is_temporary},
        journal,
        listing::Listing,
        parquet_file,
    },
    schema::run::RUN,
};

/// A directory that is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub name: String,
    pub why: String,
}

/// The Parquet files of a host in a table of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub run: String,
    pub host: String,
    /// Numbers of the files.
    pub parts: BTreeSet<u32>,
    /// What is compacted already.
    pub compacted: CompactedRows,
}

/// What is known about a table.
#[derive(Debug, Default)]
pub struct TablePlan {
    /// New rows; sorted by host and run.
    pub sources: Vec<Source>,
    /// What is compacted already, by host and run.
    pub runs: BTreeMap<RowPlace, CompactedRows>,
}

/// What is compacted.
#[derive(Debug, Default)]
pub struct Plan {
    pub tables: BTreeMap<String, TablePlan>,
    pub skipped: Vec<Skipped>,
    /// Directories of which it is unknown what rows they have in compacted files.
    pub unknown: Vec<Skipped>,
}

impl Plan {
    /// Reads the directories in `out`.
    ///
    /// # Errors
    ///
    /// When `out` cannot be read.
    pub fn of(out: &Directory) -> io::Result<Self> {
        let mut plan = Self::default();
        for name in out.names()? {
            // The names of removed runs begin with a dot.
            if name.starts_with('.') || name == DIRECTORY {
                continue;
            }
            let Ok(run) = out.sub(&name) else { continue };
            match CompactedRun::read(&run) {
                Ok(compacted) => plan.add_compacted(&name, compacted.unwrap_or_default()),
                Err(error) => {
                    let why = format!("{}: {error}", compacted::FILE);
                    plan.unknown.push(Skipped { name, why });
                    continue;
                }
            }
            match sources(&run, &name) {
                Ok(sources) => {
                    for (table, source) in sources {
                        plan.tables.entry(table).or_default().sources.push(source);
                    }
                }
                Err(why) => plan.skipped.push(Skipped { name, why }),
            }
        }
        for table in plan.tables.values_mut() {
            let sources = &mut table.sources;
            sources.sort_by(|a, b| (&a.host, &a.run).cmp(&(&b.host, &b.run)));
        }
        Ok(plan)
    }

    /// Finished runs of which all rows were removed.
    pub fn without_rows(&self) -> BTreeSet<String> {
        let (mut all, mut with_rows) = (BTreeSet::new(), BTreeSet::new());
        for table in self.tables.values() {
            for ((_, run), rows) in &table.runs {
                if rows.original_rows > 0 {
                    all.insert(run);
                }
                if !rows.files.is_empty() {
                    with_rows.insert(run);
                }
            }
            with_rows.extend(table.sources.iter().map(|source| &source.run));
        }
        with_rows.extend(self.skipped.iter().map(|skipped| &skipped.name));
        all.difference(&with_rows).copied().cloned().collect()
    }

    /// Adds the tables that have compacted files.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn add_tables_of(&mut self, compacted: &Directory) -> io::Result<()> {
        for name in compacted.names()? {
            if !name.starts_with('.') && compacted.sub(&name).is_ok() {
                self.tables.entry(name).or_default();
            }
        }
        Ok(())
    }

    fn add_compacted(&mut self, run: &str, compacted: CompactedRun) {
        for (table, hosts) in compacted.tables {
            let runs = &mut self.tables.entry(table).or_default().runs;
            for (host, rows) in hosts {
                runs.insert((host, run.to_owned()), rows);
            }
        }
    }

    /// Whether there are no files to compact.
    pub fn is_empty(&self) -> bool {
        self.tables.values().all(|table| table.sources.is_empty())
    }

    /// Number of runs with files to compact.
    pub fn runs(&self) -> usize {
        let sources = self.tables.values().flat_map(|table| &table.sources);
        let names: BTreeSet<_> = sources.map(|source| &source.run).collect();
        names.len()
    }
}

/// Table and files of a finished run, or the reason why it is left alone.
fn sources(run: &Directory, name: &str) -> Result<Vec<(String, Source)>, String> {
    let listing = Listing::read(run).map_err(|error| error.to_string())?;
    for (host, manifest) in &listing.manifests {
        // The compacted files know a run by its name only.
        if manifest.run_id != name {
            return Err(format!(
                "the run.json of {host} is of run {}",
                manifest.run_id
            ));
        }
    }
    listing.require_finished()?;
    let mut all = Vec::new();
    for (table, host) in &listing.directories {
        if !listing.manifests.contains_key(host) {
            return Err(format!("{table}: rows of {host}, but no run.{host}.json"));
        }
        // A copy of run.json, which is rewritten with it.
        if table == RUN.name {
            continue;
        }
        let compacted = listing.compacted.as_ref();
        let compacted = compacted.and_then(|run| run.of(table, host)).cloned();
        let compacted = compacted.unwrap_or_default();
        let parts = parts(run, table, host, &compacted)?;
        if !parts.is_empty() {
            let source = Source {
                run: name.to_owned(),
                host: host.clone(),
                parts,
                compacted,
            };
            all.push((table.clone(), source));
        }
    }
    Ok(all)
}

fn parts(
    run: &Directory,
    table: &str,
    host: &str,
    compacted: &CompactedRows,
) -> Result<BTreeSet<u32>, String> {
    let place = format!("{table}/{}", host_directory(host));
    let failed = |error: io::Error| format!("{place}: {error}");
    let directory = run
        .sub(table)
        .and_then(|table| table.sub(host_directory(host)));
    let directory = match directory {
        Ok(directory) => directory,
        // All of its rows are in compacted files.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut numbers = BTreeSet::new();
    for name in directory.names().map_err(failed)? {
        if journal::number(&name).is_some() || name.contains(".arrows.corrupt") {
            return Err(format!("{place}/{name}: a journal"));
        }
        match parquet_file::number(&name) {
            Some(number) if parquet_file::name(number) == name => {
                numbers.insert(number);
            }
            None if is_temporary(&name) => {}
            _ => return Err(format!("{place}/{name}: not of the profiler")),
        }
    }
    compacted.remaining(&directory, numbers).map_err(failed)
}
