//! Formulas, event requests in perf's syntax, event tables, and formats of a PMU.

#![no_main]

use libfuzzer_sys::fuzz_target;
use perfevents::{Catalog, Format, Formula, Request};

/// A table that the input can have as its base.
static BASE: &str = include_str!("../seeds/events/table-2");

fuzz_target!(|text: &str| {
    if let Ok(formula) = text.parse::<Formula>() {
        for value in [None, Some(0.0), Some(1.5), Some(f64::MAX), Some(f64::NAN)] {
            // A finite number or none.
            if let Some(result) = formula.evaluate(|_| value) {
                assert!(result.is_finite());
            }
        }
        let _ = formula.names();
    }
    if let Ok(request) = text.parse::<Request>() {
        for item in request.0.iter().flatten() {
            let _ = format!("{item:?}");
        }
    }
    let _ = text.parse::<Format>();
    let _ = Catalog::parse([("fuzz", text), ("cortex-a76", BASE)]);
});
