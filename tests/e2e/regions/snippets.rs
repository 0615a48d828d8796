//! The snippets of docs/regions.md, run unchanged.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    dataset::Dataset,
    runs::{Finished, Profiler},
    setting,
};

const PAGE: &str = include_str!("../../../docs/regions.md");

/// Directory of the clients.
const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients");

/// The code blocks of a language, which are one program.
fn program(language: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = PAGE.split(&fence).skip(1);
    let blocks: Vec<_> = blocks
        .map(|rest| rest.split_once("```").expect("an end").0)
        .collect();
    assert!(!blocks.is_empty(), "{language}: no code");
    for block in &blocks {
        let lines = block.lines().count();
        assert!(lines < 20, "{language}: {lines} lines");
    }
    blocks.join("\n")
}

/// Profiles a program in its own directory.
fn run(directory: &Path, command: &[&str]) -> Finished {
    let bin = PathBuf::from(setting("PROFILER_BIN"));
    let path = format!(
        "{}:{CLIENTS}/bash:{}",
        bin.parent().expect("a directory").display(),
        setting("PATH")
    );
    let directory = directory.to_str().expect("UTF-8");
    let within = [
        &["sh", "-c", "cd \"$0\" && exec \"$@\"", directory],
        command,
    ]
    .concat();
    Profiler::realtime()
        .env("PATH", path)
        .command(&within)
        .finish()
}

/// Asserts that the region `write` has 1,000,000 written bytes and that all regions have ended.
fn check(language: &str, data: &Dataset, expected: &[(&str, &str)]) {
    data.assert_complete();
    let rows: Vec<(String, String)> =
        data.rows("SELECT name, status FROM region ORDER BY region_id");
    let rows: Vec<_> = rows
        .iter()
        .map(|(name, status)| (&**name, &**status))
        .collect();
    assert_eq!(rows, expected, "{language}");
    let (written, kind): (Option<u64>, String) =
        data.row("SELECT write_chars, typeof(write_chars) FROM region_usage WHERE name = 'write'");
    let written =
        written.unwrap_or_else(|| panic!("{language}: one reading for start and end ({kind})"));
    assert!(
        (1_000_000..1_010_000).contains(&written),
        "{language}: {written}"
    );
}

fn compiled(
    directory: &Path,
    compiler: &Path,
    source: &str,
    text: &str,
    options: &[&str],
) -> String {
    fs::write(directory.join(source), text).expect("written");
    let output = Command::new(compiler)
        .current_dir(directory)
        .args(options)
        .args([source, "-o", "program"])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.is_empty(),
        "{source}: {printed}"
    );
    directory
        .join("program")
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

#[test]
fn python() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let python = setting("PROFILER_TEST_PYTHON");
    let run = run(directory.path(), &[&python, "-c", &program("python")]);
    let data = run.dataset();
    check(
        "python",
        &data,
        &[
            ("write", "finished"),
            ("fail", "finished"),
            ("inner", "error"),
        ],
    );
    let gauge: (String, f64, String) = data.row("SELECT name, value, unit FROM region_gauge");
    assert_eq!(
        gauge,
        (
            "peak_memory".to_owned(),
            f64::from(1 << 30),
            "bytes".to_owned()
        )
    );
    let attributes: String = data.value("SELECT attributes FROM region WHERE name = 'fail'");
    assert_eq!(attributes, r#"{"epoch":3}"#);
    // The program works without a profiler.
    let alone = Command::new(python)
        .current_dir(directory.path())
        .args(["-c", &program("python")])
        .env_remove("PROFILER_SOCKET")
        .output()
        .expect("python starts");
    assert!(
        alone.status.success() && alone.stderr.is_empty(),
        "{alone:?}"
    );
}

#[test]
fn bash() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let run = run(directory.path(), &["bash", "-ec", &program("bash")]);
    check(
        "bash",
        &run.dataset(),
        &[
            ("prepare", "finished"),
            ("write", "finished"),
            ("fail", "error"),
        ],
    );
}

#[test]
fn c() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let header = format!("-I{CLIENTS}/c");
    // The program does not call the second function.
    let options = ["-O1", "-Wall", "-Wextra", "-Wno-unused-function", &header];
    let program = compiled(
        directory.path(),
        Path::new("cc"),
        "program.c",
        &program("c"),
        &options,
    );
    let run = run(directory.path(), &[&program]);
    check("c", &run.dataset(), &[("write", "finished")]);
}

#[test]
fn rust() {
    let directory = tempfile::TempDir::new().expect("a directory");
    // From the cargo that runs the tests, because sudo can change PATH.
    let compiler = Path::new(env!("CARGO")).with_file_name("rustc");
    let library = directory.path().join("libprofiler_mark.rlib");
    let library = library.to_str().expect("UTF-8");
    let built = Command::new(&compiler)
        .args(["--edition=2024", "--crate-type=lib"])
        .args(["--crate-name=profiler_mark", "-o", library])
        .arg(format!("{CLIENTS}/rust/profiler-mark/src/lib.rs"))
        .status();
    assert!(built.expect("rustc starts").success());
    let client = format!("profiler_mark={library}");
    let options = ["--edition=2024", "--extern", &client];
    let program = compiled(
        directory.path(),
        &compiler,
        "program.rs",
        &program("rust"),
        &options,
    );
    let run = run(directory.path(), &[&program]);
    check("rust", &run.dataset(), &[("write", "finished")]);
}
