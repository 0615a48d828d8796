//! Users who want to keep `profiler serve` busy, or to keep others from it.

use std::{thread, time::Duration};

use e2e::{
    procfs::children,
    runs::wait_until,
    service_client::{ACCEPTED, Client, REQUEST, frame, request},
};

use super::service::assert_serves;
use crate::service::{ALICE, BOB, Service};

/// Users besides [`ALICE`] and [`BOB`].
const FIRST_USER: u32 = 64_000;

/// As many as a service has places for profiles.
const CLIENTS: u32 = 64;

#[test]
fn slow_requests_take_no_place_and_have_one_deadline() {
    let service = Service::start(&[]);
    let bytes = frame(1, REQUEST.as_bytes());
    // Four of each user, as there are places for profiles.
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|number| Client::of_user(&service.socket(), FIRST_USER + number / 4))
        .collect();
    for client in &mut clients {
        client.send(&bytes[..1]);
    }
    assert_serves(&service, "meanwhile");
    // A byte every second, until the service answers: not for as many seconds as there are bytes.
    let slow = |mut client: Client| {
        let mut sent = 1;
        client
            .0
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a timeout");
        let answer = loop {
            if let Some((_, answer)) = client.message() {
                break String::from_utf8_lossy(&answer).into_owned();
            }
            assert!(sent < bytes.len() / 2, "{sent} bytes, and no answer");
            client.send(&bytes[sent..=sent]);
            sent += 1;
        };
        assert!(answer.contains("no message within 5 s"), "{answer}");
    };
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| slow(client));
        }
    });
    assert!(children(service.pid()).is_empty());
}

#[test]
fn silent_clients_of_a_user_leave_places_for_others() {
    let service = Service::start(&["--max-sessions", "1", "--max-sessions-per-user", "1"]);
    let connect = || Client::of_user(&service.socket(), BOB);
    let silent: Vec<_> = (0..CLIENTS).map(|_| connect()).collect();
    // Nothing is started for them, and another user is served.
    assert!(children(service.pid()).is_empty());
    assert_serves(&service, "meanwhile");
    let mut late = 0;
    for mut client in silent {
        let refusal = client.refusal();
        assert_eq!(client.message(), None);
        if refusal.contains("no message within 5 s") {
            late += 1;
        } else {
            let why = "16 connections without a request of this user are open";
            assert!(refusal.contains(why), "{refusal}");
        }
    }
    assert!(late >= 16, "{late}");
    // Their places are free again.
    wait_until("the user is served", || {
        let mut client = connect();
        client.send(&frame(1, REQUEST.as_bytes()));
        client.message().expect("an answer").0 == ACCEPTED
    });
}

#[test]
fn searches_for_a_job_end_with_their_client() {
    let service = Service::start(&[]);
    let target = r#"{"job":{"scheduler":"slurm","id":"999999","step":null}}"#;
    let search = || {
        let before = children(service.pid()).len();
        let mut client = Client::of_user(&service.socket(), ALICE);
        client.send(&frame(1, request("\"processes\"", target).as_bytes()));
        wait_until("a process searches", || {
            children(service.pid()).len() == before + 1
        });
        client
    };
    // The first one stays, and would end first.
    let _stays = search();
    let remaining = children(service.pid());
    let gone = [search(), search(), search()];
    drop(gone);
    wait_until("their processes end", || children(service.pid()).len() <= 1);
    assert_eq!(children(service.pid()), remaining);
}
