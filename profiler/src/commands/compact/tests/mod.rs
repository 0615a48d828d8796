//! Compaction of runs on a real file system: complete, interrupted at every step, repeated.

mod keep;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use arrow::{
    array::{ArrayRef, AsArray as _, RecordBatch, StringArray, TimestampNanosecondArray},
    datatypes::{DataType, Field, Schema, TimeUnit, TimestampMicrosecondType, UInt64Type},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use super::super::verify::verify;
use crate::{
    analysis::stored_run::StoredRun,
    columns,
    output::compaction::{CompactError, CompactReport, Keep, Limits, Options, compact},
    output::dataset::{
        DatasetOptions, DatasetWriter, Manifest,
        files::host_directory,
        foreign_file::Trust,
        manifest::State,
        metadata,
        parquet_file::{self, Encoder},
    },
    schema::{
        Batch, Buckets, DatasetSchema, Label, ProcessKey, Table, TableBuilder, TickKey, Timestamp,
        TypedTable,
    },
};

columns! {
    /// A row with several kinds of values.
    pub struct Row {
        count: u64 = Counter("1", "A count"),
        name: Label = Label("", "A name"),
        buckets: Option<Buckets> = Counter("1", "A histogram"),
        level: Option<u64> = Gauge("bytes", "A gauge"),
        share: f64 = Gauge("%", "Another one"),
        state: Label = Gauge("", "A state"),
    }
}

static NODE: TypedTable<TickKey, Row> = TypedTable::new("node", "Rows of the node");
static TASKS: TypedTable<ProcessKey, Row> = TypedTable::new("tasks", "Rows of processes");
static SCHEMA: LazyLock<DatasetSchema> = LazyLock::new(|| {
    let tables: [&Table; 2] = [&NODE, &TASKS];
    DatasetSchema::new(tables.map(|table| ("source", table)), Vec::new())
});

/// 2023-11-14T23:59:58Z, µs.
const START: i64 = 1_700_006_398_000_000;

/// Limits at which every table has several files, row groups and sorted files.
const SMALL: Limits = Limits {
    sorted_bytes: 1,
    merged_files: 2,
    file_bytes: 1,
    group_rows: 10,
    group_bytes: 1 << 20,
};

/// Rows by table, as texts, sorted.
type Rows = BTreeMap<String, Vec<String>>;

fn row(count: u64) -> Row {
    Row {
        count,
        name: format!("name{}", count % 3).into(),
        buckets: count.is_multiple_of(2).then(|| Buckets(vec![count; 2])),
        level: (!count.is_multiple_of(3)).then_some(count * 1000),
        share: count as f64 / 7.0,
        state: format!("state{count}").into(),
    }
}

/// A sample per second: two rows of the node, and one of each of three processes.
fn sample(second: i64) -> Vec<Batch> {
    let ts = Timestamp::from_us(START + second * 1_000_000);
    let number = second.unsigned_abs() * 10;
    let mut out = Vec::new();
    let mut node = TableBuilder::new(&NODE);
    for count in [number, number + 1] {
        node.push(
            TickKey {
                ts,
                interval_ns: 1_000_000_000,
            },
            row(count),
        );
    }
    node.finish(&mut out);
    let mut tasks = TableBuilder::new(&TASKS);
    for pid in [30, 10, 20] {
        let key = ProcessKey {
            ts,
            interval_ns: 1_000_000_000,
            pid,
            start_ts: Timestamp::from_us(START),
            tid: None,
        };
        tasks.push(key, row(number + u64::from(pid)));
    }
    tasks.finish(&mut out);
    out
}

/// Writes samples of a host, each into files of its own.
fn profile(run: &Path, host: &str, seconds: std::ops::Range<i64>) {
    let name = run.file_name().unwrap().to_str().unwrap();
    for second in seconds {
        let mut options = DatasetOptions::new(run.to_owned(), host, name);
        options.schema = &SCHEMA;
        options.manifest = Some(Manifest::new(name, host, START * 1000).unwrap());
        let writer = DatasetWriter::start(options).unwrap();
        writer.write(sample(second));
        assert!(writer.finish().unwrap().is_complete());
    }
}

/// Two finished runs, one of them of two hosts.
fn dataset() -> TempDir {
    let out = TempDir::new().unwrap();
    profile(&out.path().join("a"), "node1", 0..3);
    profile(&out.path().join("a"), "node2", 2..4);
    profile(&out.path().join("b"), "node1", 1..3);
    out
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Compaction that keeps all rows.
fn options() -> Options {
    Options {
        schema: &SCHEMA,
        keep: Keep::default(),
        max_bytes: None,
        now_us: START,
        limits: SMALL,
        trust: Trust::Own,
    }
}

fn run_all(out: &Path) -> CompactReport {
    compact(out, &options(), &mut |_| Ok(())).unwrap()
}

/// All rows of a run, by the reader of `summary`, `report` and `export`.
fn rows(run: &Path) -> Rows {
    // The limits of other users change no row.
    let stored = StoredRun::open(run, Trust::Nobody).unwrap();
    assert_eq!(stored.problems, Vec::<String>::new());
    let columns = [
        "ts", "pid", "count", "name", "buckets", "level", "share", "state", "run",
    ];
    let mut all = Rows::new();
    for host in stored.hosts.iter() {
        for table in ["node", "tasks"] {
            let mut last = i64::MIN;
            let read = stored.read(table, host, &columns, |batch| {
                let times = batch["ts"].as_primitive::<TimestampMicrosecondType>();
                for ts in times.values() {
                    assert!(*ts >= last, "{table}: in the order of time");
                    last = *ts;
                }
                let found = all.entry(format!("{table} {}", host.name)).or_default();
                found.extend(texts(batch, &columns));
            });
            assert_eq!(read, Ok(()), "{}", run.display());
        }
    }
    for rows in all.values_mut() {
        rows.sort();
    }
    all
}

fn texts(batch: &RecordBatch, columns: &[&str]) -> Vec<String> {
    let columns = columns.iter().filter_map(|name| batch.column_by_name(name));
    let columns: Vec<_> = columns.collect();
    let text = |row| {
        let cells = columns
            .iter()
            .map(|column| format!("{:?}", column.slice(row, 1)));
        cells.collect()
    };
    (0..batch.num_rows()).map(text).collect()
}

fn all_rows(out: &Path) -> [Rows; 2] {
    ["a", "b"].map(|run| rows(&out.join(run)))
}

/// Paths of all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in directory
        .read_dir()
        .into_iter()
        .flatten()
        .map(Result::unwrap)
    {
        if entry.file_type().unwrap().is_dir() {
            all.extend(files(&entry.path()));
        } else {
            all.push(entry.path());
        }
    }
    all.sort();
    all
}

fn parts(run: &Path) -> usize {
    let tables = ["node", "tasks"].map(|table| files(&run.join(table)).len());
    tables.iter().sum()
}

#[test]
fn rows_of_all_runs_are_the_same_in_sorted_files() {
    let out = dataset();
    let before = all_rows(out.path());
    assert_eq!(parts(&out.path().join("a")), 10);
    let report = run_all(out.path());
    assert_eq!(report.failed, []);
    assert_eq!(report.skipped, []);
    let found: Vec<_> = report
        .tables
        .iter()
        .map(|of| (&*of.name, of.rows))
        .collect();
    assert_eq!(found, [("node", 14), ("tasks", 21)]);
    assert_eq!(all_rows(out.path()), before);
    for run in ["a", "b"].map(|name| out.path().join(name)) {
        assert_eq!(parts(&run), 0);
        let report = verify(&run, Trust::Own).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
    let days = fs::read_dir(out.path().join("compacted/tasks")).unwrap();
    assert_eq!(days.count(), 2, "before and after midnight");
    for file in files(&out.path().join("compacted/tasks")) {
        let file = fs::File::open(file).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let group = reader.metadata().row_group(0);
        assert_eq!(group.sorting_columns().unwrap().len(), 4);
        let column = |name: &str| {
            let mut columns = group.columns().iter();
            columns
                .find(|of| of.column_path().string() == name)
                .unwrap()
        };
        for id in ["run", "host", "pid"] {
            assert!(column(id).bloom_filter_offset().is_some(), "{id}");
        }
        assert!(column("ts").column_index_offset().is_some());
        let mut keys = Vec::new();
        for batch in reader.build().unwrap().map(Result::unwrap) {
            keys.extend(texts(&batch, &["host", "pid", "ts"]));
        }
        assert!(keys.is_sorted(), "{keys:?}");
    }
    assert_eq!(run_all(out.path()).tables, []);
}

/// Stops the compaction after each of its steps, as a kill does, and completes it.
#[test]
fn interrupted_compaction_neither_loses_nor_repeats_rows() {
    let original = dataset();
    let before = all_rows(original.path());
    let work = TempDir::new().unwrap();
    let mut steps = 0;
    loop {
        let out = work.path().join(steps.to_string());
        copy(original.path(), &out);
        let stop_after = |steps: usize| {
            let mut left = steps;
            compact(&out, &options(), &mut |step| {
                if left == 0 {
                    let why = format!("{step:?}");
                    return Err(io::Error::new(io::ErrorKind::Interrupted, why));
                }
                left -= 1;
                Ok(())
            })
        };
        let killed = stop_after(steps);
        assert_eq!(all_rows(&out), before, "after step {steps}: {killed:?}");
        // The next one is killed too.
        let again = stop_after(1);
        assert_eq!(all_rows(&out), before, "after step {steps}: {again:?}");
        let report = run_all(&out);
        assert_eq!(report.failed, []);
        assert_eq!(all_rows(&out), before, "after step {steps} and completion");
        assert_eq!(parts(&out.join("a")) + parts(&out.join("b")), 0);
        let names = files(&out.join("compacted"));
        let strange = names.iter().find(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            parquet_file::number(name).is_none() && name != ".lock"
        });
        assert_eq!(strange, None);
        fs::remove_dir_all(&out).unwrap();
        if killed.is_ok() {
            break;
        }
        steps += 1;
    }
    assert!(steps > 30, "{steps} steps");
}

#[test]
fn second_compaction_is_refused() {
    let out = dataset();
    let mut refused = 0;
    compact(out.path(), &options(), &mut |_| {
        let second = compact(out.path(), &options(), &mut |_| Ok(()));
        assert!(matches!(second, Err(CompactError::Locked(_))), "{second:?}");
        refused += 1;
        Ok(())
    })
    .unwrap();
    assert!(refused > 10);
}

#[test]
fn continued_run_is_compacted_again() {
    let out = dataset();
    let run = out.path().join("b");
    run_all(out.path());
    profile(&run, "node1", 10..13);
    let both = rows(&run);
    assert_eq!(both["tasks node1"].len(), 15);
    let views = fs::read_to_string(run.join("views.sql")).unwrap();
    assert!(views.contains("part-*.parquet") && views.contains("../compacted/tasks/day="));
    assert_eq!(
        verify(&run, Trust::Own).unwrap().problems,
        Vec::<String>::new()
    );
    run_all(out.path());
    assert_eq!(rows(&run), both);
    assert_eq!(parts(&run), 0);
    assert_eq!(
        verify(&run, Trust::Own).unwrap().problems,
        Vec::<String>::new()
    );
    let views = fs::read_to_string(run.join("views.sql")).unwrap();
    assert!(!views.contains("tasks/host=*"), "{views}");
}

#[test]
fn only_finished_runs_are_touched() {
    let out = dataset();
    let path = |name: &str| out.path().join(name);
    let change = |run: &str, change: &dyn Fn(&mut Manifest)| {
        copy(&path("b"), &path(run));
        let text = fs::read(path(run).join("run.json")).unwrap();
        let mut manifest: Manifest = serde_json::from_slice(&text).unwrap();
        manifest.run_id = run.to_owned();
        change(&mut manifest);
        let text = serde_json::to_vec(&manifest).unwrap();
        fs::write(path(run).join("run.json"), text).unwrap();
    };
    change("running", &|manifest| manifest.state = State::Running);
    change("lost", &|manifest| manifest.state = State::Incomplete);
    change("renamed", &|manifest| manifest.run_id = "b".to_owned());
    change("other", &|_| {});
    copy(&path("b"), &path("journal"));
    fs::write(path("journal/tasks/host=node1/_part-00009.arrows"), "").unwrap();
    let text = fs::read_to_string(path("b/run.json")).unwrap();
    fs::write(
        path("journal/run.json"),
        text.replace("\"b\"", "\"journal\""),
    )
    .unwrap();
    fs::create_dir(path("notes")).unwrap();
    let untouched = ["journal", "lost", "notes", "other", "renamed", "running"];
    let before = untouched.map(|name| files(&path(name)));
    let report = run_all(out.path());
    let skipped: Vec<_> = report.skipped.iter().map(|of| &*of.name).collect();
    assert_eq!(skipped, ["journal", "lost", "notes", "renamed", "running"]);
    assert!(report.skipped.iter().all(|of| !of.why.is_empty()));
    // Files that belong to another run than their directory are found when they are read.
    assert_eq!(report.failed.len(), 2, "{:?}", report.failed);
    assert_eq!(untouched.map(|name| files(&path(name))), before);
    fs::remove_dir_all(path("other")).unwrap();
    assert_eq!(run_all(out.path()).failed, []);
    assert_eq!(parts(&path("a")), 0);
}

#[test]
fn old_files_get_the_newest_schema() {
    let out = dataset();
    let run = out.path().join("b");
    let directory = run.join("node").join(host_directory("node1"));
    for file in files(&directory) {
        fs::remove_file(file).unwrap();
    }
    let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    let name = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let fields = vec![
        Field::new("ts", time, false),
        Field::new("name", name.clone(), false),
        Field::new("gone", DataType::Utf8, true),
    ];
    let facts = [
        (metadata::RUN_ID, "b"),
        (metadata::HOSTNAME, "node1"),
        (metadata::TABLE, "node"),
    ];
    let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let schema = Arc::new(Schema::new_with_metadata(fields, facts));
    let times = TimestampNanosecondArray::from(vec![START * 1000 + 1999]).with_timezone("UTC");
    let text = |text: &str| Arc::new(StringArray::from_iter_values([text])) as ArrayRef;
    let labels = arrow::compute::cast(&text("old"), &name).unwrap();
    let columns = vec![Arc::new(times) as _, labels, text("kept")];
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let mut encoder = Encoder::new(schema).unwrap();
    encoder.encode(&[batch]).unwrap();
    fs::write(
        directory.join("part-00000.parquet"),
        encoder.finish().unwrap(),
    )
    .unwrap();
    assert_eq!(run_all(out.path()).failed, []);
    let mut rows = Vec::new();
    for file in files(&out.path().join("compacted/node")) {
        let file = fs::File::open(file).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        for batch in reader.build().unwrap().map(Result::unwrap) {
            for row in 0..batch.num_rows() {
                if batch["run"].as_string::<i32>().value(row) == "b" {
                    rows.push(batch.slice(row, 1));
                }
            }
        }
    }
    let [row] = &rows[..] else {
        panic!("one row, not {rows:?}")
    };
    let ts = row["ts"].as_primitive::<TimestampMicrosecondType>();
    assert_eq!(ts.value(0), START + 1);
    assert_eq!(row["name"].as_string::<i32>().value(0), "old");
    assert_eq!(row["gone"].as_string::<i32>().value(0), "kept");
    assert_eq!(
        row["count"].as_primitive::<UInt64Type>().iter().next(),
        Some(None)
    );
}
