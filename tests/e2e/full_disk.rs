//! A full disk: the target is not disturbed, existing files remain intact, and losses are counted
//! and reported.

use std::{
    collections::HashSet,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use e2e::{
    dataset::{Dataset, python},
    procfs::Reading,
    runs::{Profiler, wait_until},
    setting,
    workload_driver::WorkloadDriver,
};

use crate::WORKLOAD;

/// A tmpfs for the output.
pub struct Disk(tempfile::TempDir);

impl Disk {
    pub fn new(size: &str) -> Self {
        let directory = tempfile::TempDir::new().expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(directory.path())
            .status();
        assert!(mounted.expect("mount").success());
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self) -> Dataset {
        let runs = std::fs::read_dir(self.path().join("out")).expect("runs");
        let mut runs = runs.map(|entry| entry.expect("an entry").path());
        Dataset::new(runs.find(|path| path.is_dir()).expect("a run"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn fill(disk: &Disk) -> std::path::PathBuf {
    let path = disk.path().join("filler");
    let mut filler = std::fs::File::create(&path).expect("a file");
    std::io::copy(&mut std::io::repeat(1), &mut filler).expect_err("it is full");
    path
}

/// Rows of a table in journals, read with pyarrow. The last message of a journal can be incomplete.
fn journalled_rows(run: &Dataset, table: &str) -> u64 {
    let script = r#"
import pathlib, sys
import pyarrow as pa
rows = 0
for path in pathlib.Path(sys.argv[1], sys.argv[2]).rglob("_part-*.arrows"):
    with pa.memory_map(str(path)) as source:
        try:
            for batch in pa.ipc.open_stream(source): rows += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error: print(path, error, file=sys.stderr)
print(rows)
"#;
    let output = Command::new(setting("PROFILER_TEST_PYTHON"))
        .args(["-c", script])
        .args([run.path().as_os_str(), table.as_ref()])
        .output()
        .expect("Python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let rows = String::from_utf8_lossy(&output.stdout);
    rows.trim().parse().expect("a number")
}

/// CPU time of the profiler per second while the target works. The minimum of several repetitions
/// excludes most of the noise of other processes.
fn cpu_share(workload: &mut WorkloadDriver, profiler: u32) -> f64 {
    let used = || Reading::now(profiler).sum(|thread| thread.oncpu_ns);
    let shares = [(); 5].map(|()| {
        let (begin, before) = (Instant::now(), used());
        workload.run("nap 200");
        let used = Duration::from_nanos(used() - before);
        used.div_duration_f64(begin.elapsed())
    });
    shares.into_iter().fold(f64::INFINITY, f64::min)
}

#[test]
fn full_disk_drops_rows_but_keeps_files_and_target() {
    let disk = Disk::new("4m");
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let mut profiler = Profiler::writing_to(&disk.path().join("out"))
        .args(["-i", "20ms", "--checkpoint", "300ms"])
        .pid(workload.pid())
        .start();
    let files = || {
        let files = disk.run().files();
        files
            .iter()
            .filter(|path| path.ends_with("part-00001.parquet"))
            .count()
    };
    wait_until("each table has two Parquet files", || files() >= 5);
    let with_room = cpu_share(&mut workload, profiler.pid());
    let filler = fill(&disk);
    profiler.wait_for("No space left");
    // Retries also cost CPU time, but less than the rows.
    let full = cpu_share(&mut workload, profiler.pid());
    assert!(
        full < 2.0 * with_room,
        "the profiler used {full} CPUs while the disk was full, {with_room} before"
    );
    let finished = profiler.interrupt();
    assert_eq!(finished.code(), 5, "{}", finished.stderr);
    let last = finished.stderr.lines().last().expect("a line");
    assert!(
        last.starts_with("profiler: ") && last.contains("rows lost"),
        "{last}"
    );
    // Each table reports each problem once, not at every sample.
    let lines = finished.stderr.lines();
    let problems = lines.filter_map(|line| line.strip_prefix("profiler: output: "));
    let mut reported = HashSet::new();
    for problem in problems.flat_map(|line| line.split("; ")) {
        assert!(problem.contains("No space left"), "{problem}");
        assert!(reported.insert(problem), "{}", finished.stderr);
    }
    assert!(!reported.is_empty(), "{}", finished.stderr);
    let run = disk.run();
    python(
        "read_all.py",
        &["--full", run.path().to_str().expect("UTF-8")],
    );
    let ticks: u64 = run.value("SELECT count(*) FROM system");
    assert!(ticks >= 15, "{ticks}");
    let held = journalled_rows(&run, "system");
    // The rest of the journals can be recovered when space is available.
    std::fs::remove_file(filler).expect("it goes");
    crate::crash::recover(run.path());
    python("read_all.py", &[run.path().to_str().expect("UTF-8")]);
    let more: u64 = run.value("SELECT count(*) FROM system");
    assert_eq!(more, ticks + held, "of {ticks} and {held} in the journal");
}

#[test]
fn held_rows_are_written_when_space_returns() {
    let disk = Disk::new("4m");
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let mut profiler = Profiler::writing_to(&disk.path().join("out"))
        .args(["-i", "20ms", "--checkpoint", "200ms"])
        .pid(workload.pid())
        .start();
    let filler = fill(&disk);
    profiler.wait_for("No space left");
    std::fs::remove_file(filler).expect("it goes");
    let files = || {
        let files = disk.run().files();
        files
            .iter()
            .filter(|path| path.ends_with("part-00000.parquet"))
            .count()
    };
    wait_until("there are new Parquet files", || files() >= 5);
    let finished = profiler.interrupt();
    let run = disk.run();
    let (ticks, missed) = crate::samples::count(&run);
    let lost: u64 = run.value("SELECT sum(dropped) FROM overhead WHERE component_kind = 'sink'");
    let span: u64 =
        run.value("SELECT sum(interval_ns) FROM overhead WHERE component_kind = 'profiler'");
    if finished.code() == 0 {
        // Without a loss, no sample is missing.
        assert_eq!(lost, 0);
        let due = span / 20_000_000;
        assert!(
            (due..=due + 1).contains(&(ticks + missed)),
            "{ticks}, not {due}"
        );
        run.assert_complete();
    } else {
        assert_eq!(finished.code(), 5, "{}", finished.stderr);
        assert!(lost > 0);
    }
}

#[test]
fn run_refuses_to_start_on_a_full_disk() {
    let disk = Disk::new("1m");
    fill(&disk);
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let refused = Profiler::writing_to(&disk.path().join("out"))
        .pid(workload.pid())
        .finish();
    refused.assert_refused(5, "No space left");
}
