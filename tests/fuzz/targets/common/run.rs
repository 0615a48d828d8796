//! The directory of a run whose profiler is gone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use profiler::{
    commands::verify::{self, verify},
    output::dataset::recover::{Hosts, Report, recover},
};

/// The host that has written it.
pub const HOST: &str = "node1";

/// A journal of a table of lifetimes, and one of rows per tick.
pub const LIFETIMES: (&str, &[u8]) = ("process", include_bytes!("../../seeds/journals/process"));
pub const ROWS: (&str, &[u8]) = ("usage", include_bytes!("../../seeds/journals/usage"));

const MANIFEST: &str = r#"{"run_id": "run", "hostname": "node1", "state": "running",
    "process": {"pid": 1, "start_ticks": 0, "boot_id": "another"}}"#;

/// A run in an output directory of its own.
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

    /// Makes it anew, with nothing but `run.json`.
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

    /// What `profiler verify` says, in both forms.
    pub fn verify(&self) -> verify::Report {
        let report = verify(&self.path()).unwrap();
        check(&report);
        report
    }

    /// What the next start of a profiler does.
    pub fn recover(&self) -> Report {
        recover(&self.path(), Hosts::Only(HOST)).unwrap()
    }
}

/// Whatever names there are, it has one verdict, and can be shown on a terminal.
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
