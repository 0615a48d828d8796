//! After `kill -9` at any time, recovery restores every written tick exactly once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use arrow::{
    array::{Array as _, AsArray as _},
    datatypes::{TimestampMicrosecondType, UInt32Type},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use profiler::{
    columns,
    output::dataset::{
        DatasetOptions, DatasetWriter, Manifest,
        recover::{abandoned_runs, recover_abandoned},
    },
    schema::{Batch, DatasetSchema, Label, TableBuilder, TickKey, Timestamp, TypedTable},
};
use tempfile::TempDir;

columns! {
    /// A row per tick.
    pub struct Row {
        name: Label = Label("", "A name"),
    }
}

columns! {
    /// A process that lives for three ticks.
    pub struct Life {
        pid: u32 = Label("", "Process id"),
        start_ts: Timestamp = Label("ns", "Start"),
        end_ts: Option<Timestamp> = Label("ns", "End"),
    }
}

columns! {
    /// No further columns.
    pub struct Nothing {}
}

static TICKS: TypedTable<TickKey, Row> = TypedTable::new("ticks", "One row per tick");
static LIVES: TypedTable<Life, Nothing> = TypedTable::keyed("lives", "One row per life");

/// Environment variable with the output directory of the process to be killed.
const DIRECTORY: &str = "PROFILER_TEST_SINK_KILL";

fn tick(n: i64) -> Vec<Batch> {
    let mut ticks = TableBuilder::new(&TICKS);
    let key = TickKey {
        ts: Timestamp::from_us(n),
        interval_ns: 1,
    };
    let name = format!("name {}", n % 5).into();
    ticks.push(key, Row { name });
    let mut lives = TableBuilder::new(&LIVES);
    for start in (n - 2).max(0)..=n {
        let life = Life {
            pid: u32::try_from(start).unwrap(),
            start_ts: Timestamp::from_us(start),
            end_ts: (start == n - 2).then_some(Timestamp::from_us(n)),
        };
        lives.push(life, Nothing {});
    }
    let mut out = Vec::new();
    ticks.finish(&mut out);
    lives.finish(&mut out);
    out
}

/// Stores one tick after another and prints each when it is written, until it is killed.
fn write(directory: &Path) {
    let mut options = DatasetOptions::new(directory.join("run"), "node1", "run");
    options.checkpoint = Duration::from_millis(15);
    options.manifest = Some(Manifest::new("run", "node1", 0).unwrap());
    let writer = DatasetWriter::start(options).unwrap();
    for n in 0.. {
        writer.write(tick(n));
        while writer.stats().ticks <= n.cast_unsigned() {
            std::thread::yield_now();
        }
        println!("tick {n}");
        std::io::stdout().flush().unwrap();
    }
}

fn read(run: &Path, table: &str, mut row: impl FnMut(&arrow::array::RecordBatch, usize)) {
    for entry in run.join(table).join("host=node1").read_dir().unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "parquet", "{}", path.display());
        let file = File::open(&path).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        for batch in reader.build().unwrap() {
            let batch = batch.unwrap();
            for index in 0..batch.num_rows() {
                row(&batch, index);
            }
        }
    }
}

#[test]
fn every_tick_that_was_written_survives_a_kill() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return write(Path::new(&directory));
    }
    for round in 0..20 {
        let out = TempDir::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "sink_kill::every_tick_that_was_written_survives_a_kill",
                "--nocapture",
            ])
            .env(DIRECTORY, out.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut ticks = lines.filter_map(|line| line.unwrap().strip_prefix("tick ")?.parse().ok());
        let mut last: i64 = ticks.next().unwrap();
        std::thread::sleep(Duration::from_micros(round * 7919 % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
        last = ticks.last().unwrap_or(last);

        assert_eq!(abandoned_runs(out.path(), "node1", None), ["run"]);
        let run = &out.path().join("run");
        let report = recover_abandoned(run, "node1", None, DatasetSchema::EMPTY);
        let report = report.expect("abandoned").expect("recovered");
        assert!(report.is_complete(), "{report:?}");
        let mut found = BTreeSet::new();
        read(run, "ticks", |batch, row| {
            let ts = batch["ts"]
                .as_primitive::<TimestampMicrosecondType>()
                .value(row);
            assert!(found.insert(ts), "twice: {ts}");
        });
        // One more may have been written before it was printed.
        let count = i64::try_from(found.len()).unwrap();
        assert!(count == last + 1 || count == last + 2, "{count} of {last}");
        assert_eq!(found, (0..count).collect());
        let mut lives = BTreeMap::new();
        read(run, "lives", |batch, row| {
            let pid = batch["pid"].as_primitive::<UInt32Type>().value(row);
            let ended = batch["end_ts"].is_valid(row);
            assert_eq!(lives.insert(i64::from(pid), ended), None, "twice: {pid}");
        });
        // The lifetimes of the tick that was being written may be one tick ahead or behind.
        let newest = *lives.keys().last().unwrap();
        assert!((last..=last + 1).contains(&newest), "{newest} of {last}");
        let want = (0..=newest).map(|pid| (pid, pid <= newest - 2)).collect();
        assert_eq!(lives, want);
    }
}
