//! Checking the compacted files of a dataset. Nothing is changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use super::{
    check,
    commit::Commit,
    plan::{Plan, TablePlan},
    stored::{self, RowPlace, StoredFile},
};
use crate::output::dataset::{
    compacted::{DIRECTORY, day_and_name},
    files::Directory,
    foreign_file::Trust,
    parquet_file,
};

/// What is found.
#[derive(Debug, Default)]
pub struct Inspection {
    pub tables: BTreeMap<String, Files>,
    pub problems: Vec<String>,
    pub notes: Vec<String>,
}

/// The compacted files of a table.
#[derive(Debug, Default)]
pub struct Files {
    pub hosts: BTreeSet<String>,
    pub rows: u64,
    pub count: u64,
    pub bytes: u64,
}

/// Reads all compacted files in `out`, and what its runs know about them.
///
/// # Errors
///
/// When a directory cannot be read.
pub fn inspect(out: &Path, trust: Trust) -> io::Result<Inspection> {
    let out = Directory::open(out, None)?.trusting(trust);
    let compacted = out.sub(DIRECTORY)?;
    let mut found = Inspection::default();
    match Commit::read(&compacted) {
        Ok(None) => {}
        Ok(Some(_)) => found.problems.push(
            "a compaction was interrupted, or is running: `profiler compact` completes it"
                .to_owned(),
        ),
        Err(error) => found.problems.push(format!("commit.json: {error}")),
    }
    let mut plan = Plan::of(&out)?;
    plan.add_tables_of(&compacted)?;
    for run in &plan.unknown {
        found.problems.push(format!("{}: {}", run.name, run.why));
    }
    for (name, table) in &plan.tables {
        let directory = match compacted.sub(name) {
            Ok(directory) => directory,
            // No run has been compacted since the table exists.
            Err(_) if table.runs.is_empty() => continue,
            Err(error) => {
                found.problems.push(format!("{name}: {error}"));
                continue;
            }
        };
        match stored::read(&directory, &table.runs) {
            Ok(days) => found.table(name, table, &directory, days.into_values().flatten()),
            Err(error) => found.problems.push(error.to_string()),
        }
    }
    Ok(found)
}

impl Inspection {
    fn table(
        &mut self,
        name: &str,
        table: &TablePlan,
        directory: &Directory,
        files: impl Iterator<Item = StoredFile>,
    ) {
        let mut found = Files::default();
        let mut rows: BTreeMap<&RowPlace, u64> = BTreeMap::new();
        let mut names = BTreeSet::new();
        let mut dead = 0;
        for file in files {
            if let Err(error) = check_file(directory, &file) {
                self.problems.push(format!("{name}/{}: {error}", file.name));
            }
            found.rows += file.rows;
            found.count += 1;
            found.bytes += file.bytes;
            dead += file.dead;
            for (place, count) in &file.places {
                if let Some((place, _)) = table.runs.get_key_value(place)
                    && file.live.contains(place)
                {
                    *rows.entry(place).or_default() += count;
                    found.hosts.insert(place.0.clone());
                }
            }
            names.insert(file.name);
        }
        for (place, known) in &table.runs {
            let (host, run) = place;
            for file in known.files.difference(&names) {
                self.problems.push(format!(
                    "{name}/{file}: missing, with rows of {run} of {host}"
                ));
            }
            let rows = rows.get(place).copied().unwrap_or(0);
            if rows != known.rows {
                self.problems.push(format!(
                    "{name}: {rows} rows of {run} of {host} instead of {}",
                    known.rows
                ));
            }
        }
        if dead != 0 {
            self.notes.push(format!(
                "{name}: {dead} rows of runs that were removed, until half of a file is of such runs"
            ));
        }
        self.tables.insert(name.to_owned(), found);
    }
}

/// Reads a file, and compares the numbers of its rows with those in its metadata.
fn check_file(directory: &Directory, file: &StoredFile) -> io::Result<()> {
    let (day, name) = day_and_name(&file.name)?;
    let directory = directory.sub(day)?;
    let mut found: BTreeMap<RowPlace, u64> = BTreeMap::new();
    parquet_file::decode(|| {
        check::read(&directory, name, |batch| check::count(batch, &mut found))
    })?;
    if found != file.places {
        return Err(io::Error::other("other rows than its metadata has"));
    }
    Ok(())
}
