//! `commit.json`: what is left to do for a table whose compacted files are written.
//!
//! Each step can be interrupted and repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _},
};

use serde::{Deserialize, Serialize};

use super::{
    AfterStep, Step,
    check::Checksums,
    day::{Day, Written},
    day_files::{NewFile, temporary},
    plan::TablePlan,
    stored::RowPlace,
};
use crate::{
    output::dataset::{
        compacted::{CompactedRows, CompactedRun, DIRECTORY, PartFile, day_and_name},
        files::{Directory, host_directory},
        parquet_file, views,
    },
    schema::DatasetSchema,
};

/// Name of the file, in the directory of the compacted files.
const FILE: &str = "commit.json";
/// Name of this writer in temporary files.
const WRITER: &str = "compact";

/// Content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    pub table: String,
    /// New files.
    pub files: BTreeSet<NewFile>,
    /// Compacted files with the same rows, which are removed: `day=2026-01-31/part-00000.parquet`.
    pub removed: BTreeSet<String>,
    /// What `compacted.json` gets, by run and host.
    pub runs: BTreeMap<String, BTreeMap<String, CompactedRows>>,
}

impl Commit {
    /// For new rows of the plan's sources, with the files that are replaced.
    pub fn new(table: &str, plan: &TablePlan, replaced: &[BTreeSet<PartFile>]) -> Self {
        let mut commit = Self {
            table: table.to_owned(),
            ..Self::default()
        };
        for (source, replaced) in plan.sources.iter().zip(replaced) {
            let place = (source.host.clone(), source.run.clone());
            commit.of(plan, &place).replaced.extend(replaced);
        }
        commit
    }

    fn of(&mut self, plan: &TablePlan, place: &RowPlace) -> &mut CompactedRows {
        let (host, run) = place;
        let hosts = self.runs.entry(run.clone()).or_default();
        let known = || plan.runs.get(place).cloned().unwrap_or_default();
        hosts.entry(host.clone()).or_insert_with(known)
    }

    /// Adds the files of a day.
    pub fn add(&mut self, plan: &TablePlan, day: &Day, written: &Written) {
        for file in &day.files {
            for place in &file.live {
                self.of(plan, place).files.remove(&file.name);
            }
            self.removed.insert(file.name.clone());
        }
        for (file, places) in &written.files {
            for place in places {
                self.of(plan, place).files.insert(file.name());
            }
            self.files.insert(file.clone());
        }
        for (place, new) in &written.parts {
            self.of(plan, place).original_rows += new.rows;
            self.of(plan, place).rows += new.rows;
        }
        let read = written.parts.keys().chain(written.stored.keys());
        for place in read.collect::<BTreeSet<_>>() {
            let count = |sums: &Checksums| sums.get(place).map_or(0, |sum| sum.rows);
            let before = count(&written.parts) + count(&written.stored);
            let rows = self.of(plan, place);
            rows.rows = (rows.rows + count(&written.after)).saturating_sub(before);
        }
    }

    /// Reads the file; `None` if no compaction was interrupted after its commit.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read(compacted: &Directory) -> io::Result<Option<Self>> {
        let mut text = Vec::new();
        match compacted.read(FILE) {
            Ok(mut file) => file.read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let message = format!("{DIRECTORY}/{FILE}: {error}");
                return Err(io::Error::new(error.kind(), message));
            }
        };
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Writes the file.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn store(&self, compacted: &Directory) -> io::Result<()> {
        compacted.replace(FILE, WRITER, &serde_json::to_vec(self)?)
    }

    /// Does everything that is left to do, and removes the file.
    ///
    /// # Errors
    ///
    /// When a file cannot be written. The next compaction continues.
    pub fn complete(
        &self,
        out: &Directory,
        compacted: &Directory,
        schema: &DatasetSchema,
        after: AfterStep<'_>,
    ) -> io::Result<()> {
        let table = compacted.make(&self.table)?;
        for file in &self.files {
            let directory = table.sub(&file.day)?;
            let (from, to) = (temporary(file.number), parquet_file::name(file.number));
            if directory.has(&from)? {
                directory.rename(&from, &to)?;
                directory.sync()?;
            }
            after(Step::FileNamed)?;
        }
        let mut runs = Vec::new();
        for (name, hosts) in &self.runs {
            // It was removed in the meantime: `--max-age`.
            if !out.has(name)? {
                continue;
            }
            let run = out.sub(name)?;
            self.switch(&run, name, hosts)?;
            after(Step::RunSwitched)?;
            views::refresh(&run, WRITER, schema)?;
            after(Step::ViewsWritten)?;
            runs.push((run, name, hosts));
        }
        for (run, name, hosts) in runs {
            for (host, rows) in hosts {
                remove(&run, &self.table, host, rows, after)?;
            }
            self.switch(&run, name, &without_replaced(hosts))?;
            after(Step::RunFinished)?;
        }
        for file in &self.removed {
            let (day, name) = day_and_name(file)?;
            let day = table.sub(day)?;
            day.remove(name)?;
            day.sync()?;
            after(Step::OldFileRemoved)?;
        }
        compacted.remove(FILE)?;
        compacted.sync()?;
        after(Step::Forgotten)
    }

    fn switch(
        &self,
        run: &Directory,
        name: &str,
        hosts: &BTreeMap<String, CompactedRows>,
    ) -> io::Result<()> {
        let mut compacted = CompactedRun::read(run)?.unwrap_or_default();
        name.clone_into(&mut compacted.run_id);
        let table = compacted.tables.entry(self.table.clone()).or_default();
        table.extend(
            hosts
                .iter()
                .map(|(host, rows)| (host.clone(), rows.clone())),
        );
        compacted.write(run)
    }
}

fn without_replaced(hosts: &BTreeMap<String, CompactedRows>) -> BTreeMap<String, CompactedRows> {
    let clear = |rows: &CompactedRows| CompactedRows {
        replaced: BTreeSet::new(),
        ..rows.clone()
    };
    let hosts = hosts.iter();
    hosts
        .map(|(host, rows)| (host.clone(), clear(rows)))
        .collect()
}

/// Removes replaced files, and the directories if they are empty.
fn remove(
    run: &Directory,
    table: &str,
    host: &str,
    rows: &CompactedRows,
    after: AfterStep<'_>,
) -> io::Result<()> {
    let Ok(of_table) = run.sub(table) else {
        return Ok(());
    };
    let of_host = host_directory(host);
    let Ok(directory) = of_table.sub(&of_host) else {
        return Ok(());
    };
    for part in &rows.replaced {
        if part.is_in(&directory)? {
            directory.remove(&parquet_file::name(part.number))?;
            after(Step::PartRemoved)?;
        }
    }
    directory.sync()?;
    // They are not empty if the run is continued.
    let _ = of_table.remove_directory(of_host.as_ref());
    let _ = run.remove_directory(table.as_ref());
    Ok(())
}
