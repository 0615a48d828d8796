//! Summaries of runs with known figures.

use serde_json::json;

use super::Recording;

#[test]
fn sums_are_those_of_the_rows() {
    let summary = Recording::new(2.0)
        .process(10, "solve", json!({}))
        .of(
            10,
            "usage",
            1.0,
            json!({"user_ns": 400_000_000, "system_ns": 100_000_000}),
        )
        .of(
            10,
            "usage",
            2.0,
            json!({"user_ns": 250_000_000, "system_ns": 0}),
        )
        .summary();
    assert_eq!(summary.target.get("cpu_s"), Some(0.75));
    assert_eq!(summary.seconds(), Some(2.0));
    assert_eq!(summary.target.get("blocked_s"), None);
}
