//! `profiler schema`: tables and columns, as the sources declare them.

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};

use super::{print, print_json};
use crate::{
    failure::Failure,
    schema::{SCHEMA_VERSION, duckdb::type_name},
    sources::REGISTRY,
};

/// Arguments of `profiler schema`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print Markdown: the reference in docs/metrics.md
    #[arg(long)]
    markdown: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the result cannot be encoded.
    pub fn run(&self) -> Result<u8, Failure> {
        if self.json {
            print_json(&json())?;
        } else if self.markdown {
            print(markdown())?;
        } else {
            print(text())?;
        }
        Ok(0)
    }
}

/// The reference in `docs/metrics.md`.
fn markdown() -> String {
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

fn json() -> Value {
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
fn text() -> String {
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
