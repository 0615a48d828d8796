//! What the tests of sources share: fixture trees, ticks, and cells by name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use arrow::{
    array::{Array, AsArray},
    compute::cast,
    datatypes::{DataType, Float64Type, Int64Type, UInt64Type},
};
use profiler::{
    clock::{Clock, Tick, monotonic_ns},
    host::Host,
    schema::Batch,
    sources::{Context, Sample, Source, SourceSpec},
    tasks::TaskTable,
};

/// A folder that goes when it is dropped.
pub struct Tree(PathBuf);

impl Tree {
    /// A copy of a fixture's `proc` and `sys`; `test` is the name of the test.
    pub fn of(fixture: &str, test: &str) -> Self {
        let tree =
            Self(std::env::temp_dir().join(format!("profiler-{test}-{}", std::process::id())));
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        copy(&fixtures.join(fixture), &tree.0);
        tree
    }

    /// Replaces a file.
    pub fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Replaces a file's text.
    pub fn edit(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.0.join(path)).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        self.put(path, text.replacen(from, to, 1));
    }

    /// Removes a file or a folder.
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
        host(self.0.join("proc"), self.0.join("sys"))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), to).unwrap();
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A host with these roots.
pub fn host(procfs: PathBuf, sysfs: PathBuf) -> Host {
    Host {
        procfs,
        sysfs,
        hostname: "node".to_owned(),
    }
}

/// This machine.
pub fn this_host() -> Host {
    host("/proc".into(), "/sys".into())
}

/// A source, read by hand.
pub struct Reader {
    source: Box<dyn Source>,
    clock: Clock,
    tick: u64,
}

impl Reader {
    /// Opens the source.
    pub fn open(spec: &SourceSpec, host: &Host) -> Self {
        let context = Context {
            host,
            threads: false,
        };
        Self {
            source: (spec.open)(&context).unwrap(),
            clock: Clock::new(),
            tick: 0,
        }
    }

    /// Reads once.
    pub fn sample(&mut self) -> anyhow::Result<Vec<Batch>> {
        let monotonic_ns = monotonic_ns();
        let tick = Tick {
            number: self.tick,
            monotonic_ns,
            ts: self.clock.wall(monotonic_ns),
        };
        self.tick += 1;
        let mut out = Vec::new();
        let sample = Sample {
            tick,
            tasks: &TaskTable::default(),
            last: false,
        };
        self.source.sample(&sample, &mut out)?;
        Ok(out)
    }

    /// Reads once; the rows of its only batch, none if it has none.
    pub fn rows(&mut self) -> Rows {
        let mut batches = self.sample().unwrap();
        assert!(batches.len() <= 1);
        Rows(batches.pop())
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

    /// Wall clock of one row in ns.
    pub fn ts(&self, row: usize) -> i64 {
        let column = cast(&self.column("ts"), &DataType::Int64).unwrap();
        column.as_primitive::<Int64Type>().value(row)
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
