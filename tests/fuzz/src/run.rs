//! The directory of a run whose profiler was killed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use profiler::{
    commands::verify::{self, verify},
    output::dataset::{
        foreign_file::Trust,
        recover::{Hosts, RecoveryReport, recover},
    },
    sources::dataset_schema,
};

/// The host that wrote the run.
pub const HOST: &str = "node1";

/// Journal of a keyed table.
pub const KEYED: (&str, &[u8]) = ("process", include_bytes!("../seeds/journals/process"));
/// Journal of a table with rows per sample.
pub const ROWS: (&str, &[u8]) = ("usage", include_bytes!("../seeds/journals/usage"));

const MANIFEST: &str = r#"{"run_id": "run", "hostname": "node1", "state": "running",
    "process": {"pid": 1, "start_ticks": 0, "boot_id": "another"}}"#;

/// A run in its own output directory.
pub struct Run {
    out: PathBuf,
}

impl Run {
    pub fn new(target: &str) -> Self {
        let name = format!("profiler-fuzz-{target}-{}", std::process::id());
        Self {
            out: std::env::temp_dir().join(name),
        }
    }

    /// Recreates the run with only `run.json`.
    pub fn begin(&self) {
        let _ = fs::remove_dir_all(&self.out);
        self.put("run.json", MANIFEST.as_bytes());
    }

    /// The output directory.
    pub fn out(&self) -> &Path {
        &self.out
    }

    pub fn path(&self) -> PathBuf {
        self.out.join("run")
    }

    /// The directory of a table.
    pub fn table(&self, table: &str) -> PathBuf {
        self.path().join(table).join(format!("host={HOST}"))
    }

    pub fn put(&self, path: impl AsRef<Path>, content: &[u8]) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn put_journal(&self, table: &str, number: u32, content: &[u8]) {
        let name = format!("_part-{number:05}.arrows");
        self.put(self.table(table).join(name), content);
    }

    pub fn put_part(&self, table: &str, number: u32, content: &[u8]) {
        let name = format!("part-{number:05}.parquet");
        self.put(self.table(table).join(name), content);
    }

    /// Names of the files of a table, sorted.
    pub fn files(&self, table: &str) -> Vec<String> {
        let entries = fs::read_dir(self.table(table)).unwrap().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Runs `profiler verify` and checks both forms of its report.
    pub fn verify(&self) -> verify::Report {
        // As a run of another user, whose pages are decompressed and counted by the profiler.
        check(&verify(&self.path(), Trust::Nobody).unwrap());
        let report = verify(&self.path(), Trust::Own).unwrap();
        check(&report);
        report
    }

    /// Recovers the run as the next profiler would.
    pub fn recover(&self) -> RecoveryReport {
        recover(
            &self.path(),
            Hosts::Only(HOST),
            dataset_schema(),
            Trust::Own,
        )
        .unwrap()
    }
}

/// Asserts that a report has one verdict and no control characters, whatever the file names.
pub fn check(report: &verify::Report) {
    let text = report.text();
    assert!(!text.replace('\n', "").contains(char::is_control));
    let verdict = |line: &&str| ["all is well", "not all is well"].contains(line);
    assert_eq!(text.lines().filter(verdict).count(), 1);
    serde_json::to_string(report).unwrap();
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.out);
    }
}
