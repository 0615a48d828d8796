//! `run.json` before and after a recovery.

use std::io;

use super::Hosts;
use crate::output::dataset::{
    compacted::CompactedRun,
    files::{self, Directory},
    manifest::{self, Manifest, State, saturating_sum},
    parquet_file,
    parquet_reader::ParquetReader,
    run_table,
};
use crate::schema::run::RUN;

/// The manifests of these hosts in a run, with the names of their files.
pub fn manifests(run: &Directory, hosts: Hosts<'_>) -> Vec<(String, Manifest)> {
    let names = match hosts {
        Hosts::All => run.names().unwrap_or_default(),
        // A run can have the files of thousands of hosts.
        Hosts::Only(host) => vec![manifest::FILE.to_owned(), format!("run.{host}.json")],
    };
    names
        .into_iter()
        .filter(|name| manifest::is_manifest(name))
        .filter_map(|name| {
            let manifest = Manifest::read(run, &name).ok()?;
            Some((name, manifest))
        })
        .filter(|(_, manifest)| hosts.include(&manifest.hostname))
        // The name becomes a part of paths.
        .filter(|(_, manifest)| files::is_plain_name(&manifest.hostname))
        .collect()
}

/// Brings `run.json` up to date after a recovery. Returns the files that cannot be read.
pub fn update_manifest(
    run: &Directory,
    file: &str,
    mut manifest: Manifest,
    any_rows: bool,
    complete: bool,
) -> io::Result<Vec<String>> {
    let before = manifest.clone();
    let mut unreadable = Vec::new();
    let unfinished =
        |session: &Manifest| matches!(session.state, State::Running | State::Incomplete);
    if !manifest.sessions().any(unfinished) && !any_rows {
        return Ok(unreadable);
    }
    let compacted = CompactedRun::read(run)?.unwrap_or_default();
    for table in run.names()? {
        if table == RUN.name {
            continue;
        }
        let directory = run
            .sub(&table)
            .and_then(|table| table.sub(files::host_directory(&manifest.hostname)));
        let Ok(directory) = directory else {
            continue;
        };
        let (mut parts, mut rows) = count(&directory, &mut unreadable)?;
        let earlier: Vec<_> = manifest
            .earlier
            .iter()
            .filter_map(|session| session.tables.get(&table))
            .copied()
            .collect();
        if let Some(compacted) = compacted.of(&table, &manifest.hostname) {
            // The files of earlier sessions, which are removed.
            rows = rows.saturating_add(compacted.original_rows);
            parts = parts.saturating_add(saturating_sum(earlier.iter().map(|table| table.parts)));
        }
        if parts > 0 || manifest.tables.contains_key(&table) {
            let entry = manifest.tables.entry(table).or_default();
            entry.parts =
                parts.saturating_sub(saturating_sum(earlier.iter().map(|table| table.parts)));
            entry.rows =
                rows.saturating_sub(saturating_sum(earlier.iter().map(|table| table.rows)));
        }
    }
    for session in manifest
        .earlier
        .iter_mut()
        .filter(|session| session.has_journals())
    {
        session.settle(complete);
    }
    manifest.settle(complete);
    if manifest != before {
        manifest.write(run, file)?;
        run_table::write(run, &manifest)?;
    }
    Ok(unreadable)
}

/// Number of Parquet files in a directory, and of rows in those that can be read.
fn count(directory: &Directory, unreadable: &mut Vec<String>) -> io::Result<(u64, u64)> {
    let mut counts = (0, 0);
    for name in directory.names()? {
        if parquet_file::number(&name).is_none() {
            continue;
        }
        counts.0 += 1;
        match parquet_file::decode(|| ParquetReader::open(directory, &name)) {
            Ok(reader) => {
                let rows = reader.metadata().file_metadata().num_rows();
                counts.1 += u64::try_from(rows).unwrap_or(0);
            }
            Err(error) => {
                let path = directory.path().join(&name);
                unreadable.push(format!("{}: {error}", path.display()));
            }
        }
    }
    Ok(counts)
}
