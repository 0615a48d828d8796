//! `--job` without a cgroup that names the job: processes found by their environment, an
//! unresponsive scheduler, waiting for a job, invalid job ids, jobs of other users, and the file of
//! a batch script.

use std::fs;

use e2e::{
    dataset::Dataset,
    runs::{Profiler, Running, wait_until},
    workload_driver::WorkloadDriver,
};
use tempfile::TempDir;

use crate::{
    WORKLOAD,
    job_layouts::{Tree, oncpu, profiler, put},
};

const USAGE: i32 = 2;
const TARGET: i32 = 3;

fn environment(id: &str) -> [(String, String); 2] {
    [("SLURM_JOB_ID", id), ("SLURM_PROCID", "0")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

fn workload_of(id: &str) -> WorkloadDriver {
    let variables = environment(id);
    let variables = variables
        .each_ref()
        .map(|(name, value)| (&name[..], &value[..]));
    WorkloadDriver::with_env(WORKLOAD, 1, &variables)
}

/// Asserts that two processes are found by their environment; the second starts later.
#[track_caller]
fn assert_found_by_environment(mut running: Running, id: &str, first: WorkloadDriver) {
    let note = "environment names it;";
    let mut second = workload_of(id);
    let pids = [first.pid(), second.pid()];
    let run = Dataset::new(running.run_dir());
    run.wait_for_row("process", "the second process is found", |row| {
        row.u64("pid") == Some(pids[1].into())
    });
    let start = oncpu(&second);
    second.run("burn 200");
    let life = oncpu(&second);
    let truth = life - start;
    assert!(!running.has_ended(), "{}", running.stderr());
    drop((first, second));
    let finished = running.finish();
    assert_eq!(
        finished.stderr.matches(note).count(),
        1,
        "{}",
        finished.stderr
    );
    let data = finished.dataset();
    data.assert_complete();
    let target = data.manifest()["target"]["job"].clone();
    assert_eq!(target["found_by"], "environment", "{target}");
    let rows: Vec<(u32, String, String, u32)> = data.rows(
        "SELECT pid, job_id, step_id, task_rank FROM process WHERE job_source = 'environment' ORDER BY start_ts",
    );
    assert_eq!(
        rows,
        pids.map(|pid| (pid, id.to_owned(), "batch".to_owned(), 0))
    );
    let counted: u64 = data.value(&format!(
        "SELECT sum(oncpu_ns) FROM sched WHERE pid = {}",
        pids[1]
    ));
    // At most its lifetime and the time of its exit, which `/proc` does not show.
    let known = truth..life + 20_000_000;
    assert!(known.contains(&counted), "{counted}, not {known:?}");
}

#[test]
fn environment_identifies_a_job_without_cgroup_and_scheduler() {
    let first = workload_of("4000010");
    let running = profiler()
        .args(["--job", "4000010", "--scheduler", "slurm"])
        .start();
    let note = "squeue is not installed or not in PATH";
    // Called once to find the job, and once when it has no process.
    assert!(running.stderr().contains(note), "{}", running.stderr());
    assert_found_by_environment(running, "4000010", first);
}

#[test]
fn hanging_scheduler_is_not_waited_for() {
    let directory = TempDir::new().expect("a directory");
    let stub = directory.path().join("squeue");
    fs::write(&stub, "#!/bin/sh\nexec /bin/sleep 600\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&stub, mode).expect("our file");
    let first = workload_of("4000011");
    let running = Profiler::new()
        .args(["-i", "100ms", "--job", "4000011", "--scheduler", "slurm"])
        .env("PATH", directory.path())
        .start();
    let note = "squeue did not answer within 5 s (2 attempts)";
    assert!(running.stderr().contains(note), "{}", running.stderr());
    assert_found_by_environment(running, "4000011", first);
}

#[test]
fn wait_times_out_without_processes() {
    let refused = profiler()
        .args([
            "--job",
            "4000012",
            "--scheduler",
            "slurm",
            "--wait",
            "200ms",
        ])
        .finish();
    refused.assert_refused(TARGET, "job 4000012 (Slurm) has no process on this node");
}

/// A wait of more than a moment is reported.
#[test]
fn waiting_is_reported() {
    let refused = profiler()
        .args(["--job", "4000017", "--scheduler", "slurm", "--wait", "3s"])
        .finish();
    assert_eq!(refused.code(), TARGET, "{}", refused.stderr);
    let mut lines = refused.stderr.lines();
    // At once, not when the wait is over.
    let first = lines.next().unwrap_or_default();
    assert!(
        first.starts_with("profiler: cannot query Slurm about job 4000017: "),
        "{first}"
    );
    assert_eq!(
        lines.next(),
        Some("profiler: waiting for job 4000017 (Slurm) on this node: 2 of 3 s (--wait)")
    );
    assert!(
        lines
            .next()
            .is_some_and(|line| line.contains("has no process on this node"))
    );
    assert_eq!(lines.next(), None);
    let quiet = profiler()
        .args([
            "--job",
            "4000017",
            "--scheduler",
            "slurm",
            "--wait",
            "3s",
            "--quiet",
        ])
        .finish();
    quiet.assert_refused(TARGET, "has no process on this node");
}

#[test]
fn invalid_job_ids_are_rejected() {
    for id in ["a b", "-x", "../x", ""] {
        let refused = profiler().args([format!("--job={id}")]).finish();
        assert_eq!(refused.code(), USAGE, "{id}: {}", refused.stderr);
        refused.assert_nothing_left();
    }
    let refused = profiler().args(["--job", "4000013"]).finish();
    refused.assert_refused(USAGE, "select it with --scheduler");
    let refused = profiler().args(["--job", "--scheduler", "pbs"]).finish();
    refused.assert_refused(USAGE, "use --job ID");
}

#[test]
fn job_of_another_user() {
    let mut tree = Tree::mounted(1);
    let group = tree.make("slurm_n1/uid_0/job_4000014/step_0/task_0");
    // Here, nothing but processes of root tells the owner.
    let other = tree.make("slurmstepd.scope/job_4000023/step_0/user/task_0");
    let workloads = [&group, &other].map(|group| {
        let workload = WorkloadDriver::new(WORKLOAD, 0);
        put(&workload, group);
        workload
    });
    // A copy that all users can execute.
    let directory = TempDir::new().expect("a directory");
    let copy = directory.path().join("profiler");
    fs::copy(e2e::setting("PROFILER_BIN"), &copy).expect("a copy");
    let script = format!(
        "chmod 755 {0} {1}; chmod 777 $(dirname $4); shift; exec setpriv --reuid 65534 --regid 65534 \
         --clear-groups {0}/profiler \"$@\"",
        directory.path().display(),
        tree.root().display(),
    );
    for (job, reason) in [
        ("4000014", "job 4000014 is of another user (uid 0)"),
        (
            "4000023",
            "job 4000023 (Slurm) has only processes of root, which do not tell its owner",
        ),
    ] {
        let refused = Profiler::wrapped_in(&["sh", "-c", &script, "sh"])
            .args(["--job", job, "--wait", "200ms"])
            .finish();
        refused.assert_refused(TARGET, reason);
    }
    drop(workloads);
}

/// The run ends when the file no longer contains INPROGRESS.
#[test]
fn stop_file_ends_the_run() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join(".ipc-4000015");
    fs::write(&file, "INPROGRESS\n").expect("written");
    let mut workload = WorkloadDriver::new(WORKLOAD, 1);
    let mut running = profiler()
        .pid(workload.pid())
        .args(["--stop-file"])
        .args([&file])
        .start();
    workload.run("burn 100");
    fs::write(&file, "INPROGRESS\n").expect("written");
    workload.run("burn 100");
    assert!(!running.has_ended(), "{}", running.stderr());
    fs::write(&file, "FINISHED\n").expect("written");
    let finished = running.finish();
    let data = finished.dataset();
    data.assert_complete();
    // A last reading, although the process still runs.
    let totals: u64 = data.value("SELECT count(oncpu_ns) FROM process WHERE end_ts IS NULL");
    assert_eq!(totals, 1);
    let refused = profiler()
        .pid(workload.pid())
        .args(["--stop-file"])
        .args([&file])
        .finish();
    refused.assert_refused(TARGET, "reads FINISHED, not INPROGRESS");
}

/// SIGINT before a process of the job has been found.
#[test]
fn waiting_can_be_interrupted() {
    let running = profiler()
        .args(["--job", "4000016", "--scheduler", "slurm"])
        .spawn();
    let catches = || {
        let status =
            fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.is_some_and(|mask| {
            u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 2 != 0)
        })
    };
    wait_until("it handles signals", catches);
    let finished = running.interrupt();
    assert_eq!(finished.code(), 130, "{}", finished.stderr);
    finished.assert_nothing_left();
}
