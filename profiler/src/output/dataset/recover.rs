//! Recovery: journals that a killed profiler has left behind become parts.
//!
//! Every step can be interrupted and repeated: a journal is removed only when a part holds its rows, and a journal
//! whose part exists is known to be stale.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Path, PathBuf},
};

use arrow::{datatypes::SchemaRef, error::ArrowError};
use parquet::{
    arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReaderBuilder},
    file::reader::{FileReader as _, SerializedFileReader},
};
use thiserror::Error;

use super::{
    files::{self, Directory, Owner},
    journal,
    keyed::{self, Key, KeyedRows},
    manifest::{self, Manifest, State},
    part,
    rows::Rows,
    stream::{End, Stream},
    views,
};
use crate::commands::verify::total;

/// A profiler on another machine that has written nothing for this long (s), and for three intervals, is gone. Clients of
/// file servers keep what is written for half a minute.
const UNCHANGED: u64 = 120;

/// Whose journals are recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts<'a> {
    /// Those of one host.
    Only(&'a str),
    /// Those of every host; right only when none of them still writes.
    All,
}

impl Hosts<'_> {
    fn include(self, hostname: &str) -> bool {
        match self {
            Self::Only(only) => only == hostname,
            Self::All => true,
        }
    }
}

/// Why a run could not be recovered.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// Its profiler still writes.
    #[error("{} is still being written by process {pid}", path.display())]
    Running {
        /// The run directory.
        path: PathBuf,
        /// The profiler.
        pid: i32,
    },
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path in question.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What became of one journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its rows are in a part.
    Part {
        /// The part.
        path: PathBuf,
        /// Rows in it.
        rows: u64,
    },
    /// A part already had its rows.
    Stale,
    /// It held no whole batch.
    Empty,
    /// Somebody is writing it.
    InUse,
    /// It could not be read to its end; what could not be read is kept aside.
    Corrupt {
        /// Where the journal is now.
        path: PathBuf,
        /// Rows before the damage, which are in a part.
        rows: u64,
        /// What is wrong with it.
        error: String,
    },
    /// It could not be stored; the journal is still there.
    Failed {
        /// Why.
        error: String,
    },
}

impl Outcome {
    /// Whether a part has all that there was.
    fn is_whole(&self) -> bool {
        matches!(self, Self::Part { .. } | Self::Stale | Self::Empty)
    }
}

/// What was found in a run and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Every journal in the order in which it was dealt with.
    pub journals: Vec<(PathBuf, Outcome)>,
    /// Rows recovered, per table.
    pub rows: BTreeMap<String, u64>,
    /// What else went wrong.
    pub errors: Vec<String>,
}

impl Report {
    /// Whether everything that the journals held is in parts now.
    pub fn is_complete(&self) -> bool {
        self.errors.is_empty() && self.journals.iter().all(|(_, outcome)| outcome.is_whole())
    }

    /// The same for the journals of one host.
    fn has_all_of(&self, host: &str) -> bool {
        let directory = files::host_directory(host);
        let is_of_host = |path: &Path| path.parent().is_some_and(|of| of.ends_with(&directory));
        let mut journals = self.journals.iter().filter(|(path, _)| is_of_host(path));
        journals.all(|(_, outcome)| outcome.is_whole())
    }
}

/// Recovers all [`orphans`] in `out_dir`. What happens to a single run is in its own result.
pub fn recover_orphans(
    out_dir: &Path,
    hostname: &str,
    owner: Owner,
) -> Vec<(PathBuf, Result<Report, RecoverError>)> {
    let names = orphans(out_dir, hostname, owner);
    let reports = names.into_iter().filter_map(|name| {
        let path = out_dir.join(name);
        let report = recover_orphan(&path, hostname, owner)?;
        Some((path, report))
    });
    reports.collect()
}

/// Names of the runs in `out_dir` whose profiler on this host, `hostname`, is gone and has left journals. A directory that is
/// missing or cannot be read has none.
pub fn orphans(out_dir: &Path, hostname: &str, owner: Owner) -> Vec<String> {
    let names = Directory::open(out_dir, None).and_then(|out| out.names());
    let mut names = names.unwrap_or_default();
    names.retain(|name| is_orphan(&out_dir.join(name), hostname, owner));
    names
}

/// A run that belongs neither to this user nor to `owner` is left alone: who made it decides what it holds.
fn is_orphan(run_dir: &Path, hostname: &str, owner: Owner) -> bool {
    let Ok(run) = Directory::open_run(run_dir, None) else {
        return false;
    };
    let ours = rustix::process::geteuid().as_raw();
    let is_ours = run
        .owned_by()
        .is_ok_and(|(uid, _)| uid == ours || owner.is_some_and(|(owner, _)| owner == uid));
    is_ours
        && manifests(&run, Hosts::Only(hostname))
            .iter()
            .any(|(_, manifest)| {
                manifest.hostname == hostname
                    && manifest.has_journals()
                    && !manifest.process.is_alive()
            })
}

/// Recovers one run, if it is an orphan.
pub fn recover_orphan(
    run_dir: &Path,
    hostname: &str,
    owner: Owner,
) -> Option<Result<Report, RecoverError>> {
    is_orphan(run_dir, hostname, owner).then(|| recover(run_dir, Hosts::Only(hostname)))
}

/// Turns the journals of a run into parts. Can be repeated.
///
/// # Errors
///
/// When the run is still being written or cannot be read. What happens to a single journal is in the report.
pub fn recover(run_dir: &Path, hosts: Hosts<'_>) -> Result<Report, RecoverError> {
    let io_error = |source| RecoverError::Io {
        path: run_dir.to_owned(),
        source,
    };
    let run = Directory::open_run(run_dir, None).map_err(io_error)?;
    let run = run.for_its_owner().map_err(io_error)?;
    let mut report = Report::default();
    let mut at_work = HashSet::new();
    let mut unread = HashSet::new();
    let all = manifests(&run, hosts);
    for (file, manifest) in &all {
        if manifest.state != State::Running {
            continue;
        }
        if manifest.process.is_alive() {
            if all.len() == 1 {
                return Err(RecoverError::Running {
                    path: run_dir.to_owned(),
                    pid: manifest.process.pid,
                });
            }
            let pid = manifest.process.pid;
            let error = format!(
                "{} is still being written by process {pid}",
                manifest.hostname
            );
            report.errors.push(error);
        } else if let Some(error) = elsewhere(&run, file, manifest, hosts).map_err(io_error)? {
            report.errors.push(error);
        } else {
            continue;
        }
        at_work.insert(manifest.hostname.clone());
    }
    for table in run.names().map_err(io_error)? {
        // Not a directory: not a table.
        let Ok(table_directory) = run.sub(&table) else {
            continue;
        };
        for name in table_directory.names().map_err(io_error)? {
            if let Some(host) = files::host_of_directory(&name)
                && hosts.include(host)
                && !at_work.contains(host)
                && let Ok(directory) = table_directory.sub(&name)
                && let Err(error) =
                    part::decode(|| recover_directory(&directory, &table, &mut report))
            {
                unread.insert(host.to_owned());
                report
                    .errors
                    .push(format!("{}: {error}", directory.path().display()));
            }
        }
    }
    // Whoever reads that the run is recovered finds all of it.
    let writer = match hosts {
        Hosts::Only(host) => host.to_owned(),
        Hosts::All => format!("recover.{}", std::process::id()),
    };
    if let Err(error) = views::refresh(&run, &writer) {
        report.errors.push(format!("{}: {error}", views::FILE));
    }
    for (file, manifest) in manifests(&run, hosts) {
        let host = &manifest.hostname;
        if at_work.contains(host) {
            continue;
        }
        // What is wrong with another host is not wrong with this one.
        let complete = report.has_all_of(host) && !unread.contains(host);
        let any_rows = !report.rows.is_empty();
        match update_manifest(&run, &file, manifest, any_rows, complete) {
            Ok(unreadable) => report.errors.extend(unreadable),
            Err(error) => report.errors.push(format!("{file}: {error}")),
        }
    }
    Ok(report)
}

/// A profiler on another machine cannot be seen from here, but what it writes can: it is at work as long as something has
/// been written lately, by the clock that the file system has for all. Says so, or nothing.
fn elsewhere(
    run: &Directory,
    file: &str,
    manifest: &Manifest,
    hosts: Hosts<'_>,
) -> io::Result<Option<String>> {
    let host = &manifest.hostname;
    // A process of this machine before it was booted is gone.
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
            // What is gone meanwhile was there a moment ago.
            if let Some(written) = directory.as_ref().ok().and_then(|f| f.modified(&name).ok()) {
                last = last.max(written);
            }
        }
    }
    let ago = run.now()?.saturating_sub(last).max(0).unsigned_abs();
    Ok((ago < timeout).then(|| {
        format!(
            "{host} wrote {ago} s ago: its profiler may be at work on another machine; if it is not, \
             recover again in {} s",
            timeout - ago
        )
    }))
}

/// What the nodes of a run say of it, with the names of the files.
pub(crate) fn manifests(run: &Directory, hosts: Hosts<'_>) -> Vec<(String, Manifest)> {
    let names = match hosts {
        Hosts::All => run.names().unwrap_or_default(),
        // Of many nodes only one's are read.
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
        // It becomes a part of paths.
        .filter(|(_, manifest)| files::is_plain_name(&manifest.hostname))
        .collect()
}

/// Says in `run.json` what is there now.
fn update_manifest(
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
    for table in run.names()? {
        let directory = run
            .sub(&table)
            .and_then(|table| table.sub(files::host_directory(&manifest.hostname)));
        let Ok(directory) = directory else {
            continue;
        };
        let (parts, rows) = count(&directory, &mut unreadable)?;
        let earlier: Vec<_> = manifest
            .earlier
            .iter()
            .filter_map(|session| session.tables.get(&table))
            .copied()
            .collect();
        if parts > 0 || manifest.tables.contains_key(&table) {
            let entry = manifest.tables.entry(table).or_default();
            entry.parts = parts.saturating_sub(total(earlier.iter().map(|table| table.parts)));
            entry.rows = rows.saturating_sub(total(earlier.iter().map(|table| table.rows)));
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
    }
    Ok(unreadable)
}

impl Manifest {
    /// Says what is left to say when journals have been recovered: all of them if `complete`.
    fn settle(&mut self, complete: bool) {
        if complete {
            for table in self.tables.values_mut() {
                table.in_journal = 0;
            }
        }
        let lost = self.tables.values().any(|table| table.dropped > 0);
        self.state = match self.state {
            _ if !complete => State::Incomplete,
            State::Incomplete if lost => State::Incomplete,
            _ => State::Recovered,
        };
    }
}

/// Parts in a directory, and the rows in those that can be read.
fn count(directory: &Directory, unreadable: &mut Vec<String>) -> io::Result<(u64, u64)> {
    let mut counts = (0, 0);
    for name in directory.names()? {
        if part::number(&name).is_none() {
            continue;
        }
        counts.0 += 1;
        let reader = directory
            .read(&name)
            .and_then(|file| part::decode(|| Ok(SerializedFileReader::new(file)?)));
        match reader {
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

/// Recovers what one host has left of one table.
fn recover_directory(directory: &Directory, table: &str, report: &mut Report) -> io::Result<()> {
    let names = directory.names()?;
    let mut journals: Vec<_> = names
        .iter()
        .filter_map(|name| journal::number(name))
        .collect();
    journals.sort_unstable();
    let mut plain = Vec::new();
    let mut of_lifetimes = Vec::new();
    for number in journals {
        let path = directory.path().join(journal::name(number));
        match Stream::open(directory, number) {
            Ok(Some(stream)) if stream.is_of_lifetimes() => of_lifetimes.push((path, stream)),
            Ok(Some(stream)) => plain.push((path, stream)),
            Ok(None) => report.journals.push((path, Outcome::InUse)),
            Err(error) => report.journals.push((
                path,
                Outcome::Failed {
                    error: error.to_string(),
                },
            )),
        }
    }
    if report
        .journals
        .iter()
        .all(|(_, outcome)| *outcome != Outcome::InUse)
    {
        for name in names.iter().filter(|name| files::is_temporary(name)) {
            directory.remove(name)?;
        }
    }
    for (path, stream) in plain {
        let outcome = recover_stream(directory, stream).unwrap_or_else(|error| Outcome::Failed {
            error: error.to_string(),
        });
        if let Outcome::Part { rows, .. } | Outcome::Corrupt { rows, .. } = &outcome {
            *report.rows.entry(table.to_owned()).or_default() += rows;
        }
        report.journals.push((path, outcome));
    }
    if !of_lifetimes.is_empty() {
        let (paths, streams): (Vec<_>, Vec<_>) = of_lifetimes.into_iter().unzip();
        match recover_lifetimes(directory, streams) {
            Ok((outcomes, rows)) => {
                *report.rows.entry(table.to_owned()).or_default() += rows;
                report.journals.extend(paths.into_iter().zip(outcomes));
            }
            Err(error) => {
                let error = error.to_string();
                report.journals.extend(paths.into_iter().map(|path| {
                    let error = error.clone();
                    (path, Outcome::Failed { error })
                }));
            }
        }
    }
    report.rows.retain(|_, rows| *rows > 0);
    Ok(())
}

/// Makes one part of one journal.
fn recover_stream(directory: &Directory, mut stream: Stream) -> io::Result<Outcome> {
    let number = stream.number;
    if directory.has(&part::name(number))? {
        directory.remove(&journal::name(number))?;
        return Ok(Outcome::Stale);
    }
    let mut encoder = None;
    while let Some(batches) = stream.next_step()? {
        let Some(schema) = stream.schema() else {
            break;
        };
        let mut rows = Rows::new(schema.clone());
        for batch in batches {
            rows.push(batch).map_err(invalid)?;
        }
        let rows = rows.take().map_err(invalid)?;
        if rows.is_empty() {
            continue;
        }
        let encoder = match &mut encoder {
            Some(encoder) => encoder,
            none => none.insert(part::Encoder::new(schema)?),
        };
        encoder.encode(&rows)?;
    }
    let mut rows = 0;
    if let Some(encoder) = encoder {
        rows = encoder.rows();
        let bytes = encoder.finish()?;
        directory.write_new(&part::name(number), &bytes)?;
    }
    put_away(
        stream,
        directory,
        directory.path().join(part::name(number)),
        rows,
    )
}

/// Makes one part of all journals of a table of lifetimes; returns an outcome for each and the rows in the part.
fn recover_lifetimes(
    directory: &Directory,
    mut streams: Vec<Stream>,
) -> io::Result<(Vec<Outcome>, u64)> {
    let mut all: Option<(SchemaRef, KeyedRows)> = None;
    let mut batches_of = Vec::new();
    for stream in &mut streams {
        let mut batches = 0;
        while let Some(step) = stream.next_step()? {
            let Some(schema) = stream.schema() else {
                break;
            };
            let (expected, keyed) =
                all.get_or_insert_with(|| (schema.clone(), KeyedRows::new(schema.clone())));
            if *expected != schema {
                return Err(io::Error::other("the journals have different schemas"));
            }
            for batch in step {
                batches += 1;
                keyed.push(batch).map_err(invalid)?;
            }
        }
        batches_of.push(batches);
    }
    let mut number = streams.iter().map(|stream| stream.number).max();
    let mut stored = HashSet::new();
    for name in directory.names()? {
        if let Some(part) = part::number(&name) {
            stored_keys(directory, &name, &mut stored)?;
            number = number.map(|free| free.max(part + 1));
        }
    }
    let mut rows = 0;
    let mut path = PathBuf::new();
    if let (Some((schema, mut keyed)), Some(number)) = (all, number) {
        keyed.remove(|key| stored.contains(key));
        if let Some(batch) = keyed.take(true).map_err(invalid)? {
            let mut sorted = Rows::new(schema.clone());
            sorted.push(batch).map_err(invalid)?;
            let mut encoder = part::Encoder::new(schema)?;
            encoder.encode(&sorted.take().map_err(invalid)?)?;
            rows = encoder.rows();
            path = directory.path().join(part::name(number));
            directory.write_new(&part::name(number), &encoder.finish()?)?;
        }
    }
    let outcomes = streams
        .into_iter()
        .zip(batches_of)
        .map(|(stream, batches)| {
            let outcome = put_away(stream, directory, path.clone(), rows)?;
            Ok(match outcome {
                Outcome::Part { .. } if batches == 0 => Outcome::Empty,
                Outcome::Empty if batches > 0 => Outcome::Stale,
                outcome => outcome,
            })
        })
        .collect::<io::Result<_>>()?;
    Ok((outcomes, rows))
}

/// Adds the lifetimes that a part has.
fn stored_keys(directory: &Directory, part: &str, keys: &mut HashSet<Key>) -> io::Result<()> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(directory.read(part)?)?;
    let columns = ProjectionMask::columns(builder.parquet_schema(), ["pid", "start_ts"]);
    for batch in builder.with_projection(columns).build()? {
        keys.extend(keyed::keys(&batch.map_err(invalid)?).map_err(invalid)?);
    }
    Ok(())
}

/// Removes the journal, whose rows are in the part at `path` now, or keeps aside what could not be read.
fn put_away(
    stream: Stream,
    directory: &Directory,
    path: PathBuf,
    rows: u64,
) -> io::Result<Outcome> {
    let name = journal::name(stream.number);
    if let Some(End::Garbage(error)) = stream.end {
        let mut kept = format!("{name}.corrupt");
        while directory.has(&kept)? {
            kept.push('_');
        }
        directory.rename(&name, &kept)?;
        directory.sync()?;
        return Ok(Outcome::Corrupt {
            path: directory.path().join(kept),
            rows,
            error,
        });
    }
    directory.remove(&name)?;
    Ok(if rows == 0 {
        Outcome::Empty
    } else {
        Outcome::Part { path, rows }
    })
}

fn invalid(error: ArrowError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Directory {
    /// What root creates here shall belong to whoever owns the directory.
    fn for_its_owner(self) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(self);
        }
        let owner = self.owned_by()?;
        Ok(self.owned(Some(owner)))
    }
}
