//! What a scheduler says about the state of a job, played by a command: only the known end is an end.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use e2e::{
    attacker::command_as,
    dataset::Dataset,
    runs::{ProcessGroup, Profiler, Running, wait_until},
    workload_driver::WorkloadDriver,
};
use tempfile::TempDir;

use crate::WORKLOAD;

/// A directory with the commands of a scheduler, which knows one job.
struct Played {
    directory: TempDir,
}

impl Played {
    fn slurm(state: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let played = Self { directory };
        played.set(state);
        let script = format!(
            "#!/bin/sh\n\
             read state < {0}\n\
             echo >> {1}\n\
             job=${{7#--jobs=}}\n\
             echo \"$job|$job|$state|0\"\n",
            played.path("state").display(),
            played.path("queries").display(),
        );
        let stub = played.path("squeue");
        fs::write(&stub, script).expect("written");
        fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).expect("our file");
        played
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Sets the state of the job.
    fn set(&self, state: &str) {
        let new = self.path("new");
        fs::write(&new, format!("{state}\n")).expect("written");
        fs::rename(new, self.path("state")).expect("renamed");
    }

    /// Waits until the scheduler has been asked twice more.
    fn wait_for_queries(&self) {
        let count = || fs::read(self.path("queries")).map_or(0, |queries| queries.len());
        let before = count();
        wait_until("it is asked", || count() >= before + 2);
    }

    fn profiler(&self, job: &str) -> Running {
        Profiler::new()
            .args(["-i", "100ms", "--job", job, "--scheduler", "slurm"])
            .env("PATH", self.directory.path())
            .spawn()
    }

    /// Runs a process of the job until it is profiled. Its end is not that of the job. Returns its pid.
    #[track_caller]
    fn run_job(&self, job: &str, running: &mut Running) -> u32 {
        let workload = WorkloadDriver::with_env(WORKLOAD, 0, &[("SLURM_JOB_ID", job)]);
        running.wait_for("profiling ");
        let pid = workload.pid();
        drop(workload);
        self.wait_for_queries();
        assert!(!running.has_ended(), "{}", running.stderr());
        pid
    }
}

/// Asserts that the run has the process of the workload.
#[track_caller]
fn assert_has(data: &Dataset, pid: u32) {
    data.assert_complete();
    let count: u64 = data.value(&format!("SELECT count(*) FROM process WHERE pid = {pid}"));
    assert_eq!(count, 1);
}

#[test]
fn job_whose_nodes_boot_is_waited_for() {
    const JOB: &str = "4000030";
    let slurm = Played::slurm("POWER_UP_NODE");
    let mut running = slurm.profiler(JOB);
    running.wait_for(&format!(
        "waiting for job {JOB} (Slurm) on this node, it has not started:"
    ));
    slurm.set("RUNNING");
    let pid = slurm.run_job(JOB, &mut running);
    slurm.set("COMPLETED");
    let finished = running.finish();
    assert!(
        !finished.stderr.contains("does not know"),
        "{}",
        finished.stderr
    );
    assert_has(&finished.dataset(), pid);
}

/// Before the job is found and while it has no process.
#[test]
fn state_that_is_not_known_is_named_once_and_proves_nothing() {
    const JOB: &str = "4000031";
    let line =
        |word: &str| format!("job {JOB} (Slurm) is in a state that profiler does not know: {word}");
    let slurm = Played::slurm("UPDATE_DB");
    let mut running = slurm.profiler(JOB);
    running.wait_for(&line("UPDATE_DB"));
    running.wait_for(&format!(
        "waiting for job {JOB} (Slurm) on this node, its state is UPDATE_DB:"
    ));
    let pid = slurm.run_job(JOB, &mut running);
    slurm.set("NEW_STATE");
    running.wait_for(&line("NEW_STATE"));
    slurm.set("COMPLETED");
    let finished = running.finish();
    for word in ["UPDATE_DB", "NEW_STATE"] {
        let count = finished.stderr.matches(&line(word)).count();
        assert_eq!(count, 1, "{}", finished.stderr);
    }
    assert_has(&finished.dataset(), pid);
}

/// PBS prints the environment of a job, which can look like attributes. The newlines are escaped only with
/// these options.
#[test]
fn environment_of_a_pbs_job_ends_it_not_and_gives_it_no_other_owner() {
    const JOB: &str = "4000033";
    const OTHER: u32 = 4242;
    let directory = TempDir::new().expect("a directory");
    let text = directory.path().join("text");
    let forged = "A=x\\n    job_state = F\\n    euser = nobody";
    let job = format!(
        "Job Id: {JOB}.server\n    Job_Name = x\n    Variable_List = {forged}\n    \
         Job_Owner = root@server\n    job_state = R\n    Submit_arguments = -v {forged}\n\n"
    );
    fs::write(&text, &job).expect("written");
    let script = format!(
        "#!/bin/sh\n[ \"$*\" = '-x -f -w -F default {JOB}' ] && exec /bin/cat {}\nexit 2\n",
        text.display()
    );
    let stub = directory.path().join("qstat");
    fs::write(&stub, script).expect("written");
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).expect("our file");
    let mut claim = command_as(OTHER, "sleep");
    claim.arg("600").env("PBS_JOBID", JOB).current_dir("/");
    let _claim = ProcessGroup::start(&mut claim);
    let workload = WorkloadDriver::with_env(WORKLOAD, 0, &[("PBS_JOBID", JOB)]);
    let running = Profiler::new()
        .args(["-i", "100ms", "--job", JOB, "--scheduler", "pbs"])
        .env("PATH", directory.path())
        .start();
    fs::write(&text, job.replace("job_state = R", "job_state = F")).expect("written");
    let pid = workload.pid();
    drop(workload);
    let finished = running.finish();
    let data = finished.dataset();
    assert_has(&data, pid);
    assert_eq!(data.manifest()["target"]["job"]["uid"], 0);
    let users: Vec<(u32,)> = data.rows("SELECT DISTINCT uid FROM process");
    assert_eq!(users, [(0,)]);
}

#[test]
fn known_end_is_an_end() {
    const JOB: &str = "4000032";
    let slurm = Played::slurm("OUT_OF_MEMORY");
    let refused = slurm.profiler(JOB).finish();
    refused.assert_refused(3, &format!("job {JOB} is over (Slurm: OUT_OF_MEMORY)"));
}
