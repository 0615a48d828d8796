//! What the processes in a job's cgroup prove: daemons of the scheduler and other processes of root
//! prove neither a job nor its owner.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use e2e::{
    attacker::{VICTIM, command_as},
    runs::{ProcessGroup, Profiler},
};
use tempfile::TempDir;

use crate::{
    cgroup::put,
    job_layouts::{Tree, profiler, slurmstepd},
};

const TARGET: i32 = 3;

/// A directory with a `squeue` that does not know any job.
fn squeue() -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let stub = directory.path().join("squeue");
    let script = "#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n";
    fs::write(&stub, script).expect("written");
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).expect("our file");
    directory
}

fn sleep(uid: u32, group: &Path) -> ProcessGroup {
    let process = ProcessGroup::start(command_as(uid, "sleep").arg("600"));
    put(process.pid(), group);
    process
}

/// Slurm could not remove the cgroup of a job, with its daemon or without.
#[test]
fn cgroup_of_a_job_that_is_over_proves_nothing() {
    let mut tree = Tree::mounted(1);
    let directory = TempDir::new().expect("a directory");
    tree.make("slurm_n1/uid_4343/job_4000018/step_0");
    let group = tree.make("slurm_n1/uid_4343/job_4000019/step_batch");
    let daemon = slurmstepd("slurmstepd: [4000019.batch]", directory.path());
    put(daemon.pid(), &group);
    let scheduler = squeue();
    for job in ["4000018", "4000019"] {
        let refused = profiler()
            .args(["--job", job, "--scheduler", "slurm"])
            .env("PATH", scheduler.path())
            .finish();
        refused.assert_refused(TARGET, &format!("job {job} is unknown to Slurm"));
    }
    // Environments are believed, as on a node whose scheduler does not use cgroups.
    let finished = Profiler::new()
        .env("SLURM_JOB_ID", "4000020")
        .args(["-i", "100ms"])
        .command(&["true"])
        .finish();
    let data = finished.dataset();
    let job: (String, String) = data.row("SELECT job_id, job_source FROM process");
    assert_eq!(job, ("4000020".to_owned(), "environment".to_owned()));
    drop(daemon);
}

/// The path of the cgroup names the user, whose processes have not started yet.
#[test]
fn owner_is_the_user_in_the_path() {
    let mut tree = Tree::mounted(1);
    let group = tree.make("slurm_n1/uid_4343/job_4000021/step_extern");
    let of_root = sleep(0, &group);
    let running = profiler().args(["--job", "4000021"]).start();
    drop(of_root);
    let finished = running.finish();
    let data = finished.dataset();
    assert_eq!(data.manifest()["target"]["job"]["uid"], VICTIM);
}

/// The daemon of the step is the only process of the job until it starts those of the user.
#[test]
fn job_begins_with_the_first_process_of_its_user() {
    let mut tree = Tree::mounted(2);
    let directory = TempDir::new().expect("a directory");
    let group = tree.make("system.slice/slurmstepd.scope/job_4000022/step_0/user/task_0");
    let daemon = slurmstepd("slurmstepd: [4000022.0]", directory.path());
    put(daemon.pid(), &group);
    let mut running = profiler().args(["--job", "4000022"]).spawn();
    running.wait_for("waiting for job 4000022 (Slurm) on this node");
    let of_user = sleep(VICTIM, &group);
    running.wait_for("profiling ");
    drop((of_user, daemon));
    let finished = running.finish();
    let data = finished.dataset();
    assert_eq!(data.manifest()["target"]["job"]["uid"], VICTIM);
    let jobs: Vec<(u32,)> = data.rows("SELECT DISTINCT uid FROM process WHERE comm = 'sleep'");
    assert_eq!(jobs, [(VICTIM,)]);
}
