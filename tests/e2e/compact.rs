//! `kill -9` of `profiler compact`: every row is found once, at every moment.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use e2e::{
    dataset::{Dataset, python},
    procfs::wall_ns,
    runs::Profiler,
    setting,
};
use serde_json::Value;

/// A run of 2026-11-23.
const OLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/version-2/complete");

fn compact(out: &Path) -> Child {
    // Rows of the old run are reduced.
    Command::new(setting("PROFILER_BIN"))
        .args(["compact", "--keep", "raw=1h,1m=forever"])
        .arg(out)
        .stdout(Stdio::null())
        .spawn()
        .expect("the profiler starts")
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.expect("cp").success());
}

/// Numbers of rows and sums of the runs in a directory, by DuckDB from `views.sql`.
fn sums(out: &Path, runs: &[String]) -> Value {
    let rows = runs.iter().map(|run| {
        let number = if run == "complete" { "0" } else { "count(*)" };
        let table = |table: &str, column: &str| {
            format!("SELECT {number}, sum({column})::UBIGINT FROM {table}")
        };
        let tables = [
            table("usage", "user_ns + system_ns"),
            table("overhead", "run_ns"),
            "SELECT count(*), sum(pid) FROM process".to_owned(),
        ];
        let sql = tables.join(" UNION ALL ");
        let path = out.join(run);
        python("read.py", &[path.to_str().expect("UTF-8"), &sql]).clone()
    });
    rows.collect()
}

/// Whether no run has Parquet files of its own, and nothing is left to do.
fn is_compacted(out: &Path, runs: &[String]) -> bool {
    let has_files = |run: &String| out.join(run).join("usage").exists();
    !runs.iter().any(has_files) && !out.join("compacted/commit.json").exists()
}

/// Kills compactions at random times. After each, the sums are those of the original rows, and the
/// next one continues.
pub fn kill_compactions(kills: u64) {
    let directory = tempfile::TempDir::new().expect("a directory");
    let original = directory.path().join("original");
    fs::create_dir(&original).expect("a directory");
    copy(Path::new(OLD), &original);
    for _ in 0..2 {
        let script = "for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done";
        let finished = Profiler::writing_to(&original)
            .args(["-i", "20ms", "--checkpoint", "200ms"])
            .command(&["sh", "-c", script])
            .finish();
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
    }
    let entries = fs::read_dir(&original).expect("a directory");
    let runs = entries.map(|entry| entry.expect("an entry"));
    let names = runs
        .filter(|run| run.path().is_dir())
        .map(|run| run.file_name());
    let runs: Vec<String> = names
        .map(|name| name.into_string().expect("UTF-8"))
        .collect();
    assert_eq!(runs.len(), 3);
    let expected = sums(&original, &runs);

    let work = directory.path().join("work");
    copy(&original, &work);
    let start = Instant::now();
    assert!(compact(&work).wait().expect("it ends").success());
    let duration = start.elapsed();
    let mut completed = 0;
    for kill in 0..kills {
        if is_compacted(&work, &runs) {
            completed += 1;
            fs::remove_dir_all(&work).expect("our directory");
            copy(&original, &work);
        }
        let mut compaction = compact(&work);
        let limit = duration.as_nanos().max(1);
        let delay = u128::from(wall_ns().unsigned_abs()) * 7919 % limit;
        std::thread::sleep(Duration::from_nanos(delay.try_into().expect("short")));
        compaction.kill().expect("a signal");
        compaction.wait().expect("it ends");
        assert_eq!(sums(&work, &runs), expected, "kill {kill}");
    }
    assert!(compact(&work).wait().expect("it ends").success());
    assert_eq!(sums(&work, &runs), expected);
    println!("{kills} kills, {completed} complete compactions");
    for run in &runs {
        let run = Dataset::new(work.join(run));
        let verified = Command::new(setting("PROFILER_BIN"))
            .arg("verify")
            .arg(run.path())
            .output()
            .expect("the profiler starts");
        let text = String::from_utf8_lossy(&verified.stdout);
        assert!(verified.status.success(), "{text}");
    }
    let usage = work.join("compacted/usage");
    assert_eq!(fs::read_dir(usage).expect("a table").count(), 2, "two days");
}

#[test]
fn killed_compactions_keep_every_row() {
    kill_compactions(6);
}
