//! Reads a run, either with DuckDB through its `views.sql` or directly from the Parquet files.

use std::{
    ffi::OsStr,
    io::Write as _,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::{rows::Row, setting};

/// A run.
pub struct Dataset {
    path: PathBuf,
}

impl Dataset {
    /// The run in the directory `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The directory of the run.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All rows of a table, in the order of its files, read without Python.
    pub fn table(&self, name: &str) -> Vec<Row> {
        let directory = self.path.join(name);
        let mut files = self.files();
        // Others are temporary.
        let is_part = |path: &Path| path.extension().is_some_and(|end| end == "parquet");
        files.retain(|path| path.starts_with(&directory) && is_part(path));
        files.sort();
        files.iter().flat_map(|file| Row::read(file)).collect()
    }

    /// The rows of a query over the views, as tuples.
    pub fn rows<T: DeserializeOwned>(&self, sql: &str) -> Vec<T> {
        let path = self.path.to_str().expect("UTF-8");
        let rows = match std::env::var_os("PROFILER_TEST_QUERIES") {
            Some(socket) => query(&socket, path, sql),
            None => python("read.py", &[path, sql]),
        };
        serde_json::from_value(rows.clone())
            .unwrap_or_else(|error| panic!("{error}: {rows}\n{sql}"))
    }

    /// The row of a query that returns exactly one.
    pub fn row<T: DeserializeOwned>(&self, sql: &str) -> T {
        let mut rows: Vec<T> = self.rows(sql);
        assert_eq!(rows.len(), 1, "{sql}");
        rows.remove(0)
    }

    /// The value of a query that returns exactly one.
    pub fn value<T: DeserializeOwned>(&self, sql: &str) -> T {
        self.row::<(T,)>(sql).0
    }

    /// `run.json`.
    pub fn manifest(&self) -> Value {
        let json = std::fs::read(self.path.join("run.json")).expect("run.json is there");
        serde_json::from_slice(&json).expect("run.json is JSON")
    }

    /// Number of losses of a kind by `run.json`: `samples`, `rows of TABLE`.
    pub fn lost(&self, what: &str) -> u64 {
        let losses = self.manifest()["losses"].clone();
        let losses = losses.as_array().expect("a list").iter();
        let counts = losses.filter(|loss| loss["what"] == what);
        counts
            .map(|loss| loss["count"].as_u64().expect("a count"))
            .sum()
    }

    /// The findings of `profiler summary`, the one that explains most first.
    pub fn findings(&self) -> Vec<Value> {
        let findings = self.summary()["findings"].clone();
        findings.as_array().expect("a list").clone()
    }

    /// The run in `profiler summary --json`.
    pub fn summary(&self) -> Value {
        let output = Command::new(setting("PROFILER_BIN"))
            .args(["summary", "--json"])
            .arg(&self.path)
            .output()
            .expect("the profiler starts");
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["runs"][0].clone()
    }

    /// What `profiler export FORMAT` makes of the run, as JSON.
    pub fn exported(&self, format: &str) -> Value {
        let directory = TempDir::new().expect("a directory");
        let file = directory.path().join("export.json");
        let output = Command::new(setting("PROFILER_BIN"))
            .args(["export", format])
            .arg(&self.path)
            .arg("-o")
            .arg(&file)
            .output();
        assert!(output.is_ok_and(|output| output.status.success()));
        let text = std::fs::read(file).expect("an export");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Asserts that the run is complete and that no journal or temporary file is left.
    pub fn assert_complete(&self) {
        assert_eq!(self.manifest()["state"], "complete");
        for file in self.files() {
            let name = file.to_string_lossy();
            let expected = [".parquet", "/run.json", "/views.sql"];
            assert!(
                expected.iter().any(|end| name.ends_with(end)),
                "left behind: {name}"
            );
        }
    }

    /// All files below the run's directory.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut directories = vec![self.path.clone()];
        let mut files = Vec::new();
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        files
    }
}

/// The rows of a query, from the process that answers those of all tests.
fn query(socket: &OsStr, run: &str, sql: &str) -> Value {
    let mut socket = UnixStream::connect(socket).expect("the process for queries listens");
    let question = serde_json::json!({"run": run, "sql": sql});
    writeln!(socket, "{question}").expect("sent");
    let mut answer: Value = serde_json::from_reader(socket).expect("JSON");
    let error = &answer["error"];
    assert!(error.is_null(), "{error}\n{sql}");
    answer["rows"].take()
}

/// Runs a script of `tests/scripts` and returns the JSON that it prints.
pub fn python(name: &str, args: &[&str]) -> Value {
    script("PROFILER_TEST_PYTHON", name, args)
}

/// Ends Python without its clean-up, in which the threads of pyarrow abort now and then
/// (<https://github.com/apache/arrow/issues/34314>).
const RUN: &str = "import os, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
sys.stdout.flush()
os._exit(0)";

/// [`python`] with the interpreter that this setting names. Libraries may print lines before the JSON,
/// which is the last one.
pub fn script(interpreter: &str, name: &str, args: &[&str]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("scripts")
        .join(name);
    let output = Command::new(setting(interpreter))
        .args(["-c", RUN])
        .arg(script)
        .args(args)
        .output()
        .expect("python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?}:\n{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(stdout.lines().last().unwrap_or_default()).expect("JSON")
}
