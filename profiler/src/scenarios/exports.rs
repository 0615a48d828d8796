//! Samples of exports.

use serde_json::{Value, json};

use super::{Recording, START};
use crate::{
    analysis::catalog::ALL,
    export::{Selection, perfpy, series::Series},
    import::Row,
};

/// Only the time with rows is read: between them are 56 years, in millions of parts.
#[test]
fn samples_on_both_sides_of_a_wrong_clock() {
    let system = |used: u64| json!({"memory_used": used, "memory_total": 100});
    let cpu = || {
        let mut columns: Row = ALL
            .iter()
            .map(|name| ((*name).to_owned(), json!(0)))
            .collect();
        columns.extend([
            ("cpu".to_owned(), json!(0)),
            ("idle_ns".to_owned(), json!(1_000_000_000)),
        ]);
        Value::Object(columns)
    };
    let before = 1.0 - START as f64 / 1e6;
    let directory = tempfile::tempdir().expect("a directory");
    let run = Recording::new(1.0)
        .row("system", before, system(20))
        .row("cpu", before, cpu())
        .row("system", 1.0, system(30))
        .row("cpu", 1.0, cpu())
        .store(directory.path(), "run");
    let mut output = Vec::new();
    let series = Series {
        run: &run,
        selection: &Selection::default(),
        every: None,
    };
    let failures = perfpy::write(&series, &mut output).expect("written");
    assert!(failures.is_empty(), "{failures:?}");
    let document: Value = serde_json::from_slice(&output).expect("JSON");
    let samples = document["0"].as_array().expect("samples");
    let found: Vec<_> = samples
        .iter()
        .map(|sample| [&sample["timestamp"], &sample["mem_percent"]])
        .collect();
    let late = json!(START as f64 / 1e6 + 1.0);
    assert_eq!(found, [[&json!(1.0), &json!(20.0)], [&late, &json!(30.0)]]);
}
