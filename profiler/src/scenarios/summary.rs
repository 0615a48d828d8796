//! Summaries of runs with known figures.

use serde_json::{Value, json};

use super::Recording;
use crate::analysis::summary::{Summary, by_label, by_label_document, document, page};

fn line<'a>(text: &'a str, end: &str) -> &'a str {
    // Titles come before tables.
    let mut lines = text.lines().rev();
    let found = lines.find(|line| line.trim_end().ends_with(end));
    found.unwrap_or_else(|| panic!("no line ends with {end}: {text}"))
}

fn cpu(ms: u64) -> Value {
    json!({"user_ns": ms * 1_000_000, "system_ns": 0})
}

/// Half a CPU in each of two sessions, with a pause of six seconds: the pause is in no sum and in no rate.
#[test]
fn pauses_between_sessions_do_not_count() {
    let second =
        json!({"user_ns": 500_000_000, "system_ns": 0, "pss": 3 << 20, "write_bytes": 2048});
    let run = Recording::new(10.0)
        .process(10, "solve", json!({}))
        .of(10, "usage", 1.0, cpu(500))
        .of(10, "usage", 2.0, second)
        .of(10, "usage", 9.0, cpu(700))
        .of(10, "usage", 10.0, cpu(300))
        .sessions(&[(0.0, Some(2.0)), (8.0, Some(10.0))]);
    let summary = run.summary();
    assert_eq!(summary.seconds(), Some(4.0));
    let found = document(&summary);
    assert_eq!(found["seconds"], 4.0);
    let sessions = found["sessions"].as_array().expect("sessions");
    let of = |name: &str| {
        sessions
            .iter()
            .map(|of| of[name].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("seconds"), [2.0, 2.0]);
    assert_eq!(of("cpu_s"), [1.0, 1.0]);
    assert_eq!(of("target"), ["`session at 0 s`", "`session at 8 s`"]);
    let text = page(&summary).text();
    assert!(
        text.contains(", 4.00 s in 2 sessions within 10.00 s, "),
        "{text}"
    );
    assert!(text.contains("CPU 2.00 s (0.50)"), "{text}");
    for session in ["`session at 0 s`", "`session at 8 s`"] {
        let line = line(&text, session);
        assert!(line.contains("2.00 s  1.00 s"), "{line}");
        // A figure of one of them.
        let is_first = session.contains("at 0 s");
        assert_eq!(line.contains("2.0 KiB"), is_first, "{line}");
        assert_eq!(line.contains("≥ 3.0 MiB"), is_first, "{line}");
    }
    let heads = text.lines().find(|line| line.ends_with(" session"));
    assert!(
        heads.is_some_and(|heads| heads.contains("to storage")),
        "{text}"
    );
}

#[test]
fn a_session_that_was_killed_ends_with_its_last_sample() {
    let run = Recording::new(10.0)
        .process(10, "solve", json!({}))
        .of(10, "usage", 1.0, cpu(500))
        .of(10, "usage", 2.0, cpu(500))
        .of(10, "usage", 9.0, cpu(1000))
        .sessions(&[(0.0, None), (8.0, Some(9.0))]);
    let summary = run.summary();
    assert_eq!(summary.seconds(), Some(3.0));
    let found = document(&summary);
    assert_eq!(found["sessions"][0]["end"], Value::Null);
    assert_eq!(found["sessions"][0]["seconds"], 2.0);
    let text = page(&summary).text();
    assert!(
        line(&text, "`session at 0 s` (recovered)").contains("2.00 s"),
        "{text}"
    );
    let lost = "The session of 2026-01-02 03:04:05 UTC was killed: at most the last 1.00 s are lost; the rest \
                is recovered.";
    assert!(
        text.contains(lost) && !text.contains("No losses."),
        "{text}"
    );
}

/// A length that is unknown is in no sum.
#[test]
fn a_session_whose_clock_was_set_back_has_no_length() {
    let run = Recording::new(9.0)
        .process(10, "solve", json!({}))
        .of(10, "usage", 1.0, cpu(500))
        .sessions(&[(0.0, Some(4.0)), (8.0, Some(5.0))]);
    let summary = run.summary();
    assert_eq!(summary.seconds(), None);
    let found = document(&summary);
    assert_eq!(found["sessions"][0]["seconds"], 4.0);
    assert_eq!(found["sessions"][1]["seconds"], Value::Null);
    let text = page(&summary).text();
    let line = line(&text, "`session at 8 s`");
    assert!(line.trim_start().starts_with('–'), "{text}");
}

fn with_files(bytes: Option<u64>) -> Summary {
    let mut run = Recording::new(1.0).process(10, "solve", json!({})).of(
        10,
        "usage",
        1.0,
        json!({"user_ns": 1, "system_ns": 0, "read_bytes": 1000}),
    );
    if let Some(bytes) = bytes {
        let row = json!({"mount": "/", "method": "calls", "read_bytes": bytes, "write_bytes": 0});
        run = run.of(10, "file_io", 1.0, row);
    }
    run.summary()
}

/// A sum tells of how many runs it is, and bytes of files do not stand where those of storage do.
#[test]
fn sums_tell_of_how_many_runs_they_are() {
    let summaries = [with_files(Some(379 << 20)), with_files(None)];
    let text = by_label(&summaries, "user").text();
    let heads: Vec<_> = line(&text, "user").split_whitespace().collect();
    assert!(heads.contains(&"read"), "{text}");
    assert!(text.contains("379.0 MiB (1 of 2)"), "{text}");
    assert!(text.contains("2.0 KiB"), "{text}");
    assert!(text.contains("(n of m): the sum of n runs"), "{text}");
    let found = by_label_document(&summaries, "user");
    assert_eq!(found[0]["runs"], 2);
    assert_eq!(found[0]["runs_with_value"]["file_read_bytes"], 1);
    assert_eq!(found[0]["runs_with_value"]["storage_read_bytes"], 2);
    let text = page(&summaries[1]).text();
    let heads = line(&text, "process");
    assert!(
        heads.contains("from storage") && !heads.contains(" read"),
        "{text}"
    );
    let text = by_label(&summaries[..1], "user").text();
    assert!(
        text.contains("379.0 MiB") && !text.contains(" of 1)"),
        "{text}"
    );
}
