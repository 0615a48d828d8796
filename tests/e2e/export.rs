//! `profiler export`: which rows it writes, and what it does if it cannot. That libraries read all
//! values is tested in `engines.rs`.

use std::{fs, path::Path, process::Command};

use e2e::{dataset::Dataset, setting};
use tempfile::TempDir;

use crate::{full_disk::Disk, report::record};

/// Exit code and stderr of `profiler export`.
fn export(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("export")
        .args(arguments)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("an exit code"), stderr)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

const SCRIPT: &str = "\
    sleep 0.3; SLURM_JOB_ID=77 sleep 0.4; \
    $PROFILER mark start phase; head -c 20M /dev/zero | sha256sum; sleep 0.3; $PROFILER mark end phase; \
    sleep 0.3";

fn run(directory: &TempDir) -> String {
    record(directory.path(), &[], SCRIPT)
}

/// Rows of an exported table and of the same selection in SQL.
fn assert_selects(run: &str, options: &[&str], table: &str, condition: &str) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("rows.ndjson");
    let arguments = [
        &["ndjson", run, "--table", table, "-o", text(&path)],
        options,
    ]
    .concat();
    let (code, stderr) = export(&arguments);
    assert_eq!(code, 0, "{stderr}");
    let exported = fs::read_to_string(&path).expect("written").lines().count() as u64;
    let data = Dataset::new(run.into());
    let [all, expected]: [u64; 2] = ["true", condition]
        .map(|condition| data.value(&format!("SELECT count(*) FROM {table} t WHERE {condition}")));
    assert_eq!(exported, expected, "{options:?} {table}, of {all}");
    assert!(
        expected > 0 && expected < all,
        "{options:?} {table}: {expected} of {all}"
    );
}

#[test]
fn rows_are_selected_by_time_region_and_job() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let start = "(SELECT min(start_ts) FROM run)";
    let begin = "ts - to_microseconds((interval_ns // 1000)::BIGINT)";
    let from = format!("ts > {start} + INTERVAL 500 MILLISECOND");
    assert_selects(&run, &["--from", "500ms"], "usage", &from);
    let to = format!("{begin} < {start} + INTERVAL 500 MILLISECOND");
    assert_selects(&run, &["--to", "500ms"], "usage", &to);
    let both = format!("{from} AND start_ts < {start} + INTERVAL 1 SECOND");
    let lives = both.replace("ts >", "coalesce(end_ts, 'infinity') >");
    assert_selects(&run, &["--from", "500ms", "--to", "1s"], "process", &lives);
    let region = format!(
        "EXISTS (FROM region r WHERE r.name = 'phase' AND {begin} < r.region_end_ts \
         AND t.ts > r.region_start_ts)"
    );
    assert_selects(
        &run,
        &["--region", "phase"],
        "system",
        &region
            .replace("ts - ", "t.ts - ")
            .replace("interval_ns", "t.interval_ns"),
    );
    let job = "(pid, start_ts) IN (SELECT (pid, start_ts) FROM process WHERE job_id = '77')";
    assert_selects(&run, &["--jobid", "77"], "usage", job);
    let data = Dataset::new(run.clone().into());
    let time: String = data.value(&format!(
        "SELECT strftime({start} + INTERVAL 500 MILLISECOND, '%Y-%m-%dT%H:%M:%S.%fZ')"
    ));
    assert_selects(&run, &["--from", &time], "usage", &from);
}

#[test]
fn existing_files_remain_and_nothing_is_half_written() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let path = directory.path().join("usage.csv");
    fs::write(&path, "mine").expect("written");
    let arguments = ["csv", &run, "--table", "usage", "-o", text(&path)];
    let (code, stderr) = export(&arguments);
    assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    assert!(stderr.contains("--force"), "{stderr}");
    assert_eq!(fs::read_to_string(&path).expect("there"), "mine");
    assert_eq!(export(&[&arguments[..], &["--force"]].concat()).0, 0);
    assert!(fs::read_to_string(&path).expect("there").starts_with("ts,"));

    // All tables or none.
    let tables = directory.path().join("tables");
    fs::create_dir(&tables).expect("made");
    fs::write(tables.join("usage.json"), "mine").expect("written");
    let (code, stderr) = export(&["json", &run, "-o", text(&tables)]);
    assert_eq!(code, 5, "{stderr}");
    assert_eq!(fs::read_dir(&tables).expect("there").count(), 1);

    let (code, stderr) = export(&["csv", &run, "--table", "nothing", "-o", "-"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("usage"), "{stderr}");
    assert_eq!(export(&["csv", &run, "-o", "-"]).0, 2);
    assert_eq!(
        export(&["csv", &run, "-o", "/nonexistent/x", "--table", "usage"]).0,
        5
    );
    assert_eq!(export(&["csv", "/nonexistent", "-o", text(&tables)]).0, 3);
    assert_eq!(
        export(&["csv", &run, "-o", text(&tables), "--from", "yesterday"]).0,
        2
    );
}

#[test]
fn full_disk_leaves_no_files() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let disk = Disk::new("32k");
    let output = disk.path().join("tables");
    let (code, stderr) = export(&["json", &run, "-o", text(&output)]);
    assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert_eq!(fs::read_dir(&output).expect("there").count(), 0);
}

#[test]
fn damaged_files_are_named_and_the_others_exported() {
    let directory = TempDir::new().expect("a directory");
    let run = run(&directory);
    let data = Dataset::new(run.clone().into());
    let usage = data
        .files()
        .into_iter()
        .find(|path| text(path).contains("/usage/"));
    let damaged = usage.expect("a file");
    let length = fs::metadata(&damaged).expect("there").len();
    let file = fs::OpenOptions::new().write(true).open(&damaged);
    file.and_then(|file| file.set_len(length / 2))
        .expect("truncated");
    let output = directory.path().join("tables");
    let (code, stderr) = export(&["csv", &run, "-o", text(&output)]);
    assert_eq!(code, 5, "{stderr}");
    let name = damaged
        .file_name()
        .expect("a name")
        .to_str()
        .expect("UTF-8");
    assert!(
        stderr.contains("usage/host=") && stderr.contains(name),
        "{stderr}"
    );
    let sched = fs::read_to_string(output.join("sched.csv")).expect("written");
    assert!(sched.lines().count() > 1);
}
