//! Jobs of other users, requested from `profiler serve`.

use e2e::{
    runs::wait_until,
    service_client::{ACCEPTED, Client, READY, REFUSED, frame},
};
use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::service::{ALICE, Service};

/// A user that Slurm knows.
const NOBODY: u32 = 65_534;

/// The answer to the request of a user for a job: its kind and content.
fn answer(service: &Service, uid: u32, job: &str) -> (u8, Value) {
    let request = json!({
        "protocol": 1, "schema_version": 4, "interval_ns": 1_000_000_000,
        "target": {"job": {"scheduler": "slurm", "id": job, "step": null}},
        "source": null, "groups": null, "events": null, "threads": false, "strict": false,
        "hostname": null,
    });
    let mut client = Client::of_user(&service.socket(), uid);
    client.send(&frame(1, request.to_string().as_bytes()));
    loop {
        let (kind, content) = client.message().expect("an answer");
        if kind != ACCEPTED {
            return (kind, serde_json::from_slice(&content).expect("JSON"));
        }
    }
}

/// Submits a job of [`NOBODY`].
fn submit(cluster: &Cluster, options: &[&str]) -> String {
    let user = format!("--uid={NOBODY}");
    let common = [&user[..], "--chdir=/tmp", "--output=/dev/null"];
    cluster.submit_with(&[&common, options].concat(), "sleep 60")
}

/// Only [`NOBODY`] gets a profile of a job, which has this number.
#[track_caller]
fn assert_only_its_user_profiles(service: &Service, job: &str, number: &str) {
    let (kind, refused) = answer(service, ALICE, job);
    assert_eq!(kind, REFUSED, "{refused}");
    let expected = json!({"code": 4, "why": format!("job {number} is of another user")});
    assert_eq!(refused, expected);
    let (kind, ready) = answer(service, NOBODY, job);
    assert_eq!(kind, READY, "{ready}");
    assert_eq!(ready["run_id"], format!("slurm-{number}"));
}

#[test]
fn job_of_another_user_is_refused() {
    let cluster = Cluster::start();
    let service = Service::with_environment(&[], Some(("SLURM_CONF", &cluster.conf())));
    let job = submit(&cluster, &[]);
    wait_until("the job runs", || cluster.state(&job) == "RUNNING");
    assert_only_its_user_profiles(&service, &job, &job);
    cluster.ask("scancel", &[&job]);
}

/// The id of an array task is not the one in the names of cgroups.
#[test]
fn array_task_of_another_user_is_refused() {
    let cluster = Cluster::start();
    let service = Service::with_environment(&[], Some(("SLURM_CONF", &cluster.conf())));
    let array = submit(&cluster, &["--array=1-2"]);
    let task = format!("{array}_1");
    wait_until("the task runs", || cluster.state(&task) == "RUNNING");
    let number = cluster.ask("squeue", &["--noheader", "--format=%A", "--jobs", &task]);
    assert_ne!(number, array);
    assert_only_its_user_profiles(&service, &task, &number);
    cluster.ask("scancel", &[&array]);
}
