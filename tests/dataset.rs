//! Reading a run: with DuckDB through its own `views.sql`, or the rows of a table as they are.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{rows::Row, setting};

/// The directory of a run.
pub struct Dataset {
    path: PathBuf,
}

impl Dataset {
    /// The run in `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All rows of a table, in the order of its files. Needs no Python.
    pub fn table(&self, name: &str) -> Vec<Row> {
        let directory = self.path.join(name);
        let mut parts = self.files();
        parts.retain(|path| path.starts_with(&directory));
        parts.sort();
        parts.iter().flat_map(|part| Row::read(part)).collect()
    }

    /// The rows of a query over the views, each as a tuple.
    pub fn rows<T: DeserializeOwned>(&self, sql: &str) -> Vec<T> {
        let path = self.path.to_str().expect("UTF-8");
        let rows = python("read.py", &[path, sql]);
        serde_json::from_value(rows.clone())
            .unwrap_or_else(|error| panic!("{error}: {rows}\n{sql}"))
    }

    /// The only row of a query.
    pub fn row<T: DeserializeOwned>(&self, sql: &str) -> T {
        let mut rows: Vec<T> = self.rows(sql);
        assert_eq!(rows.len(), 1, "{sql}");
        rows.remove(0)
    }

    /// The only value of a query.
    pub fn value<T: DeserializeOwned>(&self, sql: &str) -> T {
        self.row::<(T,)>(sql).0
    }

    /// `run.json`.
    pub fn manifest(&self) -> Value {
        let text = std::fs::read(self.path.join("run.json")).expect("run.json is there");
        serde_json::from_slice(&text).expect("run.json is JSON")
    }

    /// Checks that all of it is in Parquet files.
    pub fn assert_complete(&self) {
        assert_eq!(self.manifest()["state"], "complete");
        for file in self.files() {
            let name = file.to_string_lossy();
            let expected = name.ends_with(".parquet") || name.ends_with("views.sql");
            assert!(
                expected || name.ends_with("run.json"),
                "left behind: {name}"
            );
        }
    }

    /// All files of the run.
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

/// The JSON that one of the scripts beside this file prints.
pub fn python(script: &str, args: &[&str]) -> Value {
    let output = Command::new(setting("PROFILER_TEST_PYTHON"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script))
        .args(args)
        .output()
        .expect("python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} {args:?}:\n{stderr}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}
