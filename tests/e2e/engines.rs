//! Programs that read Parquet find the same rows, nulls, limits and sums in every table.

use std::process::Command;

use e2e::setting;
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

#[test]
fn engines_read_every_table_and_value() {
    let directory = TempDir::new().expect("a directory");
    let run = directory.path().join("every-table");
    let status = Command::new(setting("PROFILER_TEST_EVERY_TABLE"))
        .arg(&run)
        .status();
    assert!(status.expect("it starts").success());
    let schema = Command::new(setting("PROFILER_BIN"))
        .args(["schema", "--json"])
        .output();
    let schema: Value = serde_json::from_slice(&schema.expect("it starts").stdout).expect("JSON");
    let tables = schema["tables"].as_array().expect("tables").len();
    let read = compare(run.to_str().expect("UTF-8"));
    assert_eq!(read, (tables * ENGINES.len()) as u64);
}
