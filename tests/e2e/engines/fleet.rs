//! Queries over the runs of a site.

use std::{fs, path::Path, process::Command};

use e2e::{dataset::script, setting};
use tempfile::TempDir;

const NODES: u64 = 36;
const MINUTES: u64 = 40;
/// Of a plan with all kinds of jobs.
const SEED: u64 = 1;

fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
}

/// Directories of runs.
fn runs(site: &Path) -> Vec<String> {
    let entries = fs::read_dir(site).expect("a directory").flatten();
    let mut names: Vec<_> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

#[test]
fn queries_have_the_same_results_in_duckdb_and_on_a_spark_cluster() {
    let directory = TempDir::new().expect("a directory");
    let [site, aside, expected, logs] =
        ["site", "aside", "expected", "logs"].map(|name| directory.path().join(name));
    let arguments = [NODES, MINUTES, SEED].map(|number| number.to_string());
    run(Command::new(setting("PROFILER_TEST_FLEET"))
        .arg(setting("PROFILER_TEST_SAMPLES"))
        .arg(&site)
        .args(arguments));
    let profiler = || Command::new(setting("PROFILER_BIN"));
    let names = runs(&site);
    run(profiler()
        .arg("verify")
        .args(names.iter().step_by(9).map(|name| site.join(name))));
    run(Command::new(setting("PROFILER_TEST_READERS"))
        .args(["-m", "profiler.fleet", "all", "--dataset"])
        .arg(&site)
        .arg("--output")
        .arg(&expected)
        .env(
            "PYTHONPATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../python/src"),
        ));

    // Half of the runs are compacted.
    for path in [&aside, &logs] {
        fs::create_dir(path).expect("a directory");
    }
    for name in names.iter().step_by(2) {
        fs::rename(site.join(name), aside.join(name)).expect("one file system");
    }
    run(profiler().arg("compact").arg(&site));
    for name in names.iter().step_by(2) {
        fs::rename(aside.join(name), site.join(name)).expect("one file system");
    }
    let [site, logs, expected] =
        [site, logs, expected].map(|path| path.into_os_string().into_string().expect("UTF-8"));
    let found = script(
        "PROFILER_TEST_READERS",
        "fleet.py",
        &[&site, &logs, &expected],
    );
    assert_eq!(found["problems"], serde_json::json!([]));
    assert_eq!(found["executors"], 2, "{found}");
    assert!(
        found["parts"].as_u64() > Some(0) && found["compacted"].as_u64() > Some(0),
        "{found}"
    );
    assert_eq!(found["notes"], serde_json::json!([]));
    // The generator makes node 17 slower, and repeats jobs with the same names.
    assert_eq!(found["slow_nodes"], serde_json::json!(["node00017"]));
    for (query, rows) in found["rows"].as_object().expect("rows by query") {
        assert!(rows.as_u64() > Some(0), "{query}: {found}");
    }
}
