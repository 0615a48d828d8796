//! Jobs of other users, requested from `profiler serve`.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    thread,
};

use e2e::{runs::wait_until, service_client::frame};
use rustix::{process::Uid, thread::set_thread_res_uid};
use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::service::{ALICE, Service};

/// A user that Slurm knows.
const NOBODY: u32 = 65_534;
const ACCEPTED: u8 = 15;
const READY: u8 = 16;
const REFUSED: u8 = 21;

/// The answer to the request of a user for a job: its kind and content.
fn answer(service: &Service, uid: u32, job: &str) -> (u8, Value) {
    let request = json!({
        "protocol": 1, "schema_version": 3, "interval_ns": 1_000_000_000,
        "target": {"job": {"scheduler": "slurm", "id": job, "step": null}},
        "source": null, "groups": null, "events": null, "threads": false, "strict": false,
        "hostname": null,
    });
    // The user of the connection is that of this thread.
    let connect = || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).expect("root becomes another user");
        UnixStream::connect(service.path().join("socket")).expect("connects")
    };
    let mut socket = thread::scope(|scope| scope.spawn(connect).join().expect("no panic"));
    socket
        .write_all(&frame(1, request.to_string().as_bytes()))
        .expect("sent");
    loop {
        let mut header = [0; 8];
        socket.read_exact(&mut header).expect("an answer");
        let [a, b, c, d, kind, ..] = header;
        let mut content = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        socket.read_exact(&mut content).expect("an answer");
        if kind != ACCEPTED {
            return (kind, serde_json::from_slice(&content).expect("JSON"));
        }
    }
}

#[test]
fn job_of_another_user_is_refused() {
    let cluster = Cluster::start();
    let service = Service::with_environment(&[], Some(("SLURM_CONF", &cluster.conf())));
    let user = format!("--uid={NOBODY}");
    let options = [&user[..], "--chdir=/tmp", "--output=/dev/null"];
    let job = cluster.submit_with(&options, "sleep 60");
    wait_until("the job runs", || cluster.state(&job) == "RUNNING");
    let (kind, refused) = answer(&service, ALICE, &job);
    assert_eq!(kind, REFUSED, "{refused}");
    let expected = json!({"code": 4, "why": format!("job {job} is of another user")});
    assert_eq!(refused, expected);
    let (kind, ready) = answer(&service, NOBODY, &job);
    assert_eq!(kind, READY, "{ready}");
    assert_eq!(ready["run_id"], format!("slurm-{job}"));
    cluster.ask("scancel", &[&job]);
}
