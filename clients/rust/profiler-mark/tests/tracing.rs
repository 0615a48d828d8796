//! Spans and events of `tracing` as a profiler receives them.

mod common;

use std::{thread, time::Duration};

use profiler_mark::tracing::MarkLayer;
use serde_json::{Value, json};
use tracing::{Level, error, field::Empty, info, info_span, instrument, trace_span};
use tracing_subscriber::{
    filter::LevelFilter,
    layer::{Layer as _, SubscriberExt as _},
};

fn with_layer(layer: MarkLayer, work: impl FnOnce()) {
    let layer = layer.with_filter(LevelFilter::INFO);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
}

#[instrument(err)]
fn load(path: &str) -> Result<(), &'static str> {
    Err("not found")
}

#[test]
#[ignore = "started by another test, in a process of its own"]
fn spans() {
    with_layer(MarkLayer::new(), || {
        let fit = info_span!("fit", epochs = 3, rate = 0.5, model = ?Some(1), loss = Empty);
        {
            let _fit = fit.enter();
            // The filter excludes this span, not those within.
            let _hidden = trace_span!("hidden").entered();
            let _ = load("x");
            info!("not marked");
        }
        fit.record("loss", 0.25);
        let _again = fit.enter();
    });
}

#[test]
fn spans_become_regions() {
    let marks = common::marks("spans");
    let [fit, load] = [&marks[0]["id"], &marks[1]["id"]];
    assert!(fit.is_u64() && fit != load);
    assert_eq!(
        marks,
        [
            json!({"op": "start", "name": "fit", "id": fit, "attrs":
                {"target": "tracing", "epochs": 3, "rate": 0.5, "model": "Some(1)"}}),
            json!({"op": "start", "name": "load", "id": load, "parent": fit, "attrs":
                {"target": "tracing", "path": "x"}}),
            json!({"op": "end", "id": load, "status": "error"}),
            json!({"op": "end", "id": fit, "attrs": {"loss": 0.25}}),
        ]
    );
}

#[test]
#[ignore = "started by another test, in a process of its own"]
fn events() {
    with_layer(MarkLayer::new().with_events(true), || {
        let _span = info_span!("span").entered();
        info!(step = 7, "saved {}", "model");
        error!(name: "named", reason = "full");
        tracing::event!(Level::DEBUG, "filtered");
    });
}

#[test]
fn events_are_marked_if_enabled() {
    let marks = common::marks("events");
    let span = &marks[0]["id"];
    let of = |op: &str| -> Vec<&Value> { marks.iter().filter(|mark| mark["op"] == op).collect() };
    let event = |name: &str, attributes: Value| json!({"op": "event", "name": name, "parent": span, "attrs": attributes});
    assert_eq!(
        of("event"),
        [
            &event(
                "saved model",
                json!({"target": "tracing", "level": "INFO", "step": 7})
            ),
            &event(
                "named",
                json!({"target": "tracing", "level": "ERROR", "reason": "full"})
            ),
        ]
    );
    assert_eq!(
        of("end"),
        [&json!({"op": "end", "id": span, "status": "error"})]
    );
}

/// Tasks that are entered alternately, as by an executor.
#[test]
#[ignore = "started by another test, in a process of its own"]
fn tasks() {
    with_layer(MarkLayer::new(), || {
        let tasks = ["a", "b"].map(|task| info_span!("task", task));
        for _ in 0..3 {
            for task in &tasks {
                task.in_scope(|| drop(info_span!("poll")));
                // The kernel's default queue has ten marks.
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

#[test]
fn interleaved_tasks_are_separate_regions() {
    let marks = common::marks("tasks");
    let tasks: Vec<_> = marks.iter().filter(|mark| mark["name"] == "task").collect();
    let polls: Vec<_> = marks.iter().filter(|mark| mark["name"] == "poll").collect();
    assert_eq!((tasks.len(), polls.len()), (2, 6));
    for (number, poll) in polls.iter().enumerate() {
        assert_eq!(poll["parent"], tasks[number % 2]["id"]);
    }
    assert_eq!(marks.iter().filter(|mark| mark["op"] == "end").count(), 8);
}
