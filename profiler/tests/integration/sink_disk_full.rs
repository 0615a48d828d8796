//! On a full disk, rows stay in memory up to the budget, and losses are counted. Requires root, to
//! mount a small tmpfs.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use arrow::{
    array::AsArray as _,
    datatypes::{TimestampMicrosecondType, UInt64Type},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use profiler::{
    columns,
    output::dataset::{
        DatasetOptions, DatasetWriter, OutputError, WriteSummary,
        foreign_file::Trust,
        recover::{Hosts, recover},
    },
    schema::{Batch, DatasetSchema, TableBuilder, TickKey, Timestamp, TypedTable},
};
use tempfile::TempDir;

columns! {
    /// A value that does not compress.
    pub struct Row {
        noise: u64 = Gauge("1", "A function of the tick and the row"),
    }
}

static NOISE: TypedTable<TickKey, Row> = TypedTable::new("noise", "One row per tick and number");
static OTHER: TypedTable<TickKey, Row> = TypedTable::new("other", "One row per tick and number");

const ROWS: u64 = 500;

fn noise(tick: u64, row: u64) -> u64 {
    let mut x = (tick << 32 | row) + 1;
    for shift in [30, 27, 31] {
        x = (x ^ x >> shift).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    x
}

fn tick(tick: u64) -> Vec<Batch> {
    let mut out = Vec::new();
    for table in [&NOISE, &OTHER] {
        let mut builder = TableBuilder::new(table);
        for row in 0..ROWS {
            let key = TickKey {
                ts: Timestamp::from_us(tick.cast_signed() + 1),
                interval_ns: 1,
            };
            let noise = noise(tick, row);
            builder.push(key, Row { noise });
        }
        builder.finish(&mut out);
    }
    out
}

/// A small tmpfs, unmounted on drop.
struct Disk(TempDir);

impl Disk {
    /// Mounts a tmpfs of `kib` KiB.
    fn new(kib: usize) -> Self {
        let disk = Self(TempDir::new().unwrap());
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
            .arg(disk.0.path())
            .status()
            .unwrap();
        assert!(status.success(), "mounting a tmpfs needs root");
        disk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the disk with a file; returns its path.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("ballast");
        let mut file = File::create(&path).unwrap();
        let zeros = fs::read("/proc/self/exe").unwrap();
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn options(disk: &Disk) -> DatasetOptions {
    let mut options = DatasetOptions::new(disk.path().join("run"), "node1", "run");
    options.checkpoint = Duration::from_secs(3600);
    options
}

/// Submits tick `n` of `0..` and waits for the writer; returns the reported errors.
fn submit(writer: &DatasetWriter, n: u64) -> Vec<String> {
    let mut errors = Vec::new();
    writer.write(tick(n));
    loop {
        let stats = writer.stats();
        errors.extend(stats.last_error);
        if stats.ticks > n {
            return errors;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The stored ticks; checks that each of them is complete and correct.
fn stored(run: &Path, table: &str) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let Ok(directory) = run.join(table).join("host=node1").read_dir() else {
        return found;
    };
    for entry in directory {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "parquet")
        {
            continue;
        }
        let file = File::open(&path).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        for batch in reader.build().unwrap() {
            let batch = batch.unwrap();
            let ts = batch["ts"].as_primitive::<TimestampMicrosecondType>();
            let values = batch["noise"].as_primitive::<UInt64Type>();
            for (ts, value) in ts.values().iter().zip(values.values()) {
                let tick = ts.cast_unsigned() - 1;
                let row = (0..ROWS).find(|&row| noise(tick, row) == *value);
                let row = row.unwrap_or_else(|| panic!("{value} is not in tick {tick}"));
                assert!(found.insert(tick << 32 | row), "twice: {tick} {row}");
            }
        }
    }
    let ticks: BTreeSet<_> = found.iter().map(|row| row >> 32).collect();
    assert_eq!(found.len() as u64, ticks.len() as u64 * ROWS);
    ticks
}

fn assert_counted(summary: &WriteSummary, run: &Path, ticks: u64) {
    for table in ["noise", "other"] {
        let counts = &summary.tables[table];
        assert_eq!(
            counts.rows + counts.dropped + counts.in_journal,
            ticks * ROWS,
            "{counts:?}"
        );
        assert_eq!(counts.rows, stored(run, table).len() as u64 * ROWS);
    }
}

#[test]
fn a_run_does_not_start_on_a_full_disk() {
    let disk = Disk::new(64);
    let ballast = disk.fill();
    let error = DatasetWriter::start(options(&disk)).unwrap_err();
    assert!(matches!(error, OutputError::Full { .. }), "{error}");
    fs::remove_file(ballast).unwrap();
    assert_eq!(disk.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_temporarily_full_disk_loses_no_rows() {
    let disk = Disk::new(4096);
    let writer = DatasetWriter::start(options(&disk)).unwrap();
    for n in 0..5 {
        submit(&writer, n);
    }
    let ballast = disk.fill();
    let errors: Vec<_> = (5..10).flat_map(|n| submit(&writer, n)).collect();
    let stats = writer.stats();
    assert!(stats.errors >= 2, "{stats:?}");
    assert_eq!(stats.dropped, 0);
    let [error] = &errors[..] else {
        panic!("not reported once: {errors:?}")
    };
    assert!(error.contains("No space left"), "{error}");
    fs::remove_file(ballast).unwrap();
    let summary = writer.finish().unwrap();
    assert!(summary.is_complete(), "{summary:?}");
    assert_counted(&summary, &disk.path().join("run"), 10);
}

#[test]
fn journals_are_removed_to_write_parquet_files() {
    // Journals of 2 × 10 × 500 × 24 bytes fill the disk; the Parquet files take a third of that.
    let disk = Disk::new(192);
    let writer = DatasetWriter::start(options(&disk)).unwrap();
    for n in 0..10 {
        submit(&writer, n);
    }
    assert!(writer.stats().errors > 0, "the journals fit");
    let summary = writer.finish().unwrap();
    assert!(summary.is_complete(), "{summary:?}");
    assert_counted(&summary, &disk.path().join("run"), 10);
}

#[test]
fn dropped_rows_are_counted_and_the_rest_is_readable() {
    let disk = Disk::new(1024);
    let mut options = options(&disk);
    options.checkpoint = Duration::from_millis(50);
    options.memory_budget = 400_000;
    let writer = DatasetWriter::start(options).unwrap();
    let ticks = 400;
    for n in 0..ticks {
        submit(&writer, n);
        let held = writer.stats().held_bytes;
        assert!(held < 800_000, "{held} bytes in memory at tick {n}");
    }
    let summary = writer.finish().unwrap();
    assert!(!summary.is_complete());
    let tables = summary.tables.values();
    assert!(tables.clone().any(|table| table.dropped > 0), "{summary:?}");
    assert!(tables.clone().all(|table| table.parts > 0), "{summary:?}");
    let run = disk.path().join("run");
    assert_counted(&summary, &run, ticks);
}

#[test]
fn a_journal_on_a_full_disk_ends_with_a_complete_batch() {
    let disk = Disk::new(256);
    let writer = DatasetWriter::start(options(&disk)).unwrap();
    for n in 0..30 {
        submit(&writer, n);
    }
    // A copy on another disk, as after `kill -9` and the release of space.
    let copy = TempDir::new().unwrap();
    let status = Command::new("cp")
        .arg("-r")
        .arg(disk.path().join("run"))
        .arg(copy.path())
        .status()
        .unwrap();
    assert!(status.success());
    let run = copy.path().join("run");
    let report = recover(&run, Hosts::Only("node1"), DatasetSchema::EMPTY, Trust::Own).unwrap();
    assert!(report.is_complete(), "{report:?}");
    for table in ["noise", "other"] {
        let ticks = stored(&run, table);
        let written: BTreeSet<_> = (0..ticks.len() as u64).collect();
        assert!(ticks.len() >= 5, "{table}: {}", ticks.len());
        assert_eq!(ticks, written, "the first ticks, without a gap");
    }
    writer.finish().unwrap();
}

#[test]
fn recovery_on_a_full_disk_can_be_repeated() {
    let disk = Disk::new(1024);
    let writer = DatasetWriter::start(options(&disk)).unwrap();
    for n in 0..5 {
        submit(&writer, n);
    }
    let run = disk.path().join("killed");
    let status = Command::new("cp")
        .arg("-r")
        .arg(disk.path().join("run"))
        .arg(&run)
        .status()
        .unwrap();
    assert!(status.success());
    let ballast = disk.fill();
    let report = recover(&run, Hosts::Only("node1"), DatasetSchema::EMPTY, Trust::Own).unwrap();
    assert!(!report.is_complete(), "{report:?}");
    assert!(stored(&run, "noise").is_empty());
    fs::remove_file(ballast).unwrap();
    let report = recover(&run, Hosts::Only("node1"), DatasetSchema::EMPTY, Trust::Own).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(stored(&run, "noise"), (0..5).collect());
    writer.finish().unwrap();
}
