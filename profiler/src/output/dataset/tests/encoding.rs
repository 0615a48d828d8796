//! Space that columns take in a file.

use std::collections::BTreeMap;

use parquet::file::reader::{FileReader as _, SerializedFileReader};

use crate::{
    columns,
    output::dataset::parquet_file::Encoder,
    schema::{ProcessKey, TableBuilder, Timestamp, TypedTable},
};

columns! {
    /// A row of a process that runs at each sample.
    pub struct Work {
        busy_ns: u64 = Counter("ns", "A different time in each row"),
        calls: u64 = Counter("1", "Nearly always the same"),
        rss: u64 = Gauge("bytes", "Different, but constant"),
    }
}

static WORK: TypedTable<ProcessKey, Work> = TypedTable::new("work", "One row per process");

const PROCESSES: u32 = 100;
const SAMPLES: i64 = 200;

/// Bytes of a row in each column.
fn sizes() -> BTreeMap<String, f64> {
    let mut builder = TableBuilder::new(&WORK);
    let mut random = 1_u64;
    for sample in 0..SAMPLES {
        for process in 0..PROCESSES {
            let different = u64::from(process).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
            // Knuth's linear congruential generator, of which the upper bits are used.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let key = ProcessKey {
                ts: Timestamp::from_us(1_700_000_000_000_000 + sample * 1_000_137),
                interval_ns: 1_000_137_000,
                pid: 1000 + process,
                start_ts: Timestamp::from_us(1_600_000_000_000_000 + different.cast_signed()),
                tid: None,
            };
            let work = Work {
                busy_ns: random >> 44,
                calls: 10 + u64::from(random >> 60 == 0),
                rss: different / 4096 * 4096,
            };
            builder.push(key, work);
        }
    }
    let mut batches = Vec::new();
    builder.finish(&mut batches);
    let rows = &batches[0].rows;
    let mut encoder = Encoder::new(rows.schema()).expect("a schema");
    encoder.encode(std::slice::from_ref(rows)).expect("memory");
    let file = bytes::Bytes::from(encoder.finish().expect("memory"));
    let file = SerializedFileReader::new(file).expect("a file");
    let mut sizes = BTreeMap::new();
    for group in file.metadata().row_groups() {
        for column in group.columns() {
            *sizes.entry(column.column_path().string()).or_default() +=
                column.compressed_size() as f64 / rows.num_rows() as f64;
        }
    }
    sizes
}

#[test]
fn rows_of_processes_take_what_differs() {
    let sizes = sizes();
    let of = |column| sizes[column];
    // 20 bits are random.
    assert!(of("busy_ns") < 4.0, "{sizes:?}");
    for column in [
        "ts",
        "interval_ns",
        "pid",
        "start_ts",
        "tid",
        "calls",
        "rss",
    ] {
        assert!(of(column) < 0.09, "{column}: {sizes:?}");
    }
}
