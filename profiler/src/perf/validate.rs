//! `profiler events --validate`: opens every group, to test whether this machine can count it.

use std::fmt::Write as _;

use perfevents::Catalog;

use super::{Machine, NodeCounters, Plan, Selection};
use crate::host::Host;

/// One line for each group of each table of this machine.
pub fn validate(host: &Host, catalog: &Catalog) -> String {
    let machine = Machine::read(host, catalog);
    let mut text = String::new();
    for table in machine.tables() {
        let width = table.groups.keys().map(String::len).max().unwrap_or(0);
        let _ = writeln!(text, "{} ({})", table.name, table.id);
        for name in table.groups.keys() {
            let mut selection = Selection::default();
            selection.groups = Some(vec![name.clone()]);
            let verdict = match Plan::new(&machine, &selection) {
                Ok(plan) => verdict(plan, &machine, name),
                Err(error) => error.to_string(),
            };
            let _ = writeln!(text, "  {name:width$}  {verdict}");
        }
    }
    text
}

/// Result of opening a group.
fn verdict(mut plan: Plan, machine: &Machine<'_>, name: &str) -> String {
    plan.probe(machine);
    let node = NodeCounters::open(&mut plan, machine, false);
    let is_counted = !plan.core_groups.is_empty() || !node.is_empty();
    let notes: Vec<String> = plan
        .notes
        .iter()
        .map(|note| match &note.items[..] {
            [item] if item == name => note.reason.clone(),
            _ => note.to_string(),
        })
        .collect();
    match (is_counted, notes.is_empty()) {
        (true, true) => "counted".to_owned(),
        (true, false) => format!("counted, but {}", notes.join("; ")),
        (false, _) => format!("not counted: {}", notes.join("; ")),
    }
}
