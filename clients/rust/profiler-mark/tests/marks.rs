//! Marks as a profiler receives them.

mod common;

use std::{env, fs, io::stdin, panic, thread, time::Duration};

use serde_json::{Value, json};

#[test]
#[ignore = "started by another test, in a process of its own"]
fn all_marks() {
    let fit = profiler_mark::region("fit \"1\"\n")
        .kind("epoch")
        .group("training")
        .attr("epoch", 3)
        .attr("infinite", f64::INFINITY)
        .tag("a")
        .tag("b")
        .used("in")
        .start();
    let inner = fit.region("inner").start();
    inner
        .end()
        .status("skipped")
        .attr("loss", 0.5)
        .generated("out")
        .send();
    let failed = panic::catch_unwind(|| {
        let _region = profiler_mark::region("panics").start();
        panic::resume_unwind(Box::new(()));
    });
    assert!(failed.is_err());
    profiler_mark::phase("compile", Duration::from_millis(250)).send();
    profiler_mark::gauge("memory", 1e9, "bytes").send();
    profiler_mark::gauge("nothing", f64::NAN, "").send();
    let long = "é".repeat(5000);
    profiler_mark::event(&long)
        .attr("short", true)
        .attr("long", &long)
        .send();
    drop(fit);
}

#[test]
fn marks_follow_the_grammar() {
    let mut marks = common::marks("all_marks");
    let ids: Vec<Value> = marks.iter_mut().map(|mark| mark["id"].take()).collect();
    assert!(ids[0].is_u64() && ids[1].is_u64() && ids[0] != ids[1]);
    assert_eq!([&ids[1], &ids[3], &ids[0]], [&ids[2], &ids[4], &ids[8]]);
    let name = "é".repeat(127);
    assert_eq!(
        marks,
        [
            json!({"op": "start", "name": "fit \"1\"\n", "kind": "epoch", "group": "training", "id": null,
                "attrs": {"epoch": 3, "infinite": null}, "tags": ["a", "b"], "used": ["in"]}),
            json!({"op": "start", "name": "inner", "parent": ids[0], "id": null}),
            json!({"op": "end", "status": "skipped", "attrs": {"loss": 0.5}, "generated": ["out"], "id": null}),
            json!({"op": "start", "name": "panics", "id": null}),
            json!({"op": "end", "status": "error", "id": null}),
            json!({"op": "phase", "name": "compile", "seconds": 0.25, "id": null}),
            json!({"op": "gauge", "name": "memory", "value": 1e9, "unit": "bytes", "id": null}),
            json!({"op": "event", "name": name, "attrs": {"short": true}, "id": null}),
            json!({"op": "end", "id": null}),
        ]
    );
}

#[test]
#[ignore = "started by another test, in a process of its own"]
fn from_threads() {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let _region = profiler_mark::region("thread").start();
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
}

#[test]
fn ids_of_threads_are_unique() {
    let marks = common::marks("from_threads");
    let reported = marks.iter().filter_map(|mark| mark["dropped"].as_u64());
    let dropped: u64 = reported.sum();
    assert!(marks.len() as u64 + dropped <= 400);
    let starts = marks.iter().filter(|mark| mark["op"] == "start");
    let mut ids: Vec<_> = starts.map(|mark| mark["id"].as_u64()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(count > 100 && ids.len() == count, "{count}");
}

#[test]
#[ignore = "started by another test, in a process of its own"]
fn flood() {
    for _ in 0..1000 {
        profiler_mark::event("flood").send();
    }
    let mut line = String::new();
    stdin().read_line(&mut line).expect("stdin");
    profiler_mark::event("last").send();
}

#[test]
fn drops_are_reported() {
    use std::{io::Write as _, os::unix::net::UnixDatagram, process::Stdio};
    let path = env::temp_dir().join(format!("profiler-mark-{}-full.sock", std::process::id()));
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut child = common::scenario("flood")
        .env("PROFILER_SOCKET", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the scenario starts");
    let mut buffer = [0; 1024];
    let mut receive = || -> Value {
        let length = socket.recv(&mut buffer).expect("a mark");
        serde_json::from_slice(&buffer[..length]).expect("JSON")
    };
    let mut received = 1;
    assert_eq!(receive()["name"], "flood");
    // By now all have been sent, and most were dropped.
    thread::sleep(Duration::from_millis(500));
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"\n")
        .expect("written");
    let mut dropped = 0;
    loop {
        let mark = receive();
        dropped += mark["dropped"].as_u64().unwrap_or(0);
        if mark["name"] == "last" {
            break;
        }
        received += 1;
    }
    assert!(child.wait().expect("our child").success());
    fs::remove_file(path).expect("our socket");
    assert_eq!(received + dropped, 1000);
    assert!(dropped > 0);
}

#[test]
fn nothing_happens_without_a_profiler() {
    for path in [
        None,
        Some("/no/such/socket"),
        Some(""),
        Some(&*"x".repeat(200)),
    ] {
        let mut command = common::scenario("all_marks");
        command.envs(path.map(|path| ("PROFILER_SOCKET", path)));
        assert!(command.output().expect("it starts").status.success());
    }
}
