//! What the tests of sources share: fixture trees, ticks, and cells by name.

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
    sources::{Context, Source, SourceSpec, TickContext},
    support::{
        clock::{Clock, Tick, monotonic_ns},
        self_metrics::SelfMetrics,
    },
    tasks::TaskTable,
};

/// A directory that goes when it is dropped.
pub struct Tree(PathBuf);

impl Tree {
    /// Unpacks a machine; `user` is the test that it is for.
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

    /// Every file of the machine.
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

    /// Where a file is.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// The text of a file.
    pub fn get(&self, path: impl AsRef<Path>) -> Vec<u8> {
        fs::read(self.0.join(path)).unwrap()
    }

    /// Replaces a file's content; who has it open reads the new one.
    pub fn put(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let (path, text) = (self.0.join(path), text.as_ref());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Not by truncating: ext4 writes such a file to disk when it is closed.
        let open = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let mut file = open.unwrap();
        file.write_all(text).unwrap();
        file.set_len(text.len() as u64).unwrap();
    }

    /// Replaces a file's text.
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

    /// The host whose roots are here.
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

/// A source, read by hand.
pub struct Reader {
    source: Box<dyn Source>,
    tasks: TaskTable,
    self_metrics: SelfMetrics,
    clock: Clock,
    tick: u64,
}

impl Reader {
    /// Opens the source.
    pub fn open(spec: &SourceSpec, host: &Host) -> Self {
        Self::opened(host, Duration::from_secs(1), spec.open)
    }

    /// Opens it for ticks at an interval.
    pub fn open_for(spec: &SourceSpec, host: &Host, interval: Duration) -> Self {
        Self::opened(host, interval, spec.open)
    }

    /// Opens a source in a way of its own.
    pub fn opened(
        host: &Host,
        interval: Duration,
        open: impl FnOnce(&Context<'_>) -> anyhow::Result<Box<dyn Source>>,
    ) -> Self {
        let context = Context {
            host,
            interval,
            threads: false,
            result: None,
            node: true,
            strangers_join: false,
            perf: &Selection::default(),
            marks: Err("none"),
        };
        let clock = Clock::new();
        Self {
            source: open(&context).unwrap(),
            tasks: TaskTable::unread(host, clock),
            self_metrics: SelfMetrics::default(),
            clock,
            tick: 0,
        }
    }

    /// Reads once.
    pub fn sample(&mut self) -> anyhow::Result<Vec<Batch>> {
        self.read(false)
    }

    fn read(&mut self, last: bool) -> anyhow::Result<Vec<Batch>> {
        let (batches, result) = self.attempt(last);
        result.map(|()| batches)
    }

    /// Reads once: the rows that came in spite of the trouble.
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
            last,
            boundary: None,
        };
        let mut out = Vec::new();
        let result = self.source.sample(&sample, &mut out);
        (out, result)
    }

    /// Reads for the last time.
    pub fn last(&mut self) -> anyhow::Result<Vec<Batch>> {
        self.read(true)
    }

    /// Reads once; the rows of its only batch, none if it has none.
    pub fn rows(&mut self) -> Rows {
        let mut batches = self.sample().unwrap();
        assert!(batches.len() <= 1);
        Rows(batches.pop())
    }

    /// Reads once; the rows, and the error if there is one.
    pub fn rows_and_error(&mut self) -> (Rows, Option<String>) {
        let (mut batches, result) = self.attempt(false);
        let error = result.err().map(|error| format!("{error:#}"));
        (Rows(batches.pop()), error)
    }
}

/// The rows of one reading.
pub struct Rows(pub Option<Batch>);

impl Rows {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |batch| batch.rows.num_rows())
    }

    fn column(&self, name: &str) -> arrow::array::ArrayRef {
        let batch = self.0.as_ref().expect("a batch");
        let column = batch.rows.column_by_name(name);
        column.unwrap_or_else(|| panic!("no column {name}")).clone()
    }

    /// A number of one row.
    pub fn get(&self, row: usize, name: &str) -> Option<u64> {
        let column = cast(&self.column(name), &DataType::UInt64).unwrap();
        (!column.is_null(row)).then(|| column.as_primitive::<UInt64Type>().value(row))
    }

    /// All whole numbers of one row that are not null, by name.
    pub fn numbers(&self, row: usize) -> Vec<(String, u64)> {
        let schema = self.0.as_ref().expect("a batch").rows.schema();
        let wide = schema
            .fields()
            .iter()
            .filter(|field| *field.data_type() == DataType::UInt64);
        wide.filter_map(|field| Some((field.name().clone(), self.get(row, field.name())?)))
            .collect()
    }

    /// A fraction of one row.
    pub fn fraction(&self, row: usize, name: &str) -> Option<f64> {
        let column = self.column(name);
        (!column.is_null(row)).then(|| column.as_primitive::<Float64Type>().value(row))
    }

    /// A text of one row.
    pub fn text(&self, row: usize, name: &str) -> Option<String> {
        let column = cast(&self.column(name), &DataType::Utf8).unwrap();
        (!column.is_null(row)).then(|| column.as_string::<i32>().value(row).to_owned())
    }

    /// Names of the columns that are null in one row.
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

/// `/proc/PID/stat` of a process that sleeps, and started at this time (proc_pid_stat(5): 52 fields, it is the 22nd).
pub fn stat(pid: u32, comm: &str, start: u64) -> String {
    format!(
        "{pid} ({comm}) S 1 {}{start} {}0\n",
        "0 ".repeat(17),
        "0 ".repeat(29)
    )
}

/// Ways in which a file can be wrong.
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

/// No increase is negative or huge: 2^58 is more than any counter grows in a test, and less than any accident.
pub fn check(rows: &Rows, what: &str) {
    const SIZES: [&str; 3] = ["memory_", "swap_", "huge"];
    for row in 0..rows.len() {
        for (column, value) in rows.numbers(row) {
            let gauge = SIZES.iter().any(|prefix| column.starts_with(prefix))
                || ["runnable", "blocked", "threads", "processes", "frequency"]
                    .contains(&&column[..]);
            assert!(gauge || value < 1 << 58, "{what}: {column} = {value}");
        }
    }
}
