//! Tests of writing and recovery on a real file system.

mod encoding;
mod recovering;
mod storing;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

use arrow::{
    array::{AsArray as _, RecordBatch},
    compute::{cast, concat_batches},
    datatypes::{DataType, TimestampMicrosecondType, UInt32Type, UInt64Type},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use super::{
    foreign_file::Trust,
    queue::Submission,
    recover::{
        Hosts, JournalOutcome, RecoverError, RecoveryReport, abandoned_runs, recover_abandoned,
    },
    thread::WriterThread,
    *,
};
use crate::{
    columns,
    schema::{
        Batch, Buckets, Column, Label, RUN_COLUMN, Table, TableBuilder, TickKey, Timestamp,
        TypedTable,
    },
};

columns! {
    /// A row with each kind of value that the encodings distinguish.
    pub struct Row {
        count: u64 = Counter("1", "A count"),
        maybe: Option<u64> = Gauge("bytes", "Null when odd"),
        name: Label = Label("", "A name"),
        text: Option<String> = Label("", "A text"),
        buckets: Option<Buckets> = Counter("1", "A histogram"),
    }
}

columns! {
    /// Key of a lifetime.
    pub struct LifeKey {
        pid: u32 = Label("", "Process id"),
        start_ts: Timestamp = Label("us", "Start"),
    }
}

columns! {
    /// Other columns of a lifetime.
    pub struct LifeRow {
        comm: Label = Label("", "Name"),
        end_ts: Option<Timestamp> = Label("us", "End"),
    }
}

static TICKS: TypedTable<TickKey, Row> = TypedTable::new("ticks", "One row per test and tick");
static LIVES: TypedTable<LifeKey, LifeRow> = TypedTable::keyed("lives", "One row per life");

fn tick(tick: i64, rows: u64) -> Vec<Batch> {
    let mut builder = TableBuilder::new(&TICKS);
    for row in 0..rows {
        let key = TickKey {
            ts: Timestamp::from_us(1_700_000_000_000_000 + tick),
            interval_ns: 1,
        };
        let odd = row % 2 == 1;
        builder.push(
            key,
            Row {
                count: row,
                maybe: odd.then_some(row),
                name: format!("name{}", (row + tick.cast_unsigned()) % 7).into(),
                text: odd.then(|| format!("text {tick} {row}")),
                buckets: odd.then(|| Buckets(vec![row; 3])),
            },
        );
    }
    let mut out = Vec::new();
    builder.finish(&mut out);
    out
}

/// KeyedRows of `(pid, name, whether it has ended)`.
fn lives(lives: &[(u32, &'static str, bool)]) -> Vec<Batch> {
    let mut builder = TableBuilder::new(&LIVES);
    for &(pid, comm, ended) in lives {
        let key = LifeKey {
            pid,
            start_ts: Timestamp::from_us(i64::from(pid)),
        };
        let row = LifeRow {
            comm: comm.into(),
            end_ts: ended.then_some(Timestamp::from_us(1_000)),
        };
        builder.push(key, row);
    }
    let mut out = Vec::new();
    builder.finish(&mut out);
    out
}

fn options(out: &TempDir) -> DatasetOptions {
    let mut options = DatasetOptions::new(out.path().join("run"), "node1", "run");
    options.manifest = Some(Manifest::new("run", "node1", 5).unwrap());
    options
}

fn start(out: &TempDir) -> (PathBuf, DatasetWriter) {
    let options = options(out);
    (
        options.run_dir.clone(),
        DatasetWriter::start(options).unwrap(),
    )
}

/// Waits until the writer has written `ticks` ticks.
fn wait(writer: &DatasetWriter, ticks: u64) {
    while writer.stats().ticks < ticks {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Leaves the files that `kill -9` leaves. The thread waits forever. The journals are replaced by
/// copies, which the thread has not locked.
fn kill(writer: DatasetWriter, run: &Path) {
    writer.shared.lock().manifest = None;
    for table in ["ticks", "lives"] {
        for name in names(&run.join(table).join("host=node1")) {
            if name.ends_with(".arrows") {
                let path = run.join(table).join("host=node1").join(name);
                let bytes = fs::read(&path).unwrap();
                fs::remove_file(&path).unwrap();
                fs::write(&path, bytes).unwrap();
            }
        }
    }
    let manifest = run.join("run.json");
    if manifest.exists() {
        let text = fs::read_to_string(&manifest).unwrap();
        let mut value: Manifest = serde_json::from_str(&text).unwrap();
        value.process.start_ticks += 2;
        fs::write(&manifest, serde_json::to_vec(&value).unwrap()).unwrap();
    }
    std::mem::forget(writer);
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = directory
        .read_dir()
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// All rows of a table, in the order of its Parquet files.
fn read(run: &Path, table: &Table) -> RecordBatch {
    let directory = run.join(table.name).join("host=node1");
    let mut batches = Vec::new();
    for name in names(&directory) {
        if parquet_file::number(&name).is_some() {
            let file = File::open(directory.join(&name)).unwrap();
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            let fields = reader.schema().fields().clone();
            let expected = table.columns().chain([&RUN_COLUMN]).map(Column::field);
            for (found, expected) in fields.iter().zip(expected) {
                let plain = match expected.data_type() {
                    DataType::Dictionary(_, values) => DataType::clone(values),
                    other => other.clone(),
                };
                assert_eq!(**found, expected.with_data_type(plain));
            }
            batches.extend(reader.build().unwrap().map(|batch| {
                let mut batch = batch.unwrap();
                let run = batch.remove_column(batch.num_columns() - 1);
                assert!(
                    run.as_string::<i32>()
                        .iter()
                        .all(|name| name == Some("run"))
                );
                let columns = batch.columns().iter().zip(table.columns());
                let columns = columns.map(|(column, of)| cast(column, &(of.data_type)()).unwrap());
                RecordBatch::try_new(table.schema(), columns.collect()).unwrap()
            }));
        }
    }
    concat_batches(&table.schema(), &batches).unwrap()
}

fn expected(ticks: std::ops::Range<i64>, rows: u64) -> RecordBatch {
    let batches: Vec<_> = ticks
        .flat_map(|n| tick(n, rows))
        .map(|batch| batch.rows)
        .collect();
    concat_batches(&TICKS.schema(), &batches).unwrap()
}

/// Names and whether they have ended, by pid.
fn read_lives(run: &Path) -> BTreeMap<u32, (String, bool)> {
    let rows = read(run, &LIVES);
    let pids = rows["pid"].as_primitive::<UInt32Type>();
    let names = rows["comm"].as_any_dictionary();
    let names = cast(names, &DataType::Utf8).unwrap();
    let ends = rows["end_ts"].as_primitive::<TimestampMicrosecondType>();
    let mut lives = BTreeMap::new();
    for row in 0..rows.num_rows() {
        let name = names.as_string::<i32>().value(row).to_owned();
        let ended = arrow::array::Array::is_valid(ends, row);
        let before = lives.insert(pids.value(row), (name, ended));
        assert_eq!(before, None, "one row per lifetime");
    }
    lives
}

fn manifest(run: &Path) -> Manifest {
    serde_json::from_slice(&fs::read(run.join("run.json")).unwrap()).unwrap()
}

fn recover_own(run: &Path) -> RecoveryReport {
    recover(run, Hosts::Only("node1"), DatasetSchema::EMPTY, Trust::Own).unwrap()
}

fn recover_all_hosts(run: &Path) -> Result<RecoveryReport, RecoverError> {
    recover(run, Hosts::All, DatasetSchema::EMPTY, Trust::Own)
}

/// Recovers the abandoned runs of a host.
fn recover_runs(
    out: &Path,
    hostname: &str,
) -> Vec<(PathBuf, Result<RecoveryReport, RecoverError>)> {
    let recover = |name| {
        let run = out.join(name);
        let result = recover_abandoned(&run, hostname, None, DatasetSchema::EMPTY)?;
        Some((run, result))
    };
    let names = abandoned_runs(out, hostname, None);
    names.into_iter().filter_map(recover).collect()
}
