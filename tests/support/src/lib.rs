//! Shared by the tests of sources and the fuzz targets: fixture machines, a reader of one source,
//! and access to its rows by column name.

#![expect(
    clippy::missing_panics_doc,
    clippy::len_without_is_empty,
    reason = "a panic fails the test; tests compare numbers of rows"
)]

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use arrow::{
    array::{Array, AsArray},
    compute::cast,
    datatypes::{DataType, Float64Type, UInt64Type},
};
use profiler::{
    host::Host,
    perf::Selection,
    schema::Batch,
    sources::{OpenContext, Source, SourceSpec, TickContext},
    support::{
        clock::{Clock, Tick, monotonic_ns},
        self_metrics::SelfMetrics,
    },
    tasks::TaskTable,
};

/// The `/proc` and `/sys` of a machine in a temporary directory, removed when this is dropped.
pub struct Tree(PathBuf);

impl Tree {
    /// Unpacks a fixture; `user` is part of the directory's name.
    pub fn of(fixture: &str, user: &str) -> Self {
        let tree =
            Self(std::env::temp_dir().join(format!("profiler-{user}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&tree.0);
        let archive = match fixture {
            "arm64" => include_str!("../fixtures/arm64.txt"),
            "server" => include_str!("../fixtures/server.txt"),
            _ => include_str!("../fixtures/vm.txt"),
        };
        for file in archive.split("==> ").skip(1) {
            let (name, text) = file.split_once(" <==\n").unwrap();
            let text = text.strip_suffix('\n').unwrap();
            if let Some((name, target)) = name.split_once(" -> ") {
                let path = tree.0.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                symlink(target, path).unwrap();
            } else {
                tree.put(name, text);
            }
        }
        tree
    }

    /// Relative paths of all files, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut directories = vec![self.0.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    directories.push(entry.path());
                } else if kind.is_file() {
                    files.push(entry.path().strip_prefix(&self.0).unwrap().to_owned());
                }
            }
        }
        files.sort();
        files
    }

    /// Absolute path of a file.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// Content of a file.
    pub fn get(&self, path: impl AsRef<Path>) -> Vec<u8> {
        fs::read(self.0.join(path)).unwrap()
    }

    /// Replaces the content of a file in place, so that open descriptors read the new content.
    pub fn put(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let (path, text) = (self.0.join(path), text.as_ref());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Not truncated on open: ext4 writes such a file to disk when it is closed.
        let open = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let mut file = open.unwrap();
        file.write_all(text).unwrap();
        file.set_len(text.len() as u64).unwrap();
    }

    /// Replaces the first occurrence of `from` in a file.
    pub fn edit(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.0.join(path)).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        self.put(path, text.replacen(from, to, 1));
    }

    /// Removes a file or a directory.
    pub fn remove(&self, path: &str) {
        let path = self.0.join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// The host with these roots.
    pub fn host(&self) -> Host {
        Host::probe(
            self.0.join("proc"),
            self.0.join("sys"),
            Some("node".to_owned()),
        )
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// This machine.
pub fn this_host() -> Host {
    Host::probe("/proc", "/sys", None)
}

/// Reads a single source.
pub struct Reader {
    source: Box<dyn Source>,
    tasks: TaskTable,
    self_metrics: SelfMetrics,
    clock: Clock,
    tick: u64,
}

impl Reader {
    /// Opens a source for an interval of 1 s.
    pub fn open(spec: &SourceSpec, host: &Host) -> Self {
        Self::opened(host, Duration::from_secs(1), spec.open)
    }

    /// Opens a source for another interval.
    pub fn open_for(spec: &SourceSpec, host: &Host, interval: Duration) -> Self {
        Self::opened(host, interval, spec.open)
    }

    /// Opens a source with a function other than that of its spec.
    pub fn opened(
        host: &Host,
        interval: Duration,
        open: impl FnOnce(&OpenContext<'_>) -> anyhow::Result<Box<dyn Source>>,
    ) -> Self {
        let context = OpenContext {
            host,
            interval,
            for_user: false,
            threads: false,
            result: None,
            node: true,
            joins_without_fork: false,
            perf: &Selection::default(),
            marks: Err("none"),
        };
        let clock = Clock::new();
        Self {
            source: open(&context).unwrap(),
            tasks: TaskTable::without_reader(host, clock),
            self_metrics: SelfMetrics::default(),
            clock,
            tick: 0,
        }
    }

    /// Takes one reading.
    pub fn sample(&mut self) -> anyhow::Result<Vec<Batch>> {
        self.read(false)
    }

    fn read(&mut self, last: bool) -> anyhow::Result<Vec<Batch>> {
        let (batches, result) = self.attempt(last);
        result.map(|()| batches)
    }

    /// Takes one reading; returns its rows and its error.
    pub fn attempt(&mut self, last: bool) -> (Vec<Batch>, anyhow::Result<()>) {
        let monotonic_ns = monotonic_ns();
        let tick = Tick {
            number: self.tick,
            monotonic_ns,
            ts: self.clock.wall(monotonic_ns),
        };
        self.tick += 1;
        let sample = TickContext {
            tick,
            tasks: &self.tasks,
            self_metrics: &self.self_metrics,
            completed: &[],
            last,
            boundary: None,
        };
        let mut out = Vec::new();
        let result = self.source.sample(&sample, &mut out);
        (out, result)
    }

    /// Takes the last reading of a run.
    pub fn last(&mut self) -> anyhow::Result<Vec<Batch>> {
        self.read(true)
    }

    /// Takes one reading of at most one batch; returns its rows.
    pub fn rows(&mut self) -> Rows {
        let mut batches = self.sample().unwrap();
        assert!(batches.len() <= 1);
        Rows(batches.pop())
    }

    /// Takes one reading; returns its rows and the message of its error.
    pub fn rows_and_error(&mut self) -> (Rows, Option<String>) {
        let (mut batches, result) = self.attempt(false);
        let error = result.err().map(|error| format!("{error:#}"));
        (Rows(batches.pop()), error)
    }
}

/// The rows of one reading.
pub struct Rows(pub Option<Batch>);

impl Rows {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |batch| batch.rows.num_rows())
    }

    fn column(&self, name: &str) -> arrow::array::ArrayRef {
        let batch = self.0.as_ref().expect("a batch");
        let column = batch.rows.column_by_name(name);
        column.unwrap_or_else(|| panic!("no column {name}")).clone()
    }

    /// An integer of a row.
    pub fn get(&self, row: usize, name: &str) -> Option<u64> {
        let column = cast(&self.column(name), &DataType::UInt64).unwrap();
        (!column.is_null(row)).then(|| column.as_primitive::<UInt64Type>().value(row))
    }

    /// All integers of a row that are not null, with their column names.
    pub fn numbers(&self, row: usize) -> Vec<(String, u64)> {
        let schema = self.0.as_ref().expect("a batch").rows.schema();
        let wide = schema
            .fields()
            .iter()
            .filter(|field| *field.data_type() == DataType::UInt64);
        wide.filter_map(|field| Some((field.name().clone(), self.get(row, field.name())?)))
            .collect()
    }

    /// A floating-point number of a row.
    pub fn fraction(&self, row: usize, name: &str) -> Option<f64> {
        let column = self.column(name);
        (!column.is_null(row)).then(|| column.as_primitive::<Float64Type>().value(row))
    }

    pub fn text(&self, row: usize, name: &str) -> Option<String> {
        let column = cast(&self.column(name), &DataType::Utf8).unwrap();
        (!column.is_null(row)).then(|| column.as_string::<i32>().value(row).to_owned())
    }

    /// Names of the columns that are null in a row.
    pub fn nulls(&self, row: usize) -> Vec<String> {
        let batch = self.0.as_ref().expect("a batch");
        let schema = batch.rows.schema();
        let columns = schema.fields().iter().zip(batch.rows.columns());
        columns
            .filter(|(_, column)| column.is_null(row))
            .map(|(field, _)| field.name().clone())
            .collect()
    }
}

/// `/proc/PID/stat` of a sleeping process with this start time, which is field 22 of 52
/// (proc_pid_stat(5)).
pub fn stat(pid: u32, comm: &str, start: u64) -> String {
    format!(
        "{pid} ({comm}) S 1 {}{start} {}0\n",
        "0 ".repeat(17),
        "0 ".repeat(29)
    )
}

/// Damaged forms of a file.
pub const DAMAGES: [fn(&str) -> Vec<u8>; 9] = [
    |_| Vec::new(),
    |text| text.as_bytes()[..text.len() / 2].to_vec(),
    |text| text.as_bytes()[..text.len().saturating_sub(3)].to_vec(),
    |text| text.replace(char::is_numeric, "x").into_bytes(),
    |text| text.replace(' ', " -").into_bytes(),
    |text| {
        text.replace(['0', '1'], "99999999999999999999")
            .into_bytes()
    },
    |text| text.replace(' ', " 1844674407370955161").into_bytes(),
    |text| text.bytes().rev().collect(),
    |text| text.bytes().map(|byte| byte ^ 0xff).collect(),
];

/// Asserts that no increase is negative or implausible: no counter grows by 2^58 in a test, and
/// every underflow is larger.
pub fn check(rows: &Rows, what: &str) {
    const SIZES: [&str; 3] = ["memory_", "swap_", "huge"];
    for row in 0..rows.len() {
        for (column, value) in rows.numbers(row) {
            let gauge = SIZES.iter().any(|prefix| column.starts_with(prefix))
                || [
                    "runnable",
                    "blocked",
                    "threads",
                    "processes",
                    "frequency_hz",
                ]
                .contains(&&column[..]);
            assert!(gauge || value < 1 << 58, "{what}: {column} = {value}");
        }
    }
}
