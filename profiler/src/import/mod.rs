//! Files of other programs as runs, for comparisons and reports.

pub mod flowcept;
pub mod perfmon;
pub mod perfpy;
mod quantity;

use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, AsArray as _, RecordBatch, StringDictionaryBuilder},
    datatypes::{DataType, Field, Int32Type, Int64Type, Schema, TimestampMicrosecondType},
    json::ReaderBuilder,
};
use serde_json::{Map, Value};

use crate::{
    failure::{Failure, Reason, os_error::of_temporary},
    output::dataset::{DatasetOptions, DatasetWriter, Manifest, metadata::nullable},
    schema::{Batch, Table},
    sources::dataset_schema,
    support::{
        labels::Labels,
        regular_file::{self, Links},
    },
    warning,
};

/// Limit of the size of a file: its content is held in memory.
const MAX_BYTES: u64 = 4 << 30;
/// Rows of a batch.
const ROWS: usize = 65_536;

/// A row: values of columns; those that are not there are null.
pub type Row = Map<String, Value>;

/// The rows of a host, by table.
#[derive(Default)]
pub struct Host {
    pub tables: BTreeMap<&'static str, Vec<Row>>,
    /// Start and end of what is known, µs since 1970-01-01 UTC.
    pub span: Option<(i64, i64)>,
    /// Start of processes whose start is unknown, µs since 1970-01-01 UTC.
    pub first: i64,
    /// Facts of the run.
    pub manifest: Manifest,
}

impl Host {
    /// Adds a row at this time, µs since 1970-01-01 UTC.
    pub fn add(&mut self, table: &'static str, ts: i64, interval: Option<i64>, mut row: Row) {
        row.insert("ts".to_owned(), ts.into());
        if let Some(interval) = interval {
            row.insert("interval_ns".to_owned(), (interval * 1000).into());
        }
        self.tables.entry(table).or_default().push(row);
        self.includes(ts - interval.unwrap_or(0), ts);
    }

    /// Widens the time of the run.
    pub fn includes(&mut self, start: i64, end: i64) {
        let (first, last) = self.span.unwrap_or((start, end));
        self.span = Some((first.min(start), last.max(end)));
    }
}

/// Hosts by name.
pub type Hosts = BTreeMap<String, Host>;

/// The format that was imported, and what the user says about it.
pub struct Origin<'a> {
    /// Name of the program.
    pub program: &'static str,
    pub file: &'a Path,
    pub labels: &'a Labels,
}

/// A failure because of a file's content.
pub fn invalid(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(Reason::Target, format!("{}: {why}", path.display()))
}

/// Reads a file, which is a regular one of limited size.
pub fn read(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| {
        let message = format!("cannot read {}: {error}", path.display());
        Failure::new(Reason::Target, message)
    };
    let file = regular_file::open(path, Links::Followed).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(invalid(path, "larger than 4 GiB"));
    }
    String::from_utf8(bytes).map_err(|_| invalid(path, "not UTF-8"))
}

/// Writes a run. Its directory does not exist before, and does not if this fails.
///
/// # Errors
///
/// When the directory exists or cannot be written, or a value does not fit its column.
pub fn write(hosts: Hosts, directory: &Path, origin: &Origin<'_>) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Reason::Output, format!("{}: {error}", directory.display()))
    };
    if directory.symlink_metadata().is_ok() {
        return Err(failed(&"exists; choose another directory with -o"));
    }
    let parent = directory.parent().filter(|path| *path != Path::new(""));
    let temporary = tempfile::Builder::new()
        .prefix(".profiler-import-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .tempdir_in(parent.unwrap_or(Path::new(".")))
        .map_err(|error| failed(&of_temporary(&error)))?;
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    for (hostname, host) in hosts {
        let path = temporary.path().to_owned();
        write_host(&hostname, host, path, &name, origin).map_err(|failure| failed(&failure))?;
    }
    // Complete: it is not removed.
    let path = temporary.keep();
    std::fs::rename(&path, directory).map_err(|error| {
        let _ = std::fs::remove_dir_all(&path);
        failed(&error)
    })
}

fn write_host(
    hostname: &str,
    host: Host,
    path: PathBuf,
    run_id: &str,
    origin: &Origin<'_>,
) -> Result<(), Failure> {
    let Some((start, end)) = host.span else {
        return Ok(());
    };
    let mut manifest = Manifest::new(run_id, hostname, start * 1000).map_err(Failure::internal)?;
    let known = host.manifest;
    manifest.target = known.target;
    manifest.user = known.user;
    manifest.uid = known.uid;
    manifest.kernel = known.kernel;
    manifest.exit_code = known.exit_code;
    manifest.losses = known.losses;
    manifest.labels = known.labels;
    manifest.labels.0.extend(origin.labels.0.clone());
    manifest.config = serde_json::json!({"imported": {
        "from": origin.program, "file": origin.file, "config": known.config,
    }});
    manifest.set_end(end * 1000);
    let mut options = DatasetOptions::new(path, hostname, run_id);
    options.manifest = Some(manifest);
    options.schema = dataset_schema();
    options.all_nullable = true;
    // A file for each table.
    options.checkpoint = std::time::Duration::from_secs(86_400);
    // The rows are in memory anyway.
    options.memory_budget = usize::MAX;
    let writer = DatasetWriter::start(options).map_err(Failure::internal)?;
    // As one sample.
    writer.write(batches(host.tables)?);
    let summary = writer
        .finish()
        .map_err(|error| Failure::new(Reason::Output, error.to_string()))?;
    match summary.last_error {
        Some(error) if !summary.is_complete() => Err(Failure::new(Reason::Output, error)),
        Some(error) => {
            warning!("profiler: output: {error}");
            Ok(())
        }
        None => Ok(()),
    }
}

/// Rows with the types of their tables.
///
/// # Errors
///
/// When a table has no such column, or a value does not fit its column.
pub fn batches(tables: BTreeMap<&'static str, Vec<Row>>) -> Result<Vec<Batch>, Failure> {
    let mut batches = Vec::new();
    for (name, mut rows) in tables {
        let table = dataset_schema()
            .table(name)
            .ok_or_else(|| Failure::internal(format!("no table {name}")))?;
        rows.sort_by_key(|row| row["ts"].as_i64());
        remove_excess(table, &mut rows);
        for rows in rows.chunks(ROWS) {
            batches.push(batch(table, rows)?);
        }
    }
    Ok(batches)
}

/// Removes numbers that are too large for their columns.
fn remove_excess(table: &'static Table, rows: &mut [Row]) {
    let limits = table.columns().filter_map(|column| {
        let limit = match (column.data_type)() {
            DataType::UInt8 => u64::from(u8::MAX),
            DataType::UInt16 => u64::from(u16::MAX),
            DataType::UInt32 => u64::from(u32::MAX),
            DataType::Int32 => u64::from(i32::MAX.unsigned_abs()),
            _ => return None,
        };
        Some((column.name, limit))
    });
    for (column, limit) in limits {
        for row in &mut *rows {
            if row
                .get(column)
                .and_then(Value::as_u64)
                .is_some_and(|value| value > limit)
            {
                row.remove(column);
            }
        }
    }
}

/// Rows with the types of a table.
fn batch(table: &'static Table, rows: &[Row]) -> Result<Batch, Failure> {
    let schema = nullable(table);
    let fields = schema.fields().iter();
    let fields = fields.map(|field| Field::new(field.name(), json_type(field.data_type()), true));
    let failed = |error| Failure::internal(format!("table {}: {error}", table.name));
    let mut decoder = ReaderBuilder::new(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
        .with_batch_size(rows.len())
        .with_strict_mode(true)
        .build_decoder()
        .map_err(failed)?;
    decoder.serialize(rows).map_err(failed)?;
    let read = decoder.flush().map_err(failed)?;
    let read = read.ok_or_else(|| Failure::internal("no rows"))?;
    let columns = schema.fields().iter().zip(read.columns());
    let columns = columns.map(|(field, column)| from_json(column, field.data_type()));
    let rows = RecordBatch::try_new(Arc::clone(&schema), columns.collect()).map_err(failed)?;
    Ok(Batch { table, rows })
}

/// The type that the reader of JSON knows for a column: it has no labels, and no time zones by name.
fn json_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(..) => DataType::Utf8,
        DataType::Timestamp(..) => DataType::Int64,
        other => other.clone(),
    }
}

fn from_json(column: &ArrayRef, data_type: &DataType) -> ArrayRef {
    match data_type {
        DataType::Dictionary(..) => {
            let mut labels = StringDictionaryBuilder::<Int32Type>::new();
            for text in column.as_string::<i32>() {
                labels.append_option(text);
            }
            Arc::new(labels.finish())
        }
        DataType::Timestamp(..) => {
            let times = column.as_primitive::<Int64Type>();
            let times = times.reinterpret_cast::<TimestampMicrosecondType>();
            Arc::new(times.with_data_type(data_type.clone()))
        }
        _ => Arc::clone(column),
    }
}

/// µs since 1970-01-01 UTC.
pub fn micros(seconds: f64) -> Option<i64> {
    // Until the year 2286.
    let is_time = (0.0..1e10).contains(&seconds);
    #[expect(clippy::cast_possible_truncation, reason = "in range")]
    is_time.then_some((seconds * 1e6).round() as i64)
}
