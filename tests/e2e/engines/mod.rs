//! Programs that read Parquet find the same rows, nulls, limits and sums in every table.

mod fleet;
mod formats;

use std::{path::Path, process::Command};

use e2e::{dataset::script, setting};
use serde_json::Value;
use tempfile::TempDir;

const ENGINES: [&str; 6] = ["duckdb", "pandas", "polars", "datafusion", "dask", "spark"];

/// Compares what the engines read with what pyarrow reads. Returns the number of tables that all
/// engines together have read.
fn compare(run: &str) -> u64 {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/readers.py");
    let output = Command::new(setting("PROFILER_TEST_READERS"))
        .args([script, run])
        .args(ENGINES)
        // Spark must not depend on the name of this machine.
        .env("SPARK_LOCAL_IP", "127.0.0.1")
        .output()
        .expect("python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["problems"], serde_json::json!([]));
    found["read"].as_u64().expect("a number")
}

/// A run with every table and every kind of value, and the number of tables.
fn every_table(directory: &Path) -> (String, usize) {
    let run = directory.join("every-table");
    let status = Command::new(setting("PROFILER_TEST_EVERY_TABLE"))
        .arg(&run)
        .status();
    assert!(status.expect("it starts").success());
    let schema = Command::new(setting("PROFILER_BIN"))
        .args(["schema", "--json"])
        .output();
    let schema: Value = serde_json::from_slice(&schema.expect("it starts").stdout).expect("JSON");
    let tables = schema["tables"].as_array().expect("tables").len();
    (run.into_os_string().into_string().expect("UTF-8"), tables)
}

#[test]
fn engines_read_every_table_and_value() {
    let directory = TempDir::new().expect("a directory");
    let (run, tables) = every_table(directory.path());
    assert_eq!(compare(&run), (tables * ENGINES.len()) as u64);
}

/// Formats of `profiler export`, each with the number of libraries that read it.
const EXPORTS: [(&str, usize); 5] = [
    ("csv", 3),
    ("json", 2),
    ("ndjson", 2),
    ("feather", 3),
    ("parquet", 3),
];

#[test]
fn libraries_read_every_exported_value() {
    let directory = TempDir::new().expect("a directory");
    let (run, tables) = every_table(directory.path());
    for (format, readers) in EXPORTS {
        let output = directory.path().join(format);
        let output = output.to_str().expect("UTF-8");
        let status = Command::new(setting("PROFILER_BIN"))
            .args(["export", format, &run, "-o", output])
            .status();
        assert!(status.expect("it starts").success());
        let found = script(
            "PROFILER_TEST_READERS",
            "exported.py",
            &[&run, format, output],
        );
        assert_eq!(found["problems"], serde_json::json!([]), "{format}");
        assert_eq!(found["read"], tables * readers, "{format}");
    }
}
