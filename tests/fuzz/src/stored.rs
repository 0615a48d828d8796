//! A stored run of two hosts, described by edits of plausible tables.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::PathBuf,
    sync::Arc,
};

use arrow::{
    array::{
        ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
        UInt64Array, new_null_array,
    },
    buffer::OffsetBuffer,
    compute::cast,
    datatypes::{DataType, Field, Schema, TimeUnit},
    ipc::writer::StreamWriter,
};
use profiler::{
    output::dataset::{
        journal,
        metadata::RUN_ID,
        parquet_file::{self, Encoder},
    },
    schema::Table,
    sources::dataset_schema,
};
use serde_json::{Value as Json, json};

/// Hosts; the second one has files only if an edit names it.
pub const HOSTS: [&str; 2] = ["node1", "node2"];

/// Start of the run, µs since 1970-01-01 UTC.
pub const START: i64 = 1_790_000_000_000_000;
const SECOND: i64 = 1_000_000;

/// Rows of a table before the edits, one for each second.
const ROWS: i64 = 3;
/// Limit of the rows of a table.
const MOST_ROWS: usize = 24;

/// Values that are hard for readers.
const NUMBERS: [Value; 14] = [
    Value::Int(0),
    Value::Int(-1),
    Value::Int(i64::MIN),
    Value::Int(i64::MAX),
    Value::Int(i64::MAX / 1000),
    Value::Int(i64::MIN / 1000),
    Value::Unsigned(u64::MAX),
    Value::Real(f64::NAN),
    Value::Real(f64::INFINITY),
    Value::Real(f64::NEG_INFINITY),
    Value::Real(f64::MAX),
    Value::Real(f64::MIN_POSITIVE),
    Value::Real(-0.5),
    Value::Real(1e18),
];

/// Names that the figures ask for, and texts that are hard for writers.
const TEXTS: [&str; 52] = [
    "",
    "a",
    "b",
    "/",
    "read",
    "write",
    "target",
    "node",
    "loopback",
    "tcp",
    "package",
    "dram",
    "core",
    "uncore",
    "profiler",
    "start",
    "futex",
    "retiring",
    "frontend_bound",
    "backend_bound",
    "bad_speculation",
    "mem_read_bw",
    "mem_read_bw_est",
    "llc_miss_local_bw",
    "llc_miss_remote_bw",
    "smt_contention",
    "vec_ratio_dp",
    "vec_ratio_sp",
    "jax_peak_bytes",
    "running",
    "complete",
    "recovered",
    "incomplete",
    "0",
    "1",
    "0-3",
    "-1",
    "NaN",
    "1e999",
    "=1+1",
    "a,\"b\"",
    "a\nb\tc",
    "\u{1b}[2J",
    "\0",
    "\u{202e}\u{2028}",
    "</script><script>",
    "|`*_[x](y)",
    "{\"a\": [1]}",
    "[1, null, \"x\"]",
    "../../x",
    "2026-01-31T12:00:00Z",
    "\u{10ffff}é",
];

#[derive(Clone, Copy, Debug)]
enum Value {
    Int(i64),
    Unsigned(u64),
    Real(f64),
    Text(&'static str),
}

impl Value {
    /// A value from two bytes: from a list, or `number` shifted, from zero or the start of the run.
    fn new(selector: u8, number: u8) -> Self {
        let shifted = i64::from(number).wrapping_shl(u32::from(selector & 63));
        match selector >> 6 {
            0 if selector < 32 => NUMBERS[usize::from(number) % NUMBERS.len()],
            0 => Self::Text(TEXTS[usize::from(number) % TEXTS.len()]),
            1 => Self::Int(shifted),
            2 => Self::Int(START.wrapping_add(shifted)),
            _ => Self::Int(START.wrapping_sub(shifted)),
        }
    }

    fn json(self) -> Json {
        match self {
            Self::Int(value) => value.into(),
            Self::Unsigned(value) => value.into(),
            Self::Real(value) => value.into(),
            Self::Text(text) => text.into(),
        }
    }

    /// One row with this value, null where the type has none.
    fn array(self, data_type: &DataType) -> ArrayRef {
        if let DataType::List(item) = data_type {
            let items = self.array(item.data_type());
            let offsets = OffsetBuffer::from_lengths([1]);
            return Arc::new(ListArray::new(item.clone(), offsets, items, None));
        }
        let array: ArrayRef = match (self, data_type) {
            (Self::Int(value), DataType::Boolean) => Arc::new(BooleanArray::from(vec![value > 0])),
            (Self::Int(value), _) => Arc::new(Int64Array::from(vec![value])),
            (Self::Unsigned(value), _) => Arc::new(UInt64Array::from(vec![value])),
            // As integers of times are cast, and not those of a float.
            (Self::Real(value), DataType::Timestamp(..)) => {
                Arc::new(Int64Array::from(vec![value as i64]))
            }
            (Self::Real(value), _) => Arc::new(Float64Array::from(vec![value])),
            (Self::Text(text), _) => Arc::new(StringArray::from(vec![text])),
        };
        cast(&array, data_type).unwrap_or_else(|_| new_null_array(data_type, 1))
    }
}

/// One edit: 8 bytes.
struct Edit {
    operation: u8,
    table: u16,
    column: u16,
    row: u8,
    value: Value,
    number: u8,
}

impl Edit {
    fn new(bytes: &[u8; 8]) -> Self {
        let [operation, t0, t1, c0, c1, row, selector, number] = *bytes;
        Self {
            operation,
            table: u16::from_le_bytes([t0, t1]),
            column: u16::from_le_bytes([c0, c1]),
            row,
            value: Value::new(selector, number),
            number,
        }
    }
}

/// The place of the name that a number stands for, whatever names are added to the others.
fn named<'a>(names: impl Iterator<Item = &'a str>, number: u16) -> Option<usize> {
    let hash = |name: &str| {
        let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = name.bytes().fold(0x811c_9dc5, step);
        (hash ^ (hash >> 16)) as u16
    };
    let distance = |(_, name): &(usize, &str)| hash(name).wrapping_sub(number);
    names
        .enumerate()
        .min_by_key(distance)
        .map(|(place, _)| place)
}

/// What a plausible row has in a column.
fn plausible(name: &str, data_type: &DataType, row: i64) -> Value {
    match (name, data_type) {
        ("start_ts", _) => Value::Int(START + row % 2 * SECOND),
        ("region_start_ts", _) => Value::Int(START + row * SECOND),
        (_, DataType::Timestamp(..)) => Value::Int(START + (row + 1) * SECOND),
        ("interval_ns", _) => Value::Int(1_000_000_000),
        ("pid" | "ppid" | "tid", _) => Value::Int(100 + row % 2),
        ("region_id", _) => Value::Int(row),
        ("task_rank" | "index" | "cpu" | "socket", _) => Value::Int(row % 2),
        (_, DataType::Float64) => Value::Real(0.25 * (row + 1) as f64),
        (_, DataType::Utf8 | DataType::Dictionary(..)) => Value::Text(TEXTS[1 + row as usize % 2]),
        _ => Value::Int((row + 1) * 1_000_000),
    }
}

/// A column: its name, its type, and a row each.
type Column = (String, DataType, Vec<ArrayRef>);

/// A table of a host.
#[derive(Clone)]
struct Rows {
    columns: Vec<Column>,
    /// Bytes of the file that are replaced, and its length.
    bytes: Vec<(u16, u8)>,
    length: Option<u16>,
    /// Whether the rows are in a journal, after a Parquet file with plausible ones.
    in_journal: bool,
}

impl Rows {
    fn plausible(table: &Table) -> Self {
        let columns = table.columns().map(|column| {
            let data_type = (column.data_type)();
            let row = |row| plausible(column.name, &data_type, row).array(&data_type);
            let rows = (0..ROWS).map(row).collect();
            (column.name.to_owned(), data_type, rows)
        });
        Self {
            columns: columns.collect(),
            bytes: Vec::new(),
            length: None,
            in_journal: false,
        }
    }

    fn edit(&mut self, edit: &Edit) {
        let names = self.columns.iter().map(|(name, ..)| name.as_str());
        let Some(place) = named(names, edit.column) else {
            return;
        };
        let (_, data_type, rows) = &mut self.columns[place];
        let row = usize::from(edit.row & 127) % rows.len().max(1);
        match edit.operation % 12 {
            0 | 1 => rows[row] = edit.value.array(data_type),
            2 => rows.fill(edit.value.array(data_type)),
            3 => rows[row] = new_null_array(data_type, 1),
            4 => rows.fill(new_null_array(data_type, 1)),
            5 => drop(self.columns.remove(place)),
            6 => {
                let types = [
                    DataType::Utf8,
                    DataType::UInt64,
                    DataType::Int32,
                    DataType::Float64,
                    DataType::Boolean,
                    DataType::Binary,
                    DataType::Date32,
                    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
                    DataType::Timestamp(TimeUnit::Second, None),
                    DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))),
                    DataType::Null,
                ];
                *data_type = types[usize::from(edit.number) % types.len()].clone();
                for row in rows {
                    *row = cast(row, data_type).unwrap_or_else(|_| new_null_array(data_type, 1));
                }
            }
            7 if rows.len() < MOST_ROWS => {
                for (.., rows) in &mut self.columns {
                    rows.push(rows[row].clone());
                }
            }
            8 => {
                for (.., rows) in &mut self.columns {
                    rows.rotate_left(row);
                }
            }
            9 => self.bytes.push((edit.column, edit.number)),
            10 => self.length = Some(edit.column),
            11 => self.in_journal = true,
            _ => {}
        }
    }

    fn batch(&self, metadata: HashMap<String, String>) -> Option<RecordBatch> {
        let fields = self.columns.iter();
        let fields: Vec<_> = fields
            .map(|(name, data_type, _)| Field::new(name, data_type.clone(), true))
            .collect();
        let columns = self.columns.iter().map(|(.., rows)| {
            let rows: Vec<_> = rows.iter().map(|row| &**row).collect();
            arrow::compute::concat(&rows)
        });
        let columns = columns.collect::<Result<Vec<_>, _>>().ok()?;
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        RecordBatch::try_new(schema, columns).ok()
    }

    /// The Parquet file or the journal; none if the rows cannot be stored.
    fn file(&self, metadata: HashMap<String, String>) -> Option<Vec<u8>> {
        let batch = self.batch(metadata)?;
        let mut file = if self.in_journal {
            let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).ok()?;
            writer.write(&batch).ok()?;
            writer.into_inner().ok()?
        } else {
            let mut encoder = Encoder::new(batch.schema()).ok()?;
            encoder.encode(&[batch]).ok()?;
            encoder.finish().ok()?
        };
        for (place, byte) in &self.bytes {
            let place = usize::from(*place) % file.len();
            file[place] = *byte;
        }
        file.truncate(self.length.map_or(file.len(), usize::from));
        Some(file)
    }
}

fn manifest(host: &str) -> Json {
    let ns = |us: i64| us * 1000;
    let rows = json!({"rows": ROWS, "parts": 1, "dropped": 0, "in_journal": 0});
    let session = |start: i64, end: i64| {
        json!({
            "run_id": "run", "hostname": host, "state": "complete", "version": "0.1.0",
            "schema_version": 4, "start": "2026-09-21T13:46:40Z", "start_ts": ns(start),
            "end": "2026-09-21T13:46:44Z", "end_ts": ns(end), "command": ["profiler", "run", "a"],
            "config": {"interval_ns": 1_000_000_000, "sources": ["usage"], "threads": false},
            "labels": {"code": "x"},
            "target": {"what": "a", "pids": [100], "node": false, "job": {"id": "7", "scheduler": "slurm"}},
            "kernel": "6.1", "user": "u", "uid": 1000, "exit_code": 0,
            "process": {"boot_id": "x", "pid": 1, "start_ticks": 1, "pid_namespace": 1},
            "sources": [
                {"name": "usage", "status": "ok"},
                {"name": "gpu", "status": "unavailable", "why": "no GPU"}
            ],
            "tables": {"usage": rows, "process": rows},
            "losses": [{"what": "samples", "count": 1, "why": "late", "uid": 1000}],
            "refused_claims": {"1000": 2}, "samples": ROWS,
            "clock": {"start": {"synchronized": true, "offset_ns": 1, "max_error_ns": 1000}, "end": null}
        })
    };
    let mut last = session(START, START + (ROWS + 1) * SECOND);
    last["earlier"] = json!([session(START - 9 * SECOND, START - 5 * SECOND)]);
    last
}

/// The places of all values of a document, as JSON pointers.
fn pointers(value: &Json, at: &str, all: &mut Vec<String>) {
    let mut add = |key: &str, value| pointers(value, &format!("{at}/{key}"), all);
    match value {
        Json::Object(fields) => fields.iter().for_each(|(key, value)| add(key, value)),
        Json::Array(items) => (0..)
            .zip(items)
            .for_each(|(n, item)| add(&format!("{n}"), item)),
        _ => {}
    }
    all.push(at.to_owned());
}

fn edit_manifest(manifest: &mut Json, edit: &Edit) {
    let mut all = Vec::new();
    pointers(manifest, "", &mut all);
    let place = named(all.iter().map(String::as_str), edit.column);
    let place = place.and_then(|place| manifest.pointer_mut(&all[place]));
    let Some(place) = place else { return };
    *place = match edit.row % 4 {
        0 => Json::Null,
        1 => json!([edit.value.json(), place.take()]),
        2 => json!({"id": edit.value.json(), "a": place.take()}),
        _ => edit.value.json(),
    };
}

/// A directory with a run and with what is made of it.
pub struct Directory {
    path: PathBuf,
    /// Parquet files of tables without edits, by number of the table.
    plausible: HashMap<usize, Vec<u8>>,
}

impl Directory {
    pub fn new(target: &str) -> Self {
        let name = format!("profiler-fuzz-{target}-{}", std::process::id());
        Self {
            path: std::env::temp_dir().join(name),
            plausible: HashMap::new(),
        }
    }

    pub fn run(&self) -> PathBuf {
        self.path.join("run")
    }

    /// An empty directory at the begin of each input.
    pub fn output(&self) -> PathBuf {
        self.path.join("output")
    }

    /// Writes the run that edits of 8 bytes describe.
    pub fn write(&mut self, edits: &[u8]) {
        let _ = fs::remove_dir_all(&self.path);
        for directory in [self.run(), self.output()] {
            fs::create_dir_all(directory).unwrap();
        }
        let tables: Vec<_> = dataset_schema().tables().collect();
        let mut manifests = [Some(manifest(HOSTS[0])), None];
        let mut all: BTreeMap<(usize, usize), Option<Rows>> = BTreeMap::new();
        for bytes in edits.as_chunks().0 {
            let edit = Edit::new(bytes);
            let host = usize::from(edit.row >> 7);
            match edit.operation >> 4 {
                0 => edit_manifest(
                    manifests[host].get_or_insert_with(|| manifest(HOSTS[host])),
                    &edit,
                ),
                1 => manifests[host] = None,
                kind => {
                    let Some(table) = named(tables.iter().map(|table| table.name), edit.table)
                    else {
                        continue;
                    };
                    let rows = all.entry((host, table)).or_default();
                    if kind > 2 {
                        let rows = rows.get_or_insert_with(|| Rows::plausible(tables[table]));
                        rows.edit(&edit);
                    }
                }
            }
        }
        for (host, manifest) in manifests.iter().enumerate() {
            let Some(manifest) = manifest else { continue };
            let name = match host {
                0 => "run.json".to_owned(),
                host => format!("run.{}.json", HOSTS[host]),
            };
            fs::write(self.run().join(name), manifest.to_string()).unwrap();
        }
        for ((host, table), rows) in all {
            let name = tables[table].name;
            let directory = self.run().join(name).join(format!("host={}", HOSTS[host]));
            fs::create_dir_all(&directory).unwrap();
            let metadata = || HashMap::from([(RUN_ID.to_owned(), "run".to_owned())]);
            if rows.as_ref().is_none_or(|rows| rows.in_journal) {
                let plausible = || Rows::plausible(tables[table]).file(metadata()).unwrap();
                let file = self.plausible.entry(table).or_insert_with(plausible);
                fs::write(directory.join(parquet_file::name(0)), file).unwrap();
            }
            if let Some(rows) = rows {
                let file = rows.file(metadata()).unwrap_or_default();
                let name = if rows.in_journal {
                    journal::name(1)
                } else {
                    parquet_file::name(0)
                };
                fs::write(directory.join(name), file).unwrap();
            }
        }
    }

    /// All files with their content.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut directories = vec![self.run()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    directories.push(entry.path());
                } else {
                    files.insert(entry.path(), fs::read(entry.path()).unwrap());
                }
            }
        }
        files
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
