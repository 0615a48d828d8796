//! Recorded samples, and their variations.

use std::{collections::BTreeMap, fs::File, path::Path, sync::Arc};

use arrow::{
    array::{
        Array as _, ArrayRef, AsArray as _, Float64Array, RecordBatch, StringArray, UInt32Array,
        UInt64Array, new_null_array,
    },
    compute::{cast, concat_batches},
    datatypes::{
        DataType, Float64Type, SchemaRef, TimeUnit, TimestampMicrosecondType, UInt32Type,
        UInt64Type,
    },
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use profiler::{
    schema::{Batch, Table},
    sources::dataset_schema,
};

/// Length of the recordings, and of what is made of them, in µs.
pub const MINUTE: i64 = 60_000_000;
/// Sampled times are moved by this towards the start, so that the last one is within the minute.
const EARLIER: i64 = 300_000;

/// Power of a node without load, the rest of it at full load, and that of a busy CPU, W.
const IDLE_WATTS: f64 = 80.0;
const LOAD_WATTS: f64 = 110.0;
const CPU_WATTS: f64 = 55.0;
const GPUS: u32 = 4;

const BUSY: [&str; 8] = [
    "user_ns",
    "nice_ns",
    "system_ns",
    "irq_ns",
    "softirq_ns",
    "steal_ns",
    "guest_ns",
    "guest_nice_ns",
];

/// Samples of a minute, by table.
pub struct Samples {
    tables: BTreeMap<&'static str, (&'static Table, RecordBatch)>,
    /// µs since 1970.
    start: i64,
}

/// How a recorded minute is changed.
pub struct Variation {
    /// Start of the minute, µs since 1970.
    pub at: i64,
    /// Number added to process ids.
    pub pid: u32,
    /// What counters are multiplied with.
    pub factor: f64,
    pub gpus: bool,
}

impl Samples {
    /// Reads a run.
    pub fn read(run: &Path) -> Self {
        let text = std::fs::read_to_string(run.join("run.json")).expect("a recorded run");
        let manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let host = manifest["hostname"].as_str().expect("a host");
        let mut tables = BTreeMap::new();
        for table in dataset_schema()
            .tables()
            .filter(|table| table.name != "run")
        {
            let directory = run.join(table.name).join(format!("host={host}"));
            let Ok(files) = std::fs::read_dir(directory) else {
                continue;
            };
            let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
            paths.sort();
            let batches: Vec<_> = paths
                .iter()
                .flat_map(|path| read(path, &table.schema()))
                .collect();
            let rows = concat_batches(&table.schema(), &batches).expect("one schema");
            tables.insert(table.name, (table, rows));
        }
        let start = manifest["start_ts"].as_i64().expect("a start") / 1000;
        Self { tables, start }
    }

    /// The rows of processes.
    pub fn of_processes(&self, variation: &Variation) -> Vec<Batch> {
        let has_pid = |table: &Table| table.schema().index_of("pid").is_ok();
        let mut batches = self.varied(variation, has_pid);
        if variation.gpus {
            batches.push(self.gpu_processes(variation));
        }
        batches
    }

    /// The rows of the node; facts that do not change are only in its `first` minute.
    pub fn of_node(&self, variation: &Variation, first: bool) -> Vec<Batch> {
        let of_node = |table: &Table| {
            let once = ["host", "baseline"].contains(&table.name);
            table.schema().index_of("pid").is_err() && (first || !once)
        };
        let mut batches = self.varied(variation, of_node);
        let power = self.power(variation);
        for batch in &mut batches {
            if batch.table.name == "timeline" {
                let watts = power.column_by_name("watts").expect("a column").clone();
                let gpus = variation
                    .gpus
                    .then(|| Arc::new(Float64Array::from(vec![820.0; watts.len()])) as ArrayRef);
                batch.rows = with(&batch.rows, "package_power_w", watts);
                if let Some(gpus) = gpus {
                    batch.rows = with(&batch.rows, "gpu_power_sum_w", gpus);
                }
            }
        }
        let energy = dataset_schema().table("energy").expect("a table");
        let rows = batch_of(energy, power.num_rows(), |name| {
            power.column_by_name(name).cloned()
        });
        batches.push(Batch {
            table: energy,
            rows,
        });
        batches
    }

    fn varied(&self, variation: &Variation, wanted: impl Fn(&Table) -> bool) -> Vec<Batch> {
        let tables = self.tables.values().filter(|(table, _)| wanted(table));
        tables
            .map(|(table, rows)| Batch {
                table,
                rows: self.vary(table, rows, variation),
            })
            .collect()
    }

    fn vary(&self, table: &Table, rows: &RecordBatch, variation: &Variation) -> RecordBatch {
        let shift = variation.at - self.start - EARLIER;
        let schema = rows.schema();
        let columns = schema
            .fields()
            .iter()
            .zip(rows.columns())
            .map(|(field, column)| {
                let is_counter = field
                    .metadata()
                    .get("kind")
                    .is_some_and(|kind| kind == "counter");
                match field.data_type() {
                    DataType::Timestamp(TimeUnit::Microsecond, _) => {
                        let times = column.as_primitive::<TimestampMicrosecondType>();
                        let moved = times.unary::<_, TimestampMicrosecondType>(|time| time + shift);
                        Arc::new(moved.with_timezone("UTC")) as ArrayRef
                    }
                    DataType::UInt32 if ["pid", "ppid", "tid"].contains(&&**field.name()) => {
                        let ids = column.as_primitive::<UInt32Type>();
                        Arc::new(ids.unary::<_, UInt32Type>(|id| id + variation.pid))
                    }
                    // Histograms have the counts that their buckets add up to.
                    DataType::UInt64 if is_counter && table.name != "latency" => {
                        Arc::new(scaled(column, variation.factor))
                    }
                    _ => column.clone(),
                }
            });
        let columns = columns.collect();
        let rows = RecordBatch::try_new(rows.schema(), columns).expect("the same types");
        match table.name {
            "system" | "cpu" => with_idle(&rows, variation.factor),
            "process" => with_energy(&rows),
            _ => rows,
        }
    }

    /// Time, power and energy of the package in each sample, by a linear model.
    fn power(&self, variation: &Variation) -> RecordBatch {
        let (table, rows) = &self.tables["system"];
        let rows = self.vary(table, rows, variation);
        let busy = sums(&rows, &BUSY);
        let all = sums(&rows, &["idle_ns", "iowait_ns"]);
        let watts = busy
            .iter()
            .zip(all)
            .map(|(busy, idle)| IDLE_WATTS + LOAD_WATTS * busy / (busy + idle).max(1.0));
        let watts: Float64Array = watts.collect::<Vec<_>>().into();
        let intervals = rows
            .column_by_name("interval_ns")
            .expect("a column")
            .clone();
        let pairs = watts
            .values()
            .iter()
            .zip(intervals.as_primitive::<UInt64Type>().values());
        let energy =
            UInt64Array::from_iter_values(pairs.map(|(watts, ns)| whole(watts * *ns as f64 / 1e3)));
        let count = rows.num_rows();
        let text = |text: &str| Arc::new(StringArray::from(vec![text; count])) as ArrayRef;
        RecordBatch::try_from_iter([
            ("ts", rows.column_by_name("ts").expect("a column").clone()),
            ("interval_ns", intervals),
            ("socket", Arc::new(UInt32Array::from(vec![0; count]))),
            ("domain", text("package")),
            ("provider", text("powercap")),
            ("energy_uj", Arc::new(energy)),
            ("watts", Arc::new(watts)),
        ])
        .expect("columns of a length")
    }

    /// The process with the most CPU time uses all GPUs.
    fn gpu_processes(&self, variation: &Variation) -> Batch {
        let (sched, rows) = &self.tables["sched"];
        let rows = self.vary(sched, rows, variation);
        let mut of_processes = BTreeMap::<u32, u64>::new();
        let pids = rows
            .column_by_name("pid")
            .expect("a column")
            .as_primitive::<UInt32Type>();
        let times = rows
            .column_by_name("oncpu_ns")
            .expect("a column")
            .as_primitive::<UInt64Type>();
        for (pid, time) in pids.values().iter().zip(times.values()) {
            *of_processes.entry(*pid).or_default() += time;
        }
        let main = of_processes
            .iter()
            .max_by_key(|(_, time)| **time)
            .map_or(0, |(pid, _)| *pid);
        let samples = pids
            .values()
            .iter()
            .enumerate()
            .filter(|(_, pid)| **pid == main);
        let indices: Vec<u32> = samples
            .flat_map(|(row, _)| [u32::try_from(row).unwrap_or(0); GPUS as usize])
            .collect();
        let count = indices.len();
        let indices = UInt32Array::from(indices);
        let numbers = 0..u32::try_from(count).unwrap_or(0);
        let gpu = numbers.map(|row| row % GPUS);
        let table = dataset_schema().table("gpu_process").expect("a table");
        let rows = batch_of(table, count, |name| match name {
            "ts" | "interval_ns" | "pid" | "start_ts" => {
                let column = rows.column_by_name(name).expect("a column");
                Some(arrow::compute::take(column, &indices, None).expect("rows of the column"))
            }
            "index" => Some(Arc::new(UInt32Array::from_iter_values(gpu.clone()))),
            "sm_utilization" => {
                let busy = (0..count as u64)
                    .map(|row| 55 + (row * 7 + variation.at.unsigned_abs() / 60_000_000) % 40);
                Some(Arc::new(UInt64Array::from_iter_values(busy)))
            }
            "memory_used" => Some(Arc::new(UInt64Array::from(vec![30 << 30; count]))),
            _ => None,
        });
        Batch { table, rows }
    }
}

fn read(path: &Path, schema: &SchemaRef) -> Vec<RecordBatch> {
    let file = File::open(path).expect("a Parquet file");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let batches = reader
        .build()
        .expect("a reader")
        .map(|batch| batch.expect("rows"));
    batches
        .map(|batch| {
            let columns = schema.fields().iter().map(|field| {
                let column = batch.column_by_name(field.name()).expect("all columns");
                cast(column, field.data_type()).expect("the type of the column")
            });
            RecordBatch::try_new(schema.clone(), columns.collect()).expect("rows of the table")
        })
        .collect()
}

/// Rows with some columns; the others are null.
fn batch_of(table: &Table, rows: usize, column: impl Fn(&str) -> Option<ArrayRef>) -> RecordBatch {
    let schema = table.schema();
    let columns = schema
        .fields()
        .iter()
        .map(|field| match column(field.name()) {
            Some(column) => cast(&column, field.data_type()).expect("the type of the column"),
            None => new_null_array(field.data_type(), rows),
        });
    RecordBatch::try_new(schema.clone(), columns.collect()).expect("rows of the table")
}

fn with(rows: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let mut columns = rows.columns().to_vec();
    columns[rows.schema().index_of(name).expect("a column")] = column;
    RecordBatch::try_new(rows.schema(), columns).expect("the same type")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn scaled(column: &ArrayRef, factor: f64) -> UInt64Array {
    let values = column.as_primitive::<UInt64Type>();
    values.unary::<_, UInt64Type>(|value| whole(value as f64 * factor))
}

fn sums(rows: &RecordBatch, names: &[&str]) -> Vec<f64> {
    let columns: Vec<_> = names
        .iter()
        .map(|name| rows.column_by_name(name).expect("a column"))
        .collect();
    let of_row = |row| {
        columns
            .iter()
            .map(|column| column.as_primitive::<UInt64Type>().value(row) as f64)
            .sum()
    };
    (0..rows.num_rows()).map(of_row).collect()
}

/// The CPUs are idle for the time that scaled processes do not use.
fn with_idle(rows: &RecordBatch, factor: f64) -> RecordBatch {
    let saved = sums(rows, &BUSY)
        .into_iter()
        .map(|busy| busy / factor - busy);
    // The idle time has been scaled too.
    let idle = sums(rows, &["idle_ns"])
        .into_iter()
        .map(|idle| idle / factor);
    let idle = UInt64Array::from_iter_values(saved.zip(idle).map(|(a, b)| whole((a + b).max(0.0))));
    let iowait = scaled(
        rows.column_by_name("iowait_ns").expect("a column"),
        1.0 / factor,
    );
    with(
        &with(rows, "idle_ns", Arc::new(idle)),
        "iowait_ns",
        Arc::new(iowait),
    )
}

/// Energy of a process, by its CPU time.
fn with_energy(rows: &RecordBatch) -> RecordBatch {
    let times = rows
        .column_by_name("oncpu_ns")
        .expect("a column")
        .as_primitive::<UInt64Type>();
    let energy = times.unary::<_, Float64Type>(|ns| ns as f64 * CPU_WATTS / 1e3);
    with(rows, "energy_uj", Arc::new(energy))
}
