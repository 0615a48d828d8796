//! Sums over many runs, by a label or a fact about the run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Figures, Summary, document::figures};
use crate::analysis::{
    catalog::{NODE, PROCESSES, TARGET},
    figure::Unit,
    page::{NULL, Page, PageTable},
    scan::Values,
};

/// The runs with one value of a label.
struct Group {
    runs: usize,
    values: [Values; 3],
}

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
        if let Some(group) = groups.get_mut(&value) {
            group.runs += 1;
            for (own, other) in group.values.iter_mut().zip(&summary.values) {
                own.merge(other);
            }
        } else {
            let values = summary.values.clone();
            groups.insert(value, Group { runs: 1, values });
        }
    }
    groups
}

impl Group {
    fn figures(&self) -> Figures {
        let mut all = Figures::default();
        for (figures, values) in [PROCESSES, TARGET, NODE].into_iter().zip(&self.values) {
            all.0.append(&mut Figures::of(figures, Some(values)).0);
        }
        all
    }
}

/// Columns of the table: figure, its unit, and the heading.
const COLUMNS: [(&str, Unit, &str); 7] = [
    ("cpu_s", Unit::Seconds, "CPU time"),
    ("node_unused_cpu_hours", Unit::Hours, "unused CPUs"),
    ("runqueue_s", Unit::Seconds, "run queue"),
    ("file_read_bytes", Unit::Bytes, "read"),
    ("file_write_bytes", Unit::Bytes, "written"),
    ("target_energy_j", Unit::Joules, "energy (model)"),
    ("peak_rss_bytes", Unit::Bytes, "peak memory"),
];

/// A table with a row for each value of the label `key`, of `user`, `job` or `run`.
pub fn by_label(summaries: &[Summary], key: &str) -> Page {
    let mut headings = vec!["runs"];
    headings.extend(COLUMNS.map(|(_, _, heading)| heading));
    headings.push(key);
    let mut table = PageTable::new(&headings);
    for (value, group) in groups(summaries, key) {
        let figures = group.figures();
        let mut row = vec![group.runs.to_string()];
        row.extend(COLUMNS.map(|(name, unit, _)| {
            let value = figures.get(name);
            value.map_or(NULL.to_owned(), |value| unit.format(value))
        }));
        row.push(value.unwrap_or_else(|| NULL.to_owned()));
        table.rows.push(row);
    }
    Page {
        title: format!("{} runs by {key}", summaries.len()),
        tables: vec![table],
        ..Page::default()
    }
}

/// The same as JSON, with all figures.
pub fn by_label_document(summaries: &[Summary], key: &str) -> Value {
    let groups = groups(summaries, key).into_iter().map(|(value, group)| {
        let mut map = figures(&[PROCESSES, TARGET, NODE], &group.figures());
        map.insert(key.to_owned(), json!(value));
        map.insert("runs".to_owned(), json!(group.runs));
        Value::Object(map)
    });
    groups.collect()
}
