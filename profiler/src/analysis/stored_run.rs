//! A run on disk: manifests and tables of its hosts, complete or not. Nothing in it is trusted.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use parquet::{
    arrow::ProjectionMask,
    file::{
        metadata::{ParquetMetaData, RowGroupMetaData},
        statistics::Statistics,
    },
};

use super::{
    filled::{self, Facts, FilledRows, GapFinder, PERIOD_US},
    rows::{self, processes, times},
};

use crate::{
    failure::os_error::without_code,
    output::dataset::{
        Manifest,
        compacted::{self, CompactedRows, CompactedRun, Filter},
        files::{Directory, host_directory},
        foreign_file::Trust,
        journal,
        journal_reader::JournalReader,
        keyed::{self, KeyedRows},
        listing::Listing,
        manifest::{self, State},
        parquet_file,
        parquet_reader::ParquetReader,
        sparse,
    },
    sources::dataset_schema,
};

/// A run.
pub struct StoredRun {
    /// Its directory as the user named it.
    pub path: PathBuf,
    /// Its hosts, by name.
    pub hosts: Arc<[StoredHost]>,
    /// Files that could not be read.
    pub problems: Vec<String>,
    directory: Arc<Directory>,
    /// Rows in compacted files.
    compacted: Arc<CompactedRun>,
    /// Rows that are read of tables with samples: those after the first time until the second.
    times: Option<(i64, i64)>,
}

/// A host of a run.
#[derive(Default)]
pub struct StoredHost {
    pub name: String,
    /// Content of its `run.json`.
    pub manifest: Option<Manifest>,
    /// Tables with a directory of this host.
    pub tables: BTreeSet<String>,
}

impl StoredRun {
    /// Opens a run.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read, or is not one of a run.
    pub fn open(path: &Path, trust: Trust) -> io::Result<Self> {
        let directory = Directory::open(path, None)?.trusting(trust);
        let listing = Listing::read(&directory)?;
        let mut hosts: BTreeMap<String, StoredHost> = BTreeMap::new();
        for (name, manifest) in listing.manifests {
            hosts.entry(name).or_default().manifest = Some(manifest);
        }
        for (table, name) in listing.directories {
            hosts.entry(name).or_default().tables.insert(table);
        }
        let named = hosts.into_iter();
        Ok(Self {
            path: path.to_owned(),
            hosts: named
                .map(|(name, host)| StoredHost { name, ..host })
                .collect(),
            problems: listing.problems,
            directory: Arc::new(directory),
            compacted: Arc::new(listing.compacted.unwrap_or_default()),
            times: None,
        })
    }

    /// The run with the samples after one time until another, µs since 1970-01-01 UTC. Tables with a row
    /// per process or region remain whole.
    #[must_use]
    pub fn between(&self, from: i64, to: i64) -> Self {
        Self {
            path: self.path.clone(),
            hosts: Arc::clone(&self.hosts),
            problems: Vec::new(),
            directory: Arc::clone(&self.directory),
            compacted: Arc::clone(&self.compacted),
            times: Some((from, to)),
        }
    }

    /// Problems because of which rows are missing: all but those of `run.json`.
    pub fn missing_rows(&self) -> impl Iterator<Item = &String> {
        self.problems.iter().filter(|problem| {
            let file = problem.split(": ").next();
            !file.is_some_and(manifest::is_manifest)
        })
    }

    /// Times of the first and the last row of a table, µs since 1970-01-01 UTC.
    pub fn span(&self, table: &str, host: &StoredHost) -> Option<(i64, i64)> {
        let mut span: Option<(i64, i64)> = None;
        // What cannot be read is reported by those who read the rows.
        let _ = self.read(table, host, &["ts"], |batch| {
            for ts in times(batch, "ts").into_iter().flatten() {
                let (first, last) = span.unwrap_or((ts, ts));
                span = Some((first.min(ts), last.max(ts)));
            }
        });
        span
    }

    /// Name of the run.
    pub fn id(&self) -> String {
        let named = self.manifests().map(|manifest| manifest.run_id.clone());
        let mut named = named.filter(|id| !id.is_empty());
        named.next().unwrap_or_else(|| {
            let name = self.path.file_name().unwrap_or(self.path.as_os_str());
            name.to_string_lossy().into_owned()
        })
    }

    /// Manifests of all hosts.
    pub fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.hosts.iter().filter_map(|host| host.manifest.as_ref())
    }

    /// Whether its data are incomplete because it is running or was killed.
    pub fn is_unfinished(&self) -> bool {
        self.manifests()
            .any(|manifest| manifest.state == State::Running)
    }

    /// Whether its command failed or rows are lost.
    pub fn has_failed(&self) -> bool {
        self.manifests().any(|manifest| {
            let is_lost = manifest.state == State::Incomplete;
            is_lost || manifest.exit_code.is_some_and(|code| code != 0)
        })
    }

    /// Start of the first session and end of the last, ns since 1970-01-01 UTC.
    pub fn start_and_end(&self) -> (Option<i64>, Option<i64>) {
        let sessions = || self.manifests().flat_map(Manifest::sessions);
        let start = sessions().map(|session| session.start_ts).min();
        (start, sessions().filter_map(|session| session.end_ts).max())
    }

    /// Passes the rows of a host in a table on, those of Parquet files first, with those that were
    /// [left out](crate::schema::Table::sparse). Columns that the files do not have are missing in the
    /// batches.
    ///
    /// # Errors
    ///
    /// The files that cannot be read, with the reason; the rows of the others have been passed on.
    pub fn read(
        &self,
        table: &str,
        host: &StoredHost,
        columns: &[&str],
        mut rows: impl FnMut(&RecordBatch),
    ) -> Result<(), Vec<String>> {
        let declared = dataset_schema().table(table);
        let is_keyed = declared.is_some_and(|table| table.keyed);
        let times = self.times.filter(|_| !is_keyed);
        let columns = [columns, times.map_or(&[], |_| &["ts"])].concat();
        let mut rows = |batch: &RecordBatch| match times {
            Some(times) => rows(&within(batch, times)),
            None => rows(batch),
        };
        let Some(sparse) = declared.and_then(|table| table.sparse) else {
            return self.read_stored(table, host, &columns, times, rows);
        };
        // The last rows of processes that sleep.
        let times = times.map(|(from, to)| (from.saturating_sub(PERIOD_US), to));
        let columns = [&columns, &filled::COLUMNS[..]].concat();
        let mut filled = FilledRows::new(sparse, || self.facts(table, host, times));
        let mut failed = None;
        let mut read = self.read_stored(table, host, &columns, times, |batch| {
            let pushed = filled.push(batch, &mut rows);
            failed = failed.take().or(pushed.err());
        });
        let finished = filled.finish(&mut rows);
        if let Some(error) = failed.or(finished.err()) {
            let failure = format!("{table}/{}: {error}", host_directory(&host.name));
            read = Err([read.err().unwrap_or_default(), vec![failure]].concat());
        }
        read
    }

    /// What is needed to add the rows of sleeping processes to those of a table at these times.
    fn facts(&self, table: &str, host: &StoredHost, times: Option<(i64, i64)>) -> Facts {
        // The next rows tell whether there are rows that were left out.
        let span = times.map(|(from, to)| (from, to.saturating_add(PERIOD_US)));
        let mut samples = Vec::new();
        let mut of_samples = dataset_schema().tables().filter(|table| table.every_tick);
        let of_samples = of_samples.find(|table| host.tables.contains(table.name));
        let of_samples = of_samples.map_or(table, |table| table.name);
        // What cannot be read is reported by those who read the rows.
        let _ = self.read_stored(of_samples, host, &["ts"], span, |batch| {
            let all = rows::times(batch, "ts").into_iter().flatten();
            let is_within = |ts: &i64| span.is_none_or(|(from, to)| *ts > from && *ts <= to);
            samples.extend(all.filter(is_within));
        });
        samples.sort_unstable();
        samples.dedup();
        let mut ends = HashMap::new();
        let columns = ["pid", "start_ts", "end_ts"];
        let _ = self.read_stored("process", host, &columns, None, |batch| {
            let rows = processes(batch)
                .into_iter()
                .zip(rows::times(batch, "end_ts"));
            ends.extend(rows.filter_map(|(process, end)| Some((process?, end?))));
        });
        let sessions = host.manifest.iter().flat_map(Manifest::sessions);
        let mut starts: Vec<i64> = sessions.map(|session| session.start_ts / 1000).collect();
        starts.sort_unstable();
        let mut gaps = GapFinder::new(samples, ends, starts);
        let _ = self.read_stored(table, host, &filled::COLUMNS, span, |batch| {
            gaps.push(batch);
        });
        gaps.finish(times.map_or(i64::MAX, |(_, to)| to))
    }

    /// The stored rows of these times; of Parquet files, whole row groups.
    fn read_stored(
        &self,
        table: &str,
        host: &StoredHost,
        columns: &[&str],
        times: Option<(i64, i64)>,
        mut rows: impl FnMut(&RecordBatch),
    ) -> Result<(), Vec<String>> {
        if !host.tables.contains(table) {
            return Ok(());
        }
        let place = format!("{table}/{}", host_directory(&host.name));
        let compacted = self.compacted.of(table, &host.name);
        let mut failures = Vec::new();
        if let Some(compacted) = compacted {
            let filter = Filter {
                run: &self.compacted.run_id,
                host: &host.name,
                table,
                columns: Some(columns),
                times,
            };
            let read = read_compacted(&self.directory, compacted, filter, &mut rows);
            failures.extend(read.err());
        }
        let opened = self.directory.sub(table);
        let opened = opened.and_then(|table| table.sub(host_directory(&host.name)));
        let listed = opened.and_then(|directory| Ok((directory.names()?, directory)));
        let (names, directory) = match listed {
            Ok(listed) => listed,
            // All rows are compacted.
            Err(error) if error.kind() == io::ErrorKind::NotFound && compacted.is_some() => {
                return if failures.is_empty() {
                    Ok(())
                } else {
                    Err(failures)
                };
            }
            Err(error) => {
                failures.push(format!("{place}: {}", without_code(&error.to_string())));
                return Err(failures);
            }
        };
        let numbers = |number: fn(&str) -> Option<u32>| -> BTreeSet<u32> {
            names.iter().filter_map(|name| number(name)).collect()
        };
        let (mut parts, journals) = (numbers(parquet_file::number), numbers(journal::number));
        if let Some(compacted) = compacted {
            let remaining = compacted.remaining(&directory, parts);
            parts = remaining
                .map_err(|error| vec![format!("{place}: {}", without_code(&error.to_string()))])?;
        }
        for &part in &parts {
            let name = parquet_file::name(part);
            let read = read_part(&directory, &name, columns, times, &mut rows);
            failures.extend(read.err().map(|why| format!("{place}/{name}: {why}")));
        }
        let mut open = OpenRows::of(table);
        for &number in journals.difference(&parts) {
            let name = journal::name(number);
            let read = read_journal(&directory, &name, |batch| open.add(batch, &mut rows));
            failures.extend(read.err().map(|why| format!("{place}/{name}: {why}")));
        }
        if !open.is_empty() {
            for &part in &parts {
                let name = parquet_file::name(part);
                // A part that cannot be read has been reported above.
                let _ = read_part(&directory, &name, KEYS, None, |batch| open.remove(batch));
            }
            open.finish(&mut rows);
        }
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }
}

/// Columns of the keys of keyed tables; `region` before version 4 of the schema.
const KEYS: &[&str] = &["pid", "start_ts", "region_id", "region"];

/// Rows of the journals of a keyed table, in which a row replaces earlier ones with the same key.
enum OpenRows {
    /// The table is not keyed.
    Plain,
    Keyed(Option<KeyedRows>),
}

impl OpenRows {
    fn of(table: &str) -> Self {
        match dataset_schema().table(table) {
            Some(table) if table.keyed => Self::Keyed(None),
            _ => Self::Plain,
        }
    }

    fn is_empty(&self) -> bool {
        !matches!(self, Self::Keyed(Some(_)))
    }

    fn add(&mut self, batch: &RecordBatch, rows: &mut impl FnMut(&RecordBatch)) {
        match self {
            Self::Plain => rows(batch),
            Self::Keyed(keyed) => {
                let keyed = keyed.get_or_insert_with(|| KeyedRows::new(batch.schema()));
                // Rows without a key are those of another version.
                let _ = keyed.push(batch.clone());
            }
        }
    }

    /// Removes the rows with keys of `stored`, which are closed.
    fn remove(&mut self, stored: &RecordBatch) {
        if let (Self::Keyed(Some(keyed)), Ok(keys)) = (self, keyed::keys(stored)) {
            let keys: HashSet<_> = keys.into_iter().collect();
            keyed.remove(|key| keys.contains(key));
        }
    }

    fn finish(self, rows: &mut impl FnMut(&RecordBatch)) {
        if let Self::Keyed(Some(keyed)) = self
            && let Ok(Some(batch)) = keyed.all()
        {
            rows(&batch);
        }
    }
}

/// Passes the rows in compacted files on, in the order of `ts`.
fn read_compacted(
    run: &Directory,
    compacted: &CompactedRows,
    filter: Filter<'_>,
    rows: &mut impl FnMut(&RecordBatch),
) -> Result<(), String> {
    let table = dataset_schema().table(filter.table);
    // Without processes, the rows of a host are in the order of `ts`.
    let has_processes = table.is_none_or(|table| table.columns().any(|of| of.name == "pid"));
    if has_processes {
        let read = compacted::read_by_time(run, &compacted.files, compacted.rows, filter, rows);
        return read.map_err(|error| format!("{}: {error}", filter.table));
    }
    for file in &compacted.files {
        compacted::for_each_batch(run, file, filter, |batch| rows(&batch))
            .map_err(|error| format!("{}: {error}", compacted::place(filter.table, file)))?;
    }
    Ok(())
}

fn read_part(
    directory: &Directory,
    name: &str,
    columns: &[&str],
    times: Option<(i64, i64)>,
    mut rows: impl FnMut(&RecordBatch),
) -> Result<(), String> {
    let first_line = |error: &dyn std::fmt::Display| {
        let text = error.to_string();
        let text = without_code(&text);
        text.lines().next().unwrap_or_default().to_owned()
    };
    // The decoder can panic on damaged data.
    let read = catch_unwind(AssertUnwindSafe(|| {
        let reader = ParquetReader::open(directory, name).map_err(|e| first_line(&e))?;
        let present = reader.schema().fields().iter().map(|field| field.name());
        let present = present.filter(|name| columns.contains(&name.as_str()));
        let present: Vec<&str> = present.map(String::as_str).collect();
        let mask = ProjectionMask::columns(reader.parquet_schema(), present);
        let groups = times.map(|times| groups_within(reader.metadata(), times));
        let reader = match groups {
            Some(groups) => reader.with_row_groups(groups),
            None => reader,
        };
        let schema = reader.schema().clone();
        let batches = reader.with_projection(mask).build();
        for batch in batches.map_err(|error| first_line(&error))? {
            let batch = batch.map_err(|error| first_line(&error))?;
            rows(&sparse::of_file(batch, &schema));
        }
        Ok(())
    }));
    read.map_err(|_| "damaged".to_owned())?
}

/// Row groups that can have rows of these times, by their statistics.
fn groups_within(metadata: &ParquetMetaData, (from, to): (i64, i64)) -> Vec<usize> {
    let groups = metadata.row_groups().iter().enumerate();
    let has_rows = |group: &RowGroupMetaData| {
        let column = group
            .columns()
            .iter()
            .find(|column| column.column_path().string() == "ts");
        match column.and_then(|column| column.statistics()) {
            Some(Statistics::Int64(ts)) => {
                ts.min_opt().is_none_or(|first| *first <= to)
                    && ts.max_opt().is_none_or(|last| *last > from)
            }
            _ => true,
        }
    };
    groups
        .filter(|(_, group)| has_rows(group))
        .map(|(index, _)| index)
        .collect()
}

/// The rows of these times, if the batch has times.
fn within(batch: &RecordBatch, (from, to): (i64, i64)) -> RecordBatch {
    if batch.column_by_name("ts").is_none() {
        return batch.clone();
    }
    let times = times(batch, "ts").into_iter();
    let is_within: BooleanArray = times
        .map(|ts| Some(ts.is_some_and(|ts| ts > from && ts <= to)))
        .collect();
    // Both have the same length.
    filter_record_batch(batch, &is_within).unwrap_or_else(|_| batch.slice(0, 0))
}

/// A journal that is being written ends anywhere.
fn read_journal(
    directory: &Directory,
    name: &str,
    mut rows: impl FnMut(&RecordBatch),
) -> Result<(), String> {
    let mut read = || -> io::Result<()> {
        let file = directory.read(name)?;
        let limits = directory.trust().limits(&file)?;
        let mut journal = JournalReader::of(file, limits)?;
        while let Some(batches) = journal.next_step()? {
            batches.iter().for_each(&mut rows);
        }
        Ok(())
    };
    read().map_err(|error| without_code(&error.to_string()).into_owned())
}
