//! `profiler schema`: every table and column, from the declarations themselves.

use std::{collections::HashSet, fmt::Write as _};

use serde_json::{Value, json};

use crate::{
    schema::{Column, SCHEMA_VERSION, Table},
    sources::REGISTRY,
};

/// Every table that a source declares, once.
pub fn tables() -> impl Iterator<Item = &'static Table> {
    let mut seen = HashSet::new();
    let all = REGISTRY.iter().flat_map(|spec| spec.tables.iter().copied());
    all.filter(move |table| seen.insert(table.name))
}

/// The type of a column in the views, which have timestamps that DuckDB can calculate with.
pub fn type_in_views(column: &Column) -> String {
    match type_name(column).as_str() {
        "TIMESTAMP" => "TIMESTAMPTZ".to_owned(),
        other => other.to_owned(),
    }
}

/// The type as DuckDB calls it.
fn type_name(column: &Column) -> String {
    use arrow::datatypes::DataType;
    match (column.data_type)() {
        DataType::UInt64 => "UBIGINT".into(),
        DataType::UInt32 => "UINTEGER".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::Int32 => "INTEGER".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Utf8 | DataType::Dictionary(..) => "VARCHAR".into(),
        DataType::Timestamp(..) => "TIMESTAMP".into(),
        DataType::List(_) => "UBIGINT[]".into(),
        other => other.to_string(),
    }
}

/// The reference in `docs/metrics.md`.
pub fn markdown() -> String {
    let mut text = format!(
        "# Metrics\n\n<!-- Made by `cargo xtask docs` from the declarations in profiler/src/sources: do not edit. -->\n\n\
         Schema version {SCHEMA_VERSION}. A *counter* is the increase over `interval_ns`, a *gauge* the value at the tick; null means \"not \
         available\", never 0. Types are DuckDB's; each column carries `unit`, `kind` and `help` in its Arrow field \
         metadata. Tables are listed by the source that fills them (`--source`).\n"
    );
    for spec in REGISTRY {
        let _ = writeln!(text, "\n## Source `{}`: {}", spec.name, spec.help);
        for table in spec.tables {
            let _ = writeln!(text, "\n### Table `{}`\n\n{}.\n", table.name, table.help);
            text.push_str(
                "| column | type | unit | kind | null | meaning |\n|---|---|---|---|---|---|\n",
            );
            for column in table.columns() {
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {} | {} | {} | {} |",
                    column.name,
                    type_name(column),
                    column.unit,
                    column.kind.as_str(),
                    if column.nullable { "yes" } else { "" },
                    column.help.replace('|', "\\|"),
                );
            }
        }
    }
    text
}

/// The same for programs.
pub fn json() -> Value {
    let tables: Vec<_> = REGISTRY
        .iter()
        .flat_map(|spec| spec.tables.iter().map(move |table| (spec, table)))
        .map(|(spec, table)| {
            let columns: Vec<_> = table
                .columns()
                .map(|column| {
                    json!({
                        "name": column.name, "type": type_name(column), "unit": column.unit,
                        "kind": column.kind.as_str(), "nullable": column.nullable, "help": column.help,
                        "model": (!column.model.is_empty()).then_some(column.model),
                    })
                })
                .collect();
            json!({ "table": table.name, "source": spec.name, "help": table.help, "columns": columns })
        })
        .collect();
    json!({ "schema_version": SCHEMA_VERSION, "tables": tables })
}

/// A short list for the terminal.
pub fn text() -> String {
    let mut text = String::new();
    for spec in REGISTRY {
        for table in spec.tables {
            let _ = writeln!(text, "{}: {}", table.name, table.help);
            for column in table.columns() {
                let unit = if column.unit.is_empty() {
                    "-"
                } else {
                    column.unit
                };
                let name = column.name;
                let _ = writeln!(
                    text,
                    "  {name:24} {:10} {unit:6} {}",
                    type_name(column),
                    column.help
                );
            }
        }
    }
    text
}
