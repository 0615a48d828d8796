//! DuckDB, pandas and pyarrow find the types, nulls and units of the schema.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use e2e::{
    dataset::python,
    runs::{Finished, Profiler},
    setting,
};

/// A run with all sources and with threads.
fn run() -> Finished {
    let finished = Profiler::new()
        .args(["-i", "50ms", "--checkpoint", "200ms", "--threads"])
        .command(&["sh", "-c", "for i in 1 2 3; do sleep 0.15; /bin/true; done"])
        .finish();
    finished.dataset().assert_complete();
    finished
}

#[test]
fn duckdb_and_pandas_read_every_table_and_view() {
    let run = run();
    let data = run.dataset();
    let rows = python("read_all.py", &[data.path().to_str().expect("UTF-8")]);
    let rows = &rows[0];
    let manifest = data.manifest();
    let tables = manifest["tables"].as_object().expect("an object");
    for (table, state) in tables {
        assert_eq!(rows[table], state["rows"], "{table}");
        assert_eq!(state["dropped"], 0, "{table}");
    }
    for table in [
        "process", "usage", "sched", "latency", "system", "cpu", "overhead",
    ] {
        assert!(rows[table].as_u64() > Some(0), "{table}: {rows}");
    }
}

#[test]
fn files_match_the_declared_schema() {
    let run = run();
    let data = run.dataset();
    let schema = Command::new(setting("PROFILER_BIN"))
        .args(["schema", "--json"])
        .output()
        .expect("the profiler starts");
    let declared = data.path().join("../declared.json");
    fs::write(&declared, schema.stdout).expect("a file");
    let [run, declared] = [data.path(), &declared].map(|path| path.to_str().expect("UTF-8"));
    let differences = python("compare_schema.py", &[run, declared]);
    assert_eq!(differences, serde_json::json!([]));
}

#[test]
fn unavailable_values_are_null() {
    let run = run();
    let data = run.dataset();
    // smaps_rollup is not read at every sample; a running process has no end.
    let (all, without_pss): (u64, u64) =
        data.row("SELECT count(*), count(*) FILTER (pss IS NULL) FROM usage WHERE tid IS NULL");
    assert!(
        without_pss > 0 && without_pss <= all,
        "{without_pss} of {all}"
    );
    let (signalled, jobs): (u64, u64) =
        data.row("SELECT count(exit_signal), count(job_id) FROM process");
    assert_eq!((signalled, jobs), (0, 0));
    let threads: u64 = data.value("SELECT count(*) FROM usage WHERE tid IS NOT NULL");
    assert!(threads > 0);
}

#[test]
fn files_are_not_world_readable() {
    let run = run();
    for file in run.dataset().files() {
        let mode = fs::metadata(&file)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o640, "{}", file.display());
    }
}
