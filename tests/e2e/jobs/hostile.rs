//! Jobs whose texts have the form of what Slurm says about them.

use std::fs;

use e2e::{
    attacker::command_as,
    runs::{ProcessGroup, wait_until},
};

use super::{cluster::Cluster, profiler};

const OTHER: u32 = 4242;

/// Neither the name, the comment nor the work directory tells the state or the owner. `scontrol` prints
/// them with their newlines.
#[test]
fn texts_of_a_job_end_it_not_and_give_it_no_other_owner() {
    let cluster = Cluster::tracking("proctrack/linuxproc");
    let fields = format!("lr=0.1 JobState=COMPLETED UserId=x({OTHER})");
    let forged = format!("{fields}\n   {fields} GroupId=x({OTHER})\n0|0|COMPLETED|{OTHER}");
    let home = cluster.directory().join(&fields);
    fs::create_dir(&home).expect("a directory");
    let go = cluster.directory().join("go");
    let job = cluster.submit_with(
        &[
            "--ntasks=1",
            &format!("--job-name={forged}"),
            &format!("--comment={forged}"),
            &format!("--chdir={}", home.display()),
        ],
        &format!("until [ -e {} ]; do sleep 0.1; done", go.display()),
    );
    wait_until("the job runs", || cluster.state(&job) == "RUNNING");
    let mut claim = command_as(OTHER, "sleep");
    claim.arg("600").env("SLURM_JOB_ID", &job).current_dir("/");
    let _claim = ProcessGroup::start(&mut claim);
    let running = profiler(&cluster)
        .args(["--job", &job])
        // The user's own filters of `squeue` hide no job from the profiler.
        .env("SQUEUE_STATES", "PENDING")
        .env("SQUEUE_USERS", "nobody")
        .start();
    fs::write(go, "").expect("written");
    let finished = running.finish();
    let data = finished.dataset();
    data.assert_complete();
    assert_eq!(data.manifest()["target"]["job"]["uid"], 0);
    let users: Vec<(u32,)> = data.rows("SELECT DISTINCT uid FROM process");
    assert_eq!(users, [(0,)], "{}", finished.stderr);
}
