//! The comparison as JSON.

use serde_json::{Value, json};

use super::{Compared, Comparison, Verdict};

fn compared(of: &Compared) -> Value {
    let verdict = match of.verdict() {
        Verdict::More => "more",
        Verdict::Less => "less",
        Verdict::Same => "same",
        Verdict::Unknown => "unknown",
    };
    json!({
        "name": of.name,
        "unit": of.unit.symbol(),
        "runs": of.runs,
        "a": of.a,
        "b": of.b,
        "ratio": of.ratio,
        "p": of.p,
        "p_corrected": of.corrected_p,
        "primary": of.is_primary,
        "verdict": verdict,
        "runs_needed": of.needed(),
    })
}

/// The JSON document of a comparison.
pub fn document(comparison: &Comparison) -> Value {
    let list = |all: &[Compared]| all.iter().map(compared).collect::<Vec<_>>();
    json!({
        "a": comparison.labels[0],
        "b": comparison.labels[1],
        "runs": comparison.runs,
        "machines": comparison.machines,
        "figures": list(&comparison.figures),
        "processes": list(&comparison.processes),
        "regions": list(&comparison.regions),
        "only_in": { "a": comparison.unmatched[0], "b": comparison.unmatched[1] },
        "doubts": { "a": comparison.doubts[0], "b": comparison.doubts[1] },
        "left_out": { "a": comparison.left_out[0], "b": comparison.left_out[1] },
    })
}
