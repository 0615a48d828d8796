//! The way of the data through the sink, on a real file system.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
};

use arrow::{
    array::{AsArray as _, RecordBatch},
    compute::concat_batches,
    datatypes::{TimestampNanosecondType, UInt32Type, UInt64Type},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use super::{
    recover::{Hosts, Outcome, Report},
    *,
};
use crate::{
    columns,
    schema::{Buckets, Label, Table, TableBuilder, TickKey, Timestamp},
};

columns! {
    /// A row with each kind of cell that matters to files.
    pub struct Row {
        count: u64 = Counter("1", "A count"),
        maybe: Option<u64> = Gauge("bytes", "Null when odd"),
        name: Label = Label("", "A name"),
        text: Option<String> = Label("", "A text"),
        buckets: Option<Buckets> = Counter("1", "A histogram"),
    }
}

columns! {
    /// What identifies a lifetime.
    pub struct LifeKey {
        pid: u32 = Label("", "Process id"),
        start_ts: Timestamp = Label("ns", "Start"),
    }
}

columns! {
    /// The rest of a lifetime.
    pub struct LifeRow {
        comm: Label = Label("", "Name"),
        end_ts: Option<Timestamp> = Label("ns", "End"),
    }
}

static TICKS: Table = Table::new::<TickKey, Row>("ticks", "One row per test and tick");
static LIVES: Table = Table::of_lifetimes::<LifeKey, LifeRow>("lives", "One row per life");

/// `rows` rows of tick `tick`.
fn tick(tick: i64, rows: u64) -> Vec<Batch> {
    let mut builder = TableBuilder::<TickKey, Row>::new(&TICKS);
    for row in 0..rows {
        let key = TickKey {
            ts: Timestamp(1_700_000_000_000_000_000 + tick),
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

/// Lifetimes of `(pid, name, whether it has ended)`.
fn lives(lives: &[(u32, &'static str, bool)]) -> Vec<Batch> {
    let mut builder = TableBuilder::<LifeKey, LifeRow>::new(&LIVES);
    for &(pid, comm, ended) in lives {
        let key = LifeKey {
            pid,
            start_ts: Timestamp(i64::from(pid)),
        };
        let row = LifeRow {
            comm: comm.into(),
            end_ts: ended.then_some(Timestamp(1_000)),
        };
        builder.push(key, row);
    }
    let mut out = Vec::new();
    builder.finish(&mut out);
    out
}

fn options(out: &TempDir) -> Options {
    let mut options = Options::new(out.path().join("run"), "node1", "run");
    options.manifest = Some(Manifest::new("run", "node1", 5).unwrap());
    options
}

/// Waits until the writer has dealt with `ticks` ticks.
fn wait(sink: &Sink, ticks: u64) {
    while sink.stats().ticks < ticks {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What `kill -9` leaves: the thread is abandoned where it waits, its files stay as they are. The lock that
/// would go with the process goes with the journal, which is replaced by a copy.
fn kill(sink: Sink, run: &Path) {
    sink.shared.lock().manifest = None;
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
        value.process.start_ticks += 1;
        fs::write(&manifest, serde_json::to_vec(&value).unwrap()).unwrap();
    }
    std::mem::forget(sink);
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = folder
        .read_dir()
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// All rows of a table, part after part.
fn read(run: &Path, table: &Table) -> RecordBatch {
    let folder = run.join(table.name).join("host=node1");
    let mut batches = Vec::new();
    for name in names(&folder) {
        if part::number(&name).is_some() {
            let file = File::open(folder.join(&name)).unwrap();
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            assert_eq!(reader.schema().fields(), table.schema().fields());
            batches.extend(reader.build().unwrap().map(|batch| {
                let batch = batch.unwrap();
                RecordBatch::try_new(table.schema(), batch.columns().to_vec()).unwrap()
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
    let names = arrow::compute::cast(names, &arrow::datatypes::DataType::Utf8).unwrap();
    let ends = rows["end_ts"].as_primitive::<TimestampNanosecondType>();
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

fn recover_own(run: &Path) -> Report {
    recover(run, Hosts::Only("node1")).unwrap()
}

#[test]
fn rows_come_back_as_they_were() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    for n in 0..20 {
        sink.submit(tick(n, 10));
    }
    let summary = sink.finish().unwrap();
    assert!(summary.is_complete());
    assert_eq!(summary.errors, 0, "{summary:?}");
    assert_eq!(summary.tables["ticks"].rows, 200);
    let folder = run.join("ticks/host=node1");
    assert_eq!(names(&folder), ["part-00000.parquet"]);
    assert_eq!(read(&run, &TICKS), expected(0..20, 10));
    assert_eq!(names(&run), ["run.json", "ticks", "views.sql"]);
    let manifest = manifest(&run);
    assert_eq!(manifest.state, manifest::State::Complete);
    assert_eq!(manifest.tables["ticks"].rows, 200);
    assert!(manifest.end_ts.unwrap() > manifest.start_ts);
}

#[test]
fn files_say_where_they_come_from() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    sink.submit(tick(0, 10));
    sink.finish().unwrap();
    let file = File::open(run.join("ticks/host=node1/part-00000.parquet")).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let values: BTreeMap<_, _> = reader
        .metadata()
        .file_metadata()
        .key_value_metadata()
        .unwrap()
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.as_deref().unwrap()))
        .collect();
    assert_eq!(values[metadata::RUN_ID], "run");
    assert_eq!(values[metadata::HOSTNAME], "node1");
    assert_eq!(values[metadata::TABLE], "ticks");
    assert_eq!(values[metadata::SCHEMA_VERSION], "1");
    assert_eq!(reader.schema().field(3).metadata()["unit"], "bytes");
    let group = reader.metadata().row_group(0);
    assert_eq!(group.sorting_columns().unwrap()[0].column_idx, 0);
    assert!(group.column(0).statistics().is_some());
    assert!(group.column(0).offset_index_offset().is_some());
    assert!(group.column(0).column_index_offset().is_some());
}

#[test]
fn rows_are_sorted_by_ts() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    for n in [5, 3, 4] {
        sink.submit(tick(n, 2000));
    }
    sink.finish().unwrap();
    let rows = read(&run, &TICKS);
    let ts = rows["ts"].as_primitive::<TimestampNanosecondType>();
    assert_eq!(ts.len(), 6000);
    assert!(ts.values().is_sorted());
}

#[test]
fn each_checkpoint_makes_a_part_and_ends_its_journal() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.checkpoint = Duration::from_millis(1);
    options.sync = true;
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    for n in 0..3 {
        sink.submit(tick(n, 10));
        while sink.stats().parts <= n.cast_unsigned() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let folder = run.join("ticks/host=node1");
    assert_eq!(
        names(&folder),
        [
            "part-00000.parquet",
            "part-00001.parquet",
            "part-00002.parquet"
        ]
    );
    assert!(run.join("views.sql").exists());
    assert_eq!(manifest(&run).state, manifest::State::Running);
    sink.finish().unwrap();
    assert_eq!(read(&run, &TICKS), expected(0..3, 10));
}

#[test]
fn large_tables_get_several_row_groups_and_stay_whole() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    for n in 0..12 {
        sink.submit(tick(n, 10_000));
        wait(&sink, n.cast_unsigned());
    }
    let summary = sink.finish().unwrap();
    assert!(summary.is_complete(), "{summary:?}");
    assert_eq!(read(&run, &TICKS), expected(0..12, 10_000));
}

#[test]
fn a_run_that_is_continued_keeps_what_it_has() {
    let out = TempDir::new().unwrap();
    for n in 0..3 {
        let options = options(&out);
        let sink = Sink::start(options).unwrap();
        sink.submit(tick(n, 10));
        sink.finish().unwrap();
    }
    assert_eq!(read(&out.path().join("run"), &TICKS), expected(0..3, 10));
}

#[test]
fn hosts_share_a_run() {
    let out = TempDir::new().unwrap();
    let sinks: Vec<_> = ["node1", "node2"]
        .into_iter()
        .map(|host| {
            let mut options = options(&out);
            options.hostname = host.to_owned();
            options.manifest = Some(Manifest::new("run", host, 5).unwrap());
            Sink::start(options).unwrap()
        })
        .collect();
    for sink in sinks {
        sink.submit(tick(0, 10));
        sink.finish().unwrap();
    }
    let run = out.path().join("run");
    assert_eq!(names(&run.join("ticks")), ["host=node1", "host=node2"]);
    assert_eq!(
        names(&run),
        ["run.json", "run.node2.json", "ticks", "views.sql"]
    );
}

#[test]
fn only_the_last_row_of_a_lifetime_is_stored() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.checkpoint = Duration::from_millis(20);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    sink.submit(lives(&[(1, "sh", false), (2, "true", false)]));
    sink.submit(lives(&[(2, "true", true), (3, "cat", false)]));
    while sink.stats().parts < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([(2, ("true".to_owned(), true))])
    );
    sink.submit(lives(&[(1, "bash", false), (3, "cat", true)]));
    let summary = sink.finish().unwrap();
    assert_eq!(summary.tables["lives"].rows, 3);
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([
            (1, ("bash".to_owned(), false)),
            (2, ("true".to_owned(), true)),
            (3, ("cat".to_owned(), true)),
        ])
    );
}

#[test]
fn a_journal_of_open_lifetimes_does_not_grow_without_end() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.checkpoint = Duration::from_millis(1);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    for n in 0..5000 {
        sink.submit(lives(&[(1, "sh", false)]));
        if n % 100 == 0 {
            wait(&sink, n);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    wait(&sink, 5000);
    let folder = run.join("lives/host=node1");
    let journals = names(&folder);
    assert_eq!(journals.len(), 1, "{journals:?}");
    let size = folder.join(&journals[0]).metadata().unwrap().len();
    assert!(size < 2_000_000, "{size}");
    kill(sink, &run);
    recover_own(&run);
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([(1, ("sh".to_owned(), false))])
    );
}

#[test]
fn a_killed_run_is_recovered() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    for n in 0..5 {
        sink.submit(tick(n, 10));
    }
    sink.submit(lives(&[(1, "sh", false), (2, "true", false)]));
    sink.submit(lives(&[(2, "true", true)]));
    wait(&sink, 7);

    let error = recover(&run, Hosts::All).unwrap_err();
    assert!(matches!(error, recover::RecoverError::Running { .. }));
    assert_eq!(recover_orphans(out.path(), "node1").unwrap().len(), 0);
    kill(sink, &run);
    assert_eq!(recover_orphans(out.path(), "node2").unwrap().len(), 0);
    let reports = recover_orphans(out.path(), "node1").unwrap();
    let [(path, Ok(report))] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!(path, &run);
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.rows["ticks"], 50);
    assert_eq!(read(&run, &TICKS), expected(0..5, 10));
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([
            (1, ("sh".to_owned(), false)),
            (2, ("true".to_owned(), true)),
        ])
    );
    let manifest = manifest(&run);
    assert_eq!(manifest.state, manifest::State::Recovered);
    assert_eq!(manifest.tables["ticks"].rows, 50);
    assert_eq!(manifest.tables["lives"].rows, 2);
    // Once more changes nothing.
    assert_eq!(recover_orphans(out.path(), "node1").unwrap().len(), 0);
    assert_eq!(recover_own(&run), Report::default());
    assert_eq!(names(&run.join("ticks/host=node1")), ["part-00000.parquet"]);
    assert!(run.join("views.sql").exists());
}

#[test]
fn a_journal_in_use_is_left_alone() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.manifest = None;
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    sink.submit(tick(0, 10));
    wait(&sink, 1);
    let report = recover_own(&run);
    assert!(matches!(report.journals[..], [(_, Outcome::InUse)]));
    assert!(!report.is_complete());
    sink.finish().unwrap();
    assert_eq!(read(&run, &TICKS), expected(0..1, 10));
}

/// A journal of the ticks `0..ticks`, and the offsets at which its batches end.
fn journal_of(ticks: i64) -> (Vec<u8>, Vec<usize>) {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let path = run.join("ticks/host=node1/part-00000.arrows");
    let sink = Sink::start(options).unwrap();
    let mut ends = Vec::new();
    for n in 0..ticks {
        sink.submit(tick(n, 3));
        wait(&sink, n.cast_unsigned() + 1);
        ends.push(usize::try_from(path.metadata().unwrap().len()).unwrap());
    }
    let bytes = fs::read(path).unwrap();
    (bytes, ends)
}

/// Recovers a run with this journal.
fn recover_bytes(bytes: &[u8]) -> (TempDir, Report) {
    let out = TempDir::new().unwrap();
    let folder = out.path().join("ticks/host=node1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("part-00000.arrows"), bytes).unwrap();
    let report = recover_own(out.path());
    (out, report)
}

#[test]
fn every_whole_batch_of_a_torn_journal_is_recovered() {
    let (bytes, ends) = journal_of(3);
    for length in 0..=bytes.len() {
        let (out, report) = recover_bytes(&bytes[..length]);
        let whole = ends.iter().filter(|&&end| end <= length).count();
        let folder = out.path().join("ticks/host=node1");
        let [(_, outcome)] = &report.journals[..] else {
            panic!("{length}: {report:?}")
        };
        if whole == 0 {
            assert_eq!(*outcome, Outcome::Empty, "{length}");
            assert!(names(&folder).is_empty(), "{length}");
        } else {
            assert!(
                matches!(outcome, Outcome::Part { .. }),
                "{length}: {outcome:?}"
            );
            assert_eq!(names(&folder), ["part-00000.parquet"], "{length}");
            let ticks = i64::try_from(whole).unwrap();
            assert_eq!(read(out.path(), &TICKS), expected(0..ticks, 3), "{length}");
        }
        assert!(report.is_complete(), "{length}");
    }
}

#[test]
fn a_damaged_journal_is_kept_and_breaks_nothing() {
    let (bytes, ends) = journal_of(2);
    for offset in 0..bytes.len() {
        for flip in [0xff, 0x01, 0x80] {
            let mut damaged = bytes.clone();
            damaged[offset] ^= flip;
            let (out, report) = recover_bytes(&damaged);
            let folder = out.path().join("ticks/host=node1");
            let [(_, outcome)] = &report.journals[..] else {
                panic!("{offset}: {report:?}")
            };
            // Nothing before the damage is lost; nothing disappears without a word.
            match outcome {
                Outcome::Part { rows, .. } | Outcome::Corrupt { rows, .. } => {
                    assert!(*rows >= 3 || offset < ends[0], "{offset}: {outcome:?}");
                }
                Outcome::Empty => assert!(offset < ends[0], "{offset}"),
                Outcome::Failed { .. } => {}
                other => panic!("{offset}: {other:?}"),
            }
            let kept = names(&folder).iter().any(|name| name.contains(".arrows"));
            let expected = matches!(outcome, Outcome::Corrupt { .. } | Outcome::Failed { .. });
            assert_eq!(kept, expected, "{offset}: {outcome:?}");
        }
    }
}

#[test]
fn files_that_are_no_journals() {
    let (out, report) = recover_bytes(b"no Arrow stream at all, but long enough to be one");
    let folder = out.path().join("ticks/host=node1");
    assert!(matches!(
        report.journals[..],
        [(_, Outcome::Corrupt { .. })]
    ));
    assert_eq!(names(&folder), ["part-00000.arrows.corrupt"]);
    assert!(!report.is_complete());
    // It is kept, and not found again.
    assert_eq!(recover_own(out.path()), Report::default());

    let (out, report) = recover_bytes(b"");
    let folder = out.path().join("ticks/host=node1");
    assert!(matches!(report.journals[..], [(_, Outcome::Empty)]));
    assert!(names(&folder).is_empty());
}

#[test]
fn a_journal_whose_part_exists_is_stale() {
    let (bytes, _) = journal_of(2);
    let (out, _) = recover_bytes(&bytes);
    // As after a crash between the rename and the removal.
    let folder = out.path().join("ticks/host=node1");
    fs::write(folder.join("part-00000.arrows"), &bytes).unwrap();
    fs::write(folder.join(".part-00001.parquet.tmp"), "half").unwrap();
    let report = recover_own(out.path());
    assert!(matches!(report.journals[..], [(_, Outcome::Stale)]));
    assert_eq!(names(&folder), ["part-00000.parquet"]);
    assert_eq!(read(out.path(), &TICKS), expected(0..2, 3));
}

#[test]
fn lifetimes_are_stored_once_whenever_the_profiler_is_killed() {
    // Checkpoints at every point between the same rows; at each the journals are as a crash would leave them.
    let rows: [&[_]; 4] = [
        &[(1, "sh", false), (2, "a", false), (3, "b", true)],
        &[(2, "a2", true), (4, "c", false)],
        &[(1, "sh2", false)],
        &[(4, "c2", true), (5, "d", false)],
    ];
    let want = BTreeMap::from([
        (1, ("sh2".to_owned(), false)),
        (2, ("a2".to_owned(), true)),
        (3, ("b".to_owned(), true)),
        (4, ("c2".to_owned(), true)),
        (5, ("d".to_owned(), false)),
    ]);
    for checkpoints in 0..16_u8 {
        let out = TempDir::new().unwrap();
        let mut options = options(&out);
        options.checkpoint = Duration::from_secs(3600);
        let run = options.run_dir.clone();
        let mut writer = writer::Writer::new(options).unwrap();
        let mut stale = Vec::new();
        for (n, rows) in rows.iter().enumerate() {
            writer.test_tick(lives(rows));
            let folder = run.join("lives/host=node1");
            let before: Vec<_> = names(&folder)
                .into_iter()
                .map(|name| (folder.join(&name), fs::read(folder.join(name)).unwrap()))
                .collect();
            if checkpoints & (1 << n) != 0 {
                writer.test_checkpoint();
                stale.extend(before);
            }
        }
        drop(writer);
        // Journals that were removed last may still be there.
        for (path, bytes) in stale {
            if !path.exists() {
                fs::write(path, bytes).unwrap();
            }
        }
        let text = fs::read_to_string(run.join("run.json")).unwrap();
        let mut value: Manifest = serde_json::from_str(&text).unwrap();
        value.process.start_ticks += 1;
        fs::write(run.join("run.json"), serde_json::to_vec(&value).unwrap()).unwrap();
        let report = recover_own(&run);
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(read_lives(&run), want, "{checkpoints:b}");
        assert_eq!(recover_own(&run).journals, [], "{checkpoints:b}");
        assert_eq!(read_lives(&run), want, "{checkpoints:b}");
    }
}

#[test]
fn beyond_the_budget_the_oldest_ticks_are_dropped_and_counted() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    let size = tick(0, 1000)[0].rows.get_array_memory_size();
    options.memory_budget = 3 * size + size / 2;
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    {
        // The writer is slow: it waits for the lock while ten ticks come.
        let mut state = sink.shared.lock();
        state.held_bytes = 0;
        for n in 0..10 {
            let batches = tick(n, 1000);
            let bytes = size;
            while state.queued_bytes + bytes > state.budget
                && let Some(oldest) = state.queue.pop_front()
            {
                state.queued_bytes -= oldest.bytes;
                state.drop_tick(&oldest);
            }
            state.queued_bytes += bytes;
            state.queue.push_back(Tick { batches, bytes });
        }
    }
    let summary = sink.finish().unwrap();
    assert!(!summary.is_complete());
    assert_eq!(summary.tables["ticks"].dropped, 7000);
    assert_eq!(summary.tables["ticks"].rows, 3000);
    assert_eq!(read(&run, &TICKS), expected(7..10, 1000));
    let manifest = manifest(&run);
    assert_eq!(manifest.state, manifest::State::Incomplete);
    assert_eq!(manifest.losses[0].count, 7000);
}

#[test]
fn nothing_is_left_behind_where_nothing_can_be_stored() {
    let out = TempDir::new().unwrap();
    fs::write(out.path().join("file"), "").unwrap();
    let mut options = options(&out);
    options.run_dir = out.path().join("file/run");
    assert!(matches!(
        Sink::start(options.clone()).unwrap_err(),
        OutputError::NotADirectory { .. }
    ));
    options.run_dir = out.path().join("run");
    options.hostname = "a/b".to_owned();
    assert!(matches!(
        Sink::start(options).unwrap_err(),
        OutputError::Name { .. }
    ));
    assert_eq!(names(out.path()), ["file"]);
}

#[test]
fn a_run_directory_that_vanishes_is_made_again() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let sink = Sink::start(options).unwrap();
    sink.submit(tick(0, 10));
    wait(&sink, 1);
    fs::remove_dir_all(&run).unwrap();
    sink.submit(tick(1, 10));
    wait(&sink, 2);
    let summary = sink.finish().unwrap();
    assert!(summary.is_complete(), "{summary:?}");
    assert_eq!(read(&run, &TICKS), expected(0..2, 10));
    assert_eq!(manifest(&run).state, manifest::State::Complete);
}

#[test]
fn stats_count_what_happens() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let sink = Sink::start(options).unwrap();
    sink.submit(tick(0, 10));
    sink.submit(Vec::new());
    wait(&sink, 1);
    let stats = sink.stats();
    assert_eq!((stats.rows, stats.dropped, stats.errors), (10, 0, 0));
    assert!(stats.journal_bytes > 0 && stats.held_bytes > 0 && stats.write_ns > 0);
    let values = tick(0, 10)[0].rows["count"]
        .as_primitive::<UInt64Type>()
        .len();
    assert_eq!(values, 10);
    sink.finish().unwrap();
}
