//! The description of a run in its dataset: the table `run`, labels, comments, the data dictionary.

use std::{fs, process::Command};

use e2e::{
    dataset::Dataset,
    runs::{Finished, Profiler, wait_until},
    setting,
};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use serde_json::{Value, json};

fn run(script: &str) -> Finished {
    Profiler::new()
        .args(["-i", "50ms", "--source", "process,usage"])
        .command(&["sh", "-c", script])
        .finish()
}

#[test]
fn run_table_has_the_result_of_the_command() {
    let run = run("sleep 0.2; exit 3");
    assert_eq!(run.code(), 3);
    let data = run.any_dataset();
    let manifest = data.manifest();
    assert_eq!(manifest["exit_code"], 3);
    let (state, code, uid, user): (String, i32, u32, String) =
        data.row("SELECT state, exit_code, uid, \"user\" FROM run");
    assert_eq!((&*state, code, uid), ("complete", 3, 0));
    assert_eq!(user, "root");
    let (rows, lost, missed): (u64, u64, u64) =
        data.row("SELECT rows, lost_rows, missed_samples FROM run");
    let tables = manifest["tables"].as_object().expect("tables").values();
    let described: u64 = tables
        .map(|table| table["rows"].as_u64().expect("rows"))
        .sum();
    assert_eq!((rows, lost), (described, 0));
    assert_eq!(missed, missed_in(&manifest));
    let (start, end): (i64, i64) = data.row("SELECT epoch_us(start_ts), epoch_us(end_ts) FROM run");
    let us = |field: &str| manifest[field].as_i64().expect("ns") / 1000;
    assert_eq!((start, end), (us("start_ts"), us("end_ts")));
    let command: String = data.value("SELECT command FROM run");
    assert!(
        command.ends_with("-- sh -c 'sleep 0.2; exit 3'"),
        "{command}"
    );
}

fn missed_in(manifest: &Value) -> u64 {
    let losses = manifest["losses"].as_array().expect("losses").iter();
    let missed = losses.filter(|loss| loss["what"] == "samples");
    missed
        .map(|loss| loss["count"].as_u64().expect("a count"))
        .sum()
}

#[test]
fn command_killed_by_a_signal_has_the_exit_code_of_the_shell() {
    let run = run("kill -TERM $$");
    assert_eq!(run.code(), 128 + 15);
    let code: i32 = run.any_dataset().value("SELECT exit_code FROM run");
    assert_eq!(code, 128 + 15);
}

#[test]
fn command_that_outlives_its_profile_has_no_exit_code() {
    let run = Profiler::new()
        .args(["-i", "50ms", "--source", "process", "-d", "100ms"])
        .command(&["sleep", "0.5"])
        .finish();
    assert_eq!(run.code(), 0);
    let (codes, ends): (u64, u64) = run
        .dataset()
        .row("SELECT count(exit_code), count(end_ts) FROM run");
    assert_eq!((codes, ends), (0, 1));
}

#[test]
fn killed_run_is_in_the_table_after_recovery() {
    let profiler = Profiler::new()
        .args(["-i", "50ms", "--source", "usage"])
        .command(&["sleep", "60"])
        .start();
    let data = Dataset::new(profiler.run_dir());
    wait_until("a row of the run", || {
        data.path().join("run").exists() && !data.table("run").is_empty()
    });
    data.wait_for_samples("usage", 1);
    let _killed = profiler.kill();
    assert_eq!(data.table("run")[0].text("state"), Some("running"));
    let status = Command::new(setting("PROFILER_BIN"))
        .arg("recover")
        .arg(data.path())
        .status();
    assert!(status.expect("it starts").success());
    let (state, rows, ends): (String, u64, u64) =
        data.row("SELECT any_value(state), sum(rows), count(end_ts) FROM run");
    let stored: u64 = data.value("SELECT count(*) FROM usage");
    assert_eq!((&*state, rows, ends), ("recovered", stored, 0));
    assert!(stored > 0);
}

#[test]
fn labels_are_in_every_place() {
    let run = Profiler::new()
        .env("PROFILER_LABELS", "env=prod,team=a b")
        .args(["-i", "50ms", "--source", "usage"])
        .args(["--label", "env=test", "--label", "note=x,y"])
        .command(&["true"])
        .finish();
    let data = run.dataset();
    let expected = json!({ "env": "test", "note": "x,y", "team": "a b" });
    assert_eq!(data.manifest()["labels"], expected);
    for file in data.files() {
        if file
            .extension()
            .is_some_and(|extension| extension == "parquet")
        {
            let reader = SerializedFileReader::new(fs::File::open(file).expect("a file"));
            let metadata = reader.expect("Parquet").metadata().file_metadata().clone();
            let pairs = metadata.key_value_metadata().expect("metadata").iter();
            let mut labels = pairs.filter(|pair| pair.key == "profiler.labels");
            let labels = labels
                .next()
                .and_then(|pair| pair.value.clone())
                .expect("labels");
            assert_eq!(
                serde_json::from_str::<Value>(&labels).expect("JSON"),
                expected
            );
        }
    }
    let teams: Vec<(String, String)> =
        data.rows("SELECT run, labels->>'team' FROM run JOIN usage USING (run, host) LIMIT 1");
    assert_eq!(teams[0].1, "a b");
}

#[test]
fn invalid_labels_are_refused() {
    for (label, text) in [("env", "write KEY=VALUE"), ("1a=b", "cannot be the key")] {
        let refused = Profiler::new()
            .args(["--label", label])
            .command(&["true"])
            .finish();
        assert_eq!(refused.code(), 2);
        assert!(refused.stderr.contains(text), "{}", refused.stderr);
        refused.assert_nothing_left();
    }
}

#[test]
fn views_and_columns_with_rows_are_explained() {
    let run = run("true");
    let data = run.dataset();
    // Those with the same meaning in all tables have no comments.
    let without: Vec<(String, String)> = data.rows(
        "SELECT DISTINCT c.table_name, column_name \
         FROM duckdb_columns() c JOIN duckdb_views() v ON v.view_name = c.table_name \
         WHERE NOT v.internal AND v.sql LIKE '%read_parquet%' AND coalesce(c.comment, '') = '' \
           AND column_name NOT IN ('ts', 'interval_ns', 'pid', 'start_ts', 'tid', 'host', 'run')",
    );
    assert_eq!(without, []);
    let without: Vec<(String,)> =
        data.rows("SELECT view_name FROM duckdb_views() WHERE NOT internal AND comment IS NULL");
    assert_eq!(without, []);
    let unit: String = data.value(
        "SELECT comment FROM duckdb_columns() WHERE table_name = 'usage' AND column_name = 'rss'",
    );
    assert!(unit.ends_with(" [bytes]"), "{unit}");
    let bytes = fs::metadata(data.path().join("views.sql")).expect("a file");
    assert!(bytes.len() < 80_000, "{}", bytes.len());
}

#[test]
fn dictionary_beside_the_runs_is_that_of_the_program() {
    let run = run("true");
    let read = |name: &str| fs::read(run.dataset().path().join("..").join(name)).expect("a file");
    let stored: Value = serde_json::from_slice(&read("schema.json")).expect("JSON");
    let printed = Command::new(setting("PROFILER_BIN"))
        .args(["schema", "--json"])
        .output();
    let printed: Value = serde_json::from_slice(&printed.expect("it starts").stdout).expect("JSON");
    assert_eq!(stored, printed);
    let readme = String::from_utf8(read("README.md")).expect("UTF-8");
    let tables = printed["tables"].as_array().expect("tables").iter();
    for table in tables.map(|table| table["table"].as_str().expect("a name")) {
        assert!(readme.contains(&format!("| `{table}` |")), "{table}");
    }
}

#[test]
fn process_tree_has_the_programs_at_the_forks() {
    let run = run("env sh -c 'sleep 0.1 & exec env sh -c \"/bin/true; exit\"'; :");
    let data = run.dataset();
    let mut paths: Vec<(String, u32)> =
        data.rows("SELECT path, depth FROM process_tree ORDER BY depth, path");
    paths.retain(|(path, _)| !path.ends_with("profiler"));
    let expected = [
        ("sh", 0),
        ("sh > sh", 1),
        ("sh > sh > sleep", 2),
        ("sh > sh > true", 2),
    ];
    let expected: Vec<_> = expected
        .map(|(path, depth)| (path.to_owned(), depth))
        .to_vec();
    assert_eq!(paths, expected);
    let wrong: u64 = data.value(
        "SELECT count(*) FROM process_tree c JOIN process_tree p \
         ON c.ppid = p.pid AND c.parent_start_ts = p.start_ts \
         WHERE c.depth <> p.depth + 1 OR c.root_pid <> p.root_pid",
    );
    assert_eq!(wrong, 0);
}

#[test]
fn several_runs_are_one_dataset() {
    let out = tempfile::TempDir::new().expect("a directory");
    for (name, team) in [("first", "team=a"), ("4711", "team=b")] {
        let run = Profiler::writing_to(out.path())
            .args([
                "-i", "50ms", "--source", "usage", "--run-id", name, "--label", team,
            ])
            .command(&["sleep", "0.1"])
            .finish();
        assert_eq!(run.code(), 0);
    }
    let data = Dataset::new(out.path().join("first"));
    let found: Vec<(String, String)> = data
        .rows("SELECT run, labels->>'team' FROM read_parquet('../*/run/*/*.parquet') ORDER BY run");
    let pair = |run: &str, team: &str| (run.to_owned(), team.to_owned());
    assert_eq!(found, [pair("4711", "b"), pair("first", "a")]);
    let each: Vec<(String, u64)> = data.rows(
        "SELECT run, count(*) FROM read_parquet('../*/usage/*/*.parquet') GROUP BY run ORDER BY run",
    );
    assert_eq!(each.len(), 2);
    assert!(each.iter().all(|(_, rows)| *rows > 0), "{each:?}");
}
