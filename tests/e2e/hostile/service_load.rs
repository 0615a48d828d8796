//! Users who want to keep `profiler serve` busy, or to keep others from it.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use e2e::{
    procfs::{children, cpu_time},
    runs::{ProcessGroup, wait_until},
    service_client::{ACCEPTED, Client, REFUSED, REQUEST, frame, request},
};
use serde_json::{Value, json};

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
    assert_serves(&service, ALICE, "meanwhile");
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
    assert_serves(&service, ALICE, "meanwhile");
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

/// A text that changes the display, and pretends to be a line of another program.
const ESCAPES: &str = "\u{1b}]0;x\u{7}\u{9b}2J\nAccepted password for root\r\u{202e}";

/// Whether a character of [`ESCAPES`] is there that is to be escaped.
fn has_escapes(text: &str) -> bool {
    text.contains(|char: char| char.is_control() || char == '\u{202e}')
}

#[test]
fn texts_of_requests_are_escaped() {
    let service = Service::start(&[]);
    let job = json!({"job": {"scheduler": "slurm", "id": ESCAPES, "step": null}});
    let attacks = [
        ("protocol", json!(ESCAPES)),
        ("target", json!(ESCAPES)),
        ("target", job),
        ("source", json!(ESCAPES)),
        ("groups", json!(ESCAPES)),
        ("events", json!(ESCAPES)),
        ("hostname", json!(ESCAPES)),
        ("threads", json!(ESCAPES)),
        (ESCAPES, json!(1)),
    ];
    for (field, value) in &attacks {
        let mut request: Value = serde_json::from_str(REQUEST).expect("JSON");
        request[field] = value.clone();
        let mut client = Client::of_user(&service.socket(), ALICE);
        client.send(&frame(1, request.to_string().as_bytes()));
        let (kind, refusal) = loop {
            let (kind, content) = client.message().expect("an answer");
            if kind != ACCEPTED {
                break (kind, content);
            }
            let own = std::process::id();
            client.attach(own);
        };
        let refusal: Value = serde_json::from_slice(&refusal).expect("JSON");
        assert_eq!(kind, REFUSED, "{field}: {refusal}");
        let why = refusal["why"].as_str().expect("a text");
        assert!(!has_escapes(why), "{field}: {why:?}");
    }
    let messages = || {
        let log = String::from_utf8(service.log()).expect("UTF-8");
        log.lines()
            .filter(|line| line.starts_with(&format!("profiler: user {ALICE}: ")))
            .count()
    };
    wait_until("each refusal is in the log", || messages() == attacks.len());
    let log = String::from_utf8(service.log()).expect("UTF-8");
    for line in log.lines() {
        assert!(line.starts_with("profiler: "), "{line:?}");
        assert!(!has_escapes(line), "{line:?}");
    }
}

#[test]
fn large_requests_are_refused_with_a_short_log() {
    const ATTEMPTS: usize = 1000;
    const LOG_MAX: usize = 20 << 10;
    let service = Service::start(&[]);
    for size in [1_000_000, 10_000] {
        let value = format!("\"source\":\"{}\"", "x".repeat(size));
        let bytes = frame(1, request("\"source\":null", &value).as_bytes());
        let attack = || {
            for _ in 0..ATTEMPTS / 8 {
                let mut client = Client::of_user(&service.socket(), ALICE);
                client.send(&bytes);
                client.refusal();
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(attack);
            }
        });
    }
    let log = service.log();
    assert!(log.len() < LOG_MAX, "{} bytes", log.len());
    let log = String::from_utf8(log).expect("UTF-8");
    let longest = log.lines().map(str::len).max();
    assert!(longest.is_some_and(|longest| longest < 1100), "{longest:?}");
    // The first ones are known.
    let first = format!("profiler: user {ALICE}: request: a message of ");
    assert!(log.contains(&first), "{log}");
}

#[test]
fn starts_and_ends_of_profiles_are_charged() {
    const CREDIT: Duration = Duration::from_secs(10);
    // Of the last four profiles, and of the service itself.
    const MORE: Duration = Duration::from_secs(4);
    let service = Service::start(&[]);
    let sleeping = ProcessGroup::start(Command::new("sleep").arg("600").uid(ALICE));
    let begin = Instant::now();
    // Starts a profile and leaves it. Returns why there is none.
    let attach = || {
        let mut client = Client::of_user(&service.socket(), ALICE);
        client.send(&frame(1, REQUEST.as_bytes()));
        let (kind, content) = client.message()?;
        if kind == REFUSED {
            return Some(String::from_utf8_lossy(&content).into_owned());
        }
        client.attach(sleeping.pid());
        client.message();
        None
    };
    let is_charged = |refusal: &String| refusal.contains("try again in ");
    let attack = || {
        let mut left = 60;
        while left != 0 {
            match attach() {
                None => left -= 1,
                Some(refusal) if is_charged(&refusal) => return,
                Some(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
        panic!("all are served");
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(attack);
        }
    });
    // Refusals start nothing. The credit grows by a profile every four seconds.
    let refused = (0..1000).filter_map(|_| attach()).filter(is_charged);
    assert!(refused.count() > 900);
    wait_until("the end of the processes", || {
        children(service.pid()).is_empty()
    });
    let (cpu, most) = (
        cpu_time(service.pid()),
        CREDIT + begin.elapsed() / 10 + MORE,
    );
    assert!(cpu <= most, "{cpu:?} of {most:?}");
    assert_serves(&service, BOB, "meanwhile");
}

#[test]
fn samples_of_a_client_have_a_budget() {
    const PROCESSES: u32 = 400;
    let service = Service::start(&[]);
    let script = format!(
        "for i in $(seq {PROCESSES}); do sleep 600 & done
         until [ -e go ]; do sleep 0.1; done; kill $(jobs -p)"
    );
    let mut profiler = ProcessGroup::start(service.profiler_every("10ms", ALICE, "busy").args([
        "--threads",
        "--",
        "bash",
        "-c",
        &script,
    ]));
    let data = service.data("busy");
    wait_until("a run", || data.path().join("usage").exists());
    data.wait_for_samples("usage", 60);
    let session = children(service.pid())[0];
    let (begin, before) = (Instant::now(), cpu_time(session));
    thread::sleep(Duration::from_secs(4));
    let (elapsed, cpu) = (begin.elapsed(), cpu_time(session).saturating_sub(before));
    println!("{cpu:?} in {elapsed:?}");
    fs::write(service.path().join("go"), "").expect("written");
    assert!(profiler.0.wait().expect("our child").success());
    let losses = data.manifest()["losses"].clone();
    let lengthened = losses.as_array().expect("a list").iter().any(|loss| {
        let why = loss["why"].as_str().expect("a text");
        why.starts_with("interval lengthened to ")
    });
    assert!(lengthened, "{losses}");
    // A tenth for the samples; the rest for what the service sends.
    assert!(cpu < elapsed / 5, "{cpu:?} in {elapsed:?}");
}
