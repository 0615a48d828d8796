//! `profiler check`: which sources work here, why others do not, and what would enable them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    host::Host,
    sources::{REGISTRY, Support},
};

fn parts(support: &Support) -> (&'static str, &str, &str) {
    match support {
        Support::Works => ("works", "", ""),
        Support::Partly { why, remedy } => ("partly", why, remedy),
        Support::No { why, remedy } => ("no", why, remedy),
    }
}

/// A table for people.
pub fn table(host: &Host) -> String {
    let width = REGISTRY
        .iter()
        .map(|spec| spec.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for spec in REGISTRY {
        let support = (spec.probe)(host);
        let (status, why, remedy) = parts(&support);
        let _ = writeln!(text, "{:width$}  {status:6}  {}", spec.name, spec.help);
        if !why.is_empty() {
            let _ = writeln!(text, "{:width$}          {why}", "");
        }
        if !remedy.is_empty() {
            let _ = writeln!(text, "{:width$}          → {remedy}", "");
        }
    }
    text
}

/// The same for programs.
pub fn json(host: &Host) -> Value {
    let sources: Vec<_> = REGISTRY
        .iter()
        .map(|spec| {
            let support = (spec.probe)(host);
            let (status, why, remedy) = parts(&support);
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            json!({
                "source": spec.name,
                "status": status,
                "help": spec.help,
                "why": text(why),
                "remedy": text(remedy),
                "tables": spec.tables.iter().map(|table| table.name).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "hostname": host.hostname, "kernel": host.kernel_release, "sources": sources })
}
