//! Reports of real runs, and of copies of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    dataset::{Dataset, script},
    runs::{Profiler, Running},
    setting,
};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use super::facts::{Device, Page, Use};
use crate::gpu::{GPU, Machine};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/demo.sh");

/// A report in a directory of its own.
pub struct Report {
    directory: TempDir,
}

impl Report {
    /// Writes the report of a run.
    fn of(run: &Path) -> Self {
        let directory = TempDir::new().expect("a directory");
        let report = Self { directory };
        let written = Command::new(setting("PROFILER_BIN"))
            .args(["report", "-o"])
            .args([&report.path(), run])
            .output()
            .expect("it starts");
        let stderr = String::from_utf8_lossy(&written.stderr);
        assert!(written.status.success(), "{stderr}");
        report
    }

    /// Compares two runs of the demo.
    pub fn of_comparison() -> Self {
        let runs = [(); 2].map(|()| {
            Profiler::new()
                .args(["-i", "100ms"])
                .command(&["sh", DEMO])
                .finish()
        });
        let [a, b] = runs.each_ref().map(|run| run.dataset().path().to_owned());
        let directory = TempDir::new().expect("a directory");
        let report = Self { directory };
        let written = Command::new(setting("PROFILER_BIN"))
            .args(["compare", "-o"])
            .args([&report.path(), &a, Path::new("--"), &b])
            .output()
            .expect("it starts");
        let stderr = String::from_utf8_lossy(&written.stderr);
        assert!(written.status.success(), "{stderr}");
        report
    }

    /// The PDF that the profiler makes of a run of the demo: number of pages, size of the first one in
    /// points, all text.
    pub fn pdf_of_demo() -> (usize, (f64, f64), String) {
        let run = Profiler::new()
            .args(["-i", "100ms"])
            .command(&["sh", DEMO])
            .finish();
        let directory = TempDir::new().expect("a directory");
        let pdf = directory.path().join("report.pdf");
        let written = Command::new(setting("PROFILER_BIN"))
            .args(["report", "--pdf"])
            .args([&pdf, run.dataset().path()])
            .output()
            .expect("it starts");
        let stderr = String::from_utf8_lossy(&written.stderr);
        assert!(written.status.success(), "{stderr}");
        let pdf = pdf.display().to_string();
        let facts = script("PROFILER_TEST_BROWSER", "browser.py", &["pdf", &pdf]);
        serde_json::from_value(facts).expect("facts")
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("report.html")
    }

    pub fn address(&self) -> String {
        format!("file://{}", self.path().display())
    }

    pub fn text(&self) -> String {
        fs::read_to_string(self.path()).expect("the report")
    }

    pub fn bytes(&self) -> u64 {
        fs::metadata(self.path()).expect("the report").len()
    }

    fn facts<T: DeserializeOwned>(&self, command: &str) -> T {
        let images = self.directory.path().join("image");
        // To look at them.
        let images = std::env::var_os("PROFILER_TEST_IMAGES").map_or(images, |prefix| {
            let name = std::thread::current()
                .name()
                .unwrap_or("")
                .replace("::", "-");
            Path::new(&prefix).join(name)
        });
        let [report, images] = [self.path(), images].map(|path| path.display().to_string());
        let found = script(
            "PROFILER_TEST_BROWSER",
            "browser.py",
            &[command, &report, &images],
        );
        serde_json::from_value(found.clone()).unwrap_or_else(|error| panic!("{error}: {found}"))
    }

    /// Opens, prints, and opens it without scripts.
    pub fn page(&self) -> Page {
        self.facts("page")
    }

    /// Clicks on the second GPU of a legend.
    pub fn device(&self) -> Device {
        self.facts("device")
    }

    /// Uses its controls.
    pub fn used(&self) -> Use {
        self.facts("use")
    }

    pub fn of_demo() -> Self {
        let run = Profiler::new()
            .args(["-i", "100ms"])
            .command(&["sh", DEMO])
            .finish();
        Self::of(run.dataset().path())
    }

    /// A short run of one host, repeated under other names.
    pub fn of_many_hosts(count: usize) -> Self {
        let run = Profiler::new()
            .args(["-i", "100ms", "--hostname", "node00"])
            .command(&["sh", "-c", "head -c 100M /dev/zero | sha256sum; sleep 0.5"])
            .finish();
        let data = run.dataset();
        let files = data.files();
        for number in 1..count {
            let name = format!("node{number:02}");
            for file in &files {
                let path = file.display().to_string();
                if !path.contains("/host=node00/") {
                    continue;
                }
                let copy = PathBuf::from(path.replace("/host=node00/", &format!("/host={name}/")));
                fs::create_dir_all(copy.parent().expect("below the run")).expect("a directory");
                fs::copy(file, copy).expect("a copy");
            }
            let mut manifest = data.manifest();
            manifest["hostname"] = name.as_str().into();
            let path = data.path().join(format!("run.{name}.json"));
            fs::write(path, manifest.to_string()).expect("written");
        }
        Self::of(data.path())
    }

    /// Two GPUs that do nothing.
    pub fn of_gpus() -> Self {
        let idle = "gpu0 pci 0 1 0\ngpu0 utilization 3 1\ngpu1 pci 0 2 0\ngpu1 utilization 5 1\n";
        let machine = Machine::new(&format!("{GPU}{idle}"));
        let run = machine
            .profiler()
            .args(["-i", "100ms"])
            .command(&["sh", "-c", "head -c 100M /dev/zero | sha256sum; sleep 0.5"])
            .finish();
        Self::of(run.dataset().path())
    }

    pub fn without_privileges() -> Self {
        let run = Profiler::unprivileged()
            .args(["-i", "100ms"])
            .command(&["sh", "-c", "head -c 100M /dev/zero | sha256sum; sleep 0.5"])
            .finish();
        Self::of(run.dataset().path())
    }

    /// A map has room for two of six processes.
    pub fn with_losses() -> Self {
        let script = format!(
            "for i in 1 2 3 4 5 6; do echo udp 100 | {} >/dev/null; done",
            crate::WORKLOAD
        );
        let run = Profiler::new()
            .args(["-i", "1h", "--max-entries", "2"])
            .args(["--source", "process,usage,net_io,overhead,timeline,system"])
            .command(&["sh", "-c", &script])
            .finish();
        assert!(run.stderr.contains("operations lost"), "{}", run.stderr);
        Self::of(run.dataset().path())
    }

    /// A run whose journals are not recovered.
    pub fn of_killed_run() -> Self {
        let running = long_run();
        let data = Dataset::new(running.run_dir());
        data.wait_for_row("process", "sha256sum has ended", |row| {
            row.text("comm") == Some("sha256sum") && row.i64("end_ts").is_some()
        });
        data.wait_for_samples("timeline", 2);
        let run = running.kill();
        Self::of(run.any_dataset().path())
    }

    /// A run that has ended before the first row was stored.
    pub fn without_rows() -> Self {
        let running = long_run();
        let ended = running.kill();
        let run = ended.any_dataset();
        for entry in fs::read_dir(run.path()).expect("a directory").flatten() {
            if entry.path().is_dir() {
                fs::remove_dir_all(entry.path()).expect("removed");
            }
        }
        Self::of(run.path())
    }
}

fn long_run() -> Running {
    Profiler::new()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", "head -c 100M /dev/zero | sha256sum; sleep 600"])
        .start()
}
