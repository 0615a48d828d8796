//! Sums over many runs, by a label or a fact about the run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Figures, Summary, document::figures};
use crate::analysis::{
    catalog::{NODE, PROCESSES, TARGET},
    figure::{Figure, Unit},
    page::{NULL, Page, PageTable},
    scan::Values,
};

/// The runs with one value of a label.
struct Group {
    runs: usize,
    values: [Values; 3],
    /// Runs that have a value of each figure.
    known: BTreeMap<&'static str, usize>,
}

/// Facts about runs by which they can be added up.
const FACTS: [&str; 3] = ["user", "job", "run"];

/// Names by which runs can be added up: their labels, and facts about them.
pub fn keys(summaries: &[Summary]) -> BTreeSet<&str> {
    let identities = summaries.iter().map(|summary| &summary.identity);
    let labels = identities.flat_map(|identity| identity.labels.keys());
    labels.map(String::as_str).chain(FACTS).collect()
}

/// The figures that are added up.
const ADDED: [&[Figure]; 3] = [PROCESSES, TARGET, NODE];

fn groups(summaries: &[Summary], key: &str) -> BTreeMap<Option<String>, Group> {
    let mut groups: BTreeMap<Option<String>, Group> = BTreeMap::new();
    for summary in summaries {
        let identity = &summary.identity;
        let value = match key {
            "user" => identity.user.clone(),
            "job" => identity.job_id.clone(),
            "run" => Some(identity.run_id.clone()),
            label => identity.labels.get(label).cloned(),
        };
        let group = groups.entry(value).or_insert_with(|| Group {
            runs: 0,
            values: ADDED.map(Values::new),
            known: BTreeMap::new(),
        });
        group.runs += 1;
        for (own, other) in group.values.iter_mut().zip(&summary.values) {
            own.merge(other);
        }
        for name in figures_of(&summary.values).known.into_keys() {
            *group.known.entry(name).or_default() += 1;
        }
    }
    groups
}

fn figures_of(values: &[Values; 3]) -> Figures {
    let mut all = Figures::default();
    for (figures, values) in ADDED.into_iter().zip(values) {
        all.append(Figures::of(figures, Some(values)));
    }
    all
}

impl Group {
    /// Runs without a value of a figure that others have.
    fn unknown(&self, name: &str) -> usize {
        self.known.get(name).map_or(0, |known| self.runs - known)
    }

    /// A sum, and of how many runs it is if some have no value.
    fn text(&self, figures: &Figures, name: &str, unit: Unit) -> String {
        let Some(value) = figures.get(name) else {
            return NULL.to_owned();
        };
        let least = figures.coverage(name).map_or("", |_| "≥ ");
        let value = format!("{least}{}", unit.format(value));
        match self.unknown(name) {
            0 => value,
            unknown => format!("{value} ({} of {})", self.runs - unknown, self.runs),
        }
    }
}

/// Columns of the table: figure, its unit, and the heading.
const COLUMNS: [(&str, Unit, &str); 9] = [
    ("cpu_s", Unit::Seconds, "CPU time"),
    ("node_unused_cpu_hours", Unit::Hours, "unused CPUs"),
    ("runqueue_s", Unit::Seconds, "run queue"),
    ("file_read_bytes", Unit::Bytes, "read"),
    ("file_write_bytes", Unit::Bytes, "written"),
    ("storage_read_bytes", Unit::Bytes, "from storage"),
    ("storage_write_bytes", Unit::Bytes, "to storage"),
    ("target_energy_j", Unit::Joules, "energy (model)"),
    ("peak_memory_bytes", Unit::Bytes, "peak memory ≥"),
];

/// A table with a row for each value of the label `key`, of `user`, `job` or `run`.
pub fn by_label(summaries: &[Summary], key: &str) -> Page {
    let mut headings = vec!["runs"];
    headings.extend(COLUMNS.map(|(_, _, heading)| heading));
    headings.push(key);
    let mut table = PageTable::new(&headings);
    let mut is_partial = false;
    for (value, group) in groups(summaries, key) {
        let figures = figures_of(&group.values);
        is_partial |= COLUMNS.iter().any(|(name, ..)| group.unknown(name) > 0);
        let mut row = vec![group.runs.to_string()];
        row.extend(COLUMNS.map(|(name, unit, _)| group.text(&figures, name, unit)));
        row.push(value.unwrap_or_else(|| NULL.to_owned()));
        table.rows.push(row);
    }
    table.remove_unknown();
    let note = "(n of m): the sum of n runs; the others have no value.";
    Page {
        title: format!("{} runs by {key}", summaries.len()),
        tables: vec![table],
        notes: is_partial.then(|| note.to_owned()).into_iter().collect(),
        ..Page::default()
    }
}

/// The same as JSON, with all figures.
pub fn by_label_document(summaries: &[Summary], key: &str) -> Value {
    let groups = groups(summaries, key).into_iter().map(|(value, group)| {
        let mut map = figures(&ADDED, &figures_of(&group.values));
        map.insert(key.to_owned(), json!(value));
        map.insert("runs".to_owned(), json!(group.runs));
        map.insert("runs_with_value".to_owned(), json!(group.known));
        Value::Object(map)
    });
    groups.collect()
}
