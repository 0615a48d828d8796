//! Regions, phases and events of the application, for formats that know tasks.

use serde_json::{Map, Value};

use super::selection::Selected;
use crate::{
    analysis::{
        rows::{ProcessKey, Texts, integers, processes, times},
        stored_run::{StoredHost, StoredRun},
    },
    failure::Failure,
};

/// A row of `region`. Times are in µs since 1970-01-01 UTC.
pub struct Mark {
    /// Number of the region, unique for the host.
    pub number: i64,
    pub process: ProcessKey,
    /// `region`, `phase` or `event`.
    pub op: String,
    /// Empty for an end without a start that has no name.
    pub name: String,
    pub kind: Option<String>,
    /// Identifiers that the application gave, of the region and the enclosing one.
    pub id: Option<String>,
    pub parent: Option<String>,
    /// Number of the enclosing region.
    pub parent_number: Option<i64>,
    pub group: Option<String>,
    pub status: Option<String>,
    /// `None` for an end without a start.
    pub start: Option<i64>,
    /// `None` while it is open.
    pub end: Option<i64>,
    /// Last update.
    pub updated: i64,
    pub attributes: Option<Value>,
    pub used: Option<Value>,
    pub generated: Option<Value>,
    pub tags: Option<Value>,
}

const COLUMNS: [&str; 19] = [
    "ts",
    "pid",
    "start_ts",
    "region_id",
    "op",
    "name",
    "kind",
    "user_id",
    "user_parent_id",
    "parent_region_id",
    "group",
    "status",
    "region_start_ts",
    "region_end_ts",
    "attributes",
    "used",
    "generated",
    "tags",
    "interval_ns",
];

/// Passes the marks of a host on. Files that cannot be read are added to `failures`.
///
/// # Errors
///
/// The first one of `each`.
pub fn for_each(
    run: &StoredRun,
    host: &StoredHost,
    selected: &Selected,
    failures: &mut Vec<String>,
    mut each: impl FnMut(Mark) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut result = Ok(());
    let read = run.read("region", host, &COLUMNS, |batch| {
        let texts = |name: &str| Texts::of(batch, name);
        let [ops, names, kinds, ids, parents, groups, statuses] = [
            "op",
            "name",
            "kind",
            "user_id",
            "user_parent_id",
            "group",
            "status",
        ]
        .map(texts);
        let [attributes, used, generated, tags] =
            ["attributes", "used", "generated", "tags"].map(texts);
        let [numbers, parent_numbers] =
            ["region_id", "parent_region_id"].map(|name| integers(batch, name));
        let [updates, starts, ends] =
            ["ts", "region_start_ts", "region_end_ts"].map(|name| times(batch, name));
        let rows = selected.rows(batch);
        for (row, process) in processes(batch).into_iter().enumerate() {
            let is_selected = rows.as_ref().is_none_or(|rows| rows[row]);
            let (Some(number), Some(process), Some(updated)) =
                (numbers[row], process, updates[row])
            else {
                continue;
            };
            if !is_selected || result.is_err() {
                continue;
            }
            let text = |texts: &Texts| texts.get(row).map(str::to_owned);
            result = each(Mark {
                number,
                process,
                op: text(&ops).unwrap_or_default(),
                name: text(&names).unwrap_or_default(),
                kind: text(&kinds),
                id: text(&ids),
                parent: text(&parents),
                parent_number: parent_numbers[row],
                group: text(&groups),
                status: text(&statuses),
                start: starts[row],
                end: ends[row],
                updated,
                attributes: json(attributes.get(row)),
                used: json(used.get(row)),
                generated: json(generated.get(row)),
                tags: json(tags.get(row)),
            });
        }
    });
    failures.extend(read.err().into_iter().flatten());
    result
}

/// What is not JSON remains a text.
fn json(text: Option<&str>) -> Option<Value> {
    text.map(|text| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)))
}

/// Values with names: those of a list have numbers.
pub fn named(values: Value) -> Map<String, Value> {
    match values {
        Value::Object(values) => values,
        Value::Array(items) => {
            let items = items.into_iter().enumerate();
            items
                .map(|(number, item)| (format!("item_{number}"), item))
                .collect()
        }
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}
