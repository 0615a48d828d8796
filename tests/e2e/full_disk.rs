//! A full disk: the target is not disturbed, existing files remain intact, and losses are counted
//! and reported.

use std::{
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

/// Minimum over several repetitions of the time of a workload, and of the CPU time of the profiler.
struct Cost {
    took: Duration,
    profiler_ns: u64,
}

fn naps(workload: &mut WorkloadDriver, profiler: Option<u32>) -> Cost {
    let used = || profiler.map_or(0, |pid| Reading::now(pid).sum(|thread| thread.oncpu_ns));
    let costs = [(); 5].map(|()| {
        let (begin, before) = (Instant::now(), used());
        workload.run("nap 200");
        (begin.elapsed(), used() - before)
    });
    Cost {
        took: costs.map(|cost| cost.0).into_iter().min().expect("five"),
        profiler_ns: costs.map(|cost| cost.1).into_iter().min().expect("five"),
    }
}

#[test]
fn full_disk_drops_rows_but_keeps_files_and_target() {
    let disk = Disk::new("4m");
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let free = naps(&mut workload, None);
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
    let with_room = naps(&mut workload, Some(profiler.pid()));
    let filler = fill(&disk);
    profiler.wait_for("No space left");
    let full = naps(&mut workload, Some(profiler.pid()));
    // The minimum of several repetitions excludes most of the noise of other processes.
    let otherwise = free.took.max(with_room.took);
    assert!(
        full.took <= otherwise.mul_f64(1.25),
        "naps take {:?} while the disk is full, {otherwise:?} otherwise",
        full.took
    );
    // Retries also cost CPU time, but less than the rows.
    assert!(
        full.profiler_ns < 2 * with_room.profiler_ns,
        "the profiler used {} ns while the disk was full, {} before",
        full.profiler_ns,
        with_room.profiler_ns
    );
    let finished = profiler.interrupt();
    assert_eq!(finished.code(), 5, "{}", finished.stderr);
    let last = finished.stderr.lines().last().expect("a line");
    assert!(
        last.starts_with("profiler: ") && last.contains("rows lost"),
        "{last}"
    );
    let reported = finished
        .stderr
        .lines()
        .filter(|line| line.contains("No space left"));
    // Reported when it happens, not at each of the fifty samples.
    assert!((1..10).contains(&reported.count()), "{}", finished.stderr);
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
    let lost: u64 = run.value("SELECT sum(dropped) FROM overhead WHERE part = 'sink'");
    let span: u64 = run.value("SELECT sum(interval_ns) FROM overhead WHERE part = 'controller'");
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
