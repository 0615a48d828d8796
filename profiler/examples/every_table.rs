//! Writes a run with rows in every table and every kind of value in every column, also those that
//! need devices: `cargo run --release --example every_table -- DIRECTORY`. The values are arbitrary
//! and the same each time.

use std::{path::Path, sync::Arc, time::Duration};

use arrow::{
    array::{
        ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch,
        StringArray, StringDictionaryBuilder, TimestampMicrosecondArray, UInt32Array, UInt64Array,
    },
    buffer::OffsetBuffer,
    datatypes::{DataType, Int32Type},
};
use profiler::{
    output::dataset::{DatasetOptions, DatasetWriter, Manifest},
    schema::{Batch, Table, run::RUN},
    sources::dataset_schema,
};

/// 2026-11-20 00:00 UTC, µs.
const START: i64 = 1_795_132_800_000_000;
const HOSTS: [&str; 2] = ["node1", "node2"];
/// Parquet files of each table and host.
const PARTS: u64 = 2;
const SAMPLES: u64 = 20;
const PROCESSES: u64 = 10;

const TEXTS: [&str; 8] = [
    "",
    "a",
    "two words",
    "it's \"quoted\", \\ and more",
    "Größe µs 日本",
    "line\nbreak\ttab",
    "{\"key\": [1, null]}",
    "🦀",
];

/// Arbitrary numbers: `xorshift64*`.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number of any magnitude, sometimes the greatest.
    fn any(&mut self) -> u64 {
        match self.below(16) {
            0 => 0,
            1 => u64::MAX,
            _ => {
                let bits = self.below(64);
                self.next() >> bits
            }
        }
    }

    fn text(&mut self) -> &'static str {
        let index = self.below(TEXTS.len() as u64);
        TEXTS[usize::try_from(index).unwrap_or(0)]
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.any().to_le_bytes();
        std::array::from_fn(|index| bytes[index])
    }

    /// An array of `rows` values, every fifth of which is null if that is allowed.
    fn array(&mut self, data_type: &DataType, nullable: bool, rows: usize) -> ArrayRef {
        let mut values = (0..rows).map(|row| (nullable && row % 5 == 2).then_some(()));
        macro_rules! array {
            ($array:ty, $value:expr) => {
                Arc::new(
                    values
                        .map(|null| match null {
                            Some(()) => None,
                            None => Some($value),
                        })
                        .collect::<$array>(),
                )
            };
        }
        match data_type {
            DataType::UInt32 => array!(UInt32Array, u32::from_le_bytes(self.bytes())),
            DataType::UInt64 => array!(UInt64Array, self.any()),
            DataType::Int32 => array!(Int32Array, i32::from_le_bytes(self.bytes())),
            DataType::Int64 => array!(Int64Array, i64::from_le_bytes(self.bytes())),
            DataType::Float64 => {
                array!(
                    Float64Array,
                    f64::from(i32::from_le_bytes(self.bytes())) / 7.0
                )
            }
            DataType::Boolean => array!(BooleanArray, self.below(2) == 1),
            DataType::Utf8 => array!(StringArray, self.text()),
            DataType::Dictionary(..) => {
                let mut labels = StringDictionaryBuilder::<Int32Type>::new();
                for null in &mut values {
                    labels.append_option(null.is_none().then(|| self.text()));
                }
                Arc::new(labels.finish())
            }
            DataType::Timestamp(..) => {
                let times = array!(
                    TimestampMicrosecondArray,
                    START + i64::from(u32::from_le_bytes(self.bytes()))
                );
                Arc::new(Arc::unwrap_or_clone(times).with_timezone("UTC"))
            }
            DataType::List(item) => {
                let nulls = values.map(|null| null.is_none()).collect::<Vec<_>>();
                let lengths: Vec<_> = nulls
                    .iter()
                    .map(|valid| if *valid { self.below(4) } else { 0 })
                    .map(|length| usize::try_from(length).unwrap_or(0))
                    .collect();
                let items = self.array(item.data_type(), false, lengths.iter().sum());
                let offsets = OffsetBuffer::from_lengths(lengths);
                let nulls = nullable.then(|| nulls.into());
                Arc::new(ListArray::new(item.clone(), offsets, items, nulls))
            }
            other => panic!("no values of type {other}"),
        }
    }
}

/// Rows of one sample; those of processes have the identities of `process`.
fn rows(numbers: &mut Numbers, table: &'static Table, sample: u64) -> Batch {
    let schema = table.schema();
    let count = usize::try_from(PROCESSES).unwrap_or(0);
    let ts = START + sample.cast_signed() * 1_000_000;
    let pid = |row: usize| 100 + u32::try_from(row).unwrap_or(0);
    let times = |time: &dyn Fn(usize) -> i64| -> ArrayRef {
        let times = TimestampMicrosecondArray::from_iter_values((0..count).map(time));
        Arc::new(times.with_timezone("UTC"))
    };
    let columns = schema.fields().iter().map(|field| match &**field.name() {
        "ts" => times(&|_| ts),
        "pid" => Arc::new(UInt32Array::from_iter_values((0..count).map(pid))) as ArrayRef,
        "start_ts" => times(&|row| START - i64::from(pid(row)) * 1_000),
        "region_id" if field.data_type() == &DataType::UInt64 => {
            Arc::new(UInt64Array::from_iter_values(0..PROCESSES))
        }
        _ => numbers.array(field.data_type(), field.is_nullable(), count),
    });
    let rows = RecordBatch::try_new(schema.clone(), columns.collect());
    Batch {
        table,
        rows: rows.expect("columns of the schema"),
    }
}

fn write(directory: &Path, host: &str, seed: u64) {
    let mut numbers = Numbers(seed);
    let run_id = directory.file_name().unwrap_or_default().to_string_lossy();
    let mut options = DatasetOptions::new(directory.to_owned(), host, &run_id);
    let mut manifest = Manifest::new(&run_id, host, START * 1_000).expect("/proc");
    manifest.labels = "env=prod,team=a b".parse().expect("labels");
    options.manifest = Some(manifest);
    options.schema = dataset_schema();
    options.checkpoint = Duration::from_millis(100);
    let tables = || {
        dataset_schema()
            .tables()
            .filter(|table| table.name != RUN.name)
    };
    let writer = DatasetWriter::start(options).expect("a writer");
    for part in 0..PARTS {
        for sample in 0..SAMPLES {
            let sample = part * SAMPLES + sample;
            // A keyed table has one row for each key.
            let of_sample = tables().filter(|table| !table.keyed || sample == 0);
            writer.write(
                of_sample
                    .map(|table| rows(&mut numbers, table, sample))
                    .collect(),
            );
        }
        let parts = writer.stats().parts;
        while part + 1 < PARTS && writer.stats().parts < parts + tables().count() as u64 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let summary = writer.finish().expect("a summary");
    assert!(summary.is_complete(), "{summary:?}");
}

fn main() {
    let directory = std::env::args_os().nth(1).expect("DIRECTORY");
    for (number, host) in HOSTS.into_iter().enumerate() {
        write(Path::new(&directory), host, 7 + number as u64);
    }
}
