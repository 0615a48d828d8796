//! `profiler schema`: tables and columns, as the sources declare them.

use std::fmt::Write as _;

use clap::Args;

use super::{print, print_json};
use crate::{
    failure::Failure,
    schema::{Column, SCHEMA_VERSION, Table, duckdb::type_name},
    sources::{REGISTRY, dataset_schema},
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
            print_json(&dataset_schema().to_json())?;
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
         Schema version {SCHEMA_VERSION}. A *counter* is the increase over `interval_ns`, a *gauge* the value at the \
         sample, a *maximum* the largest value in the interval; null means \"not available\", never 0. Types are \
         DuckDB's; each column carries `unit`, `kind` and `help` in its Arrow field metadata. Every table also has \
         the columns `run`, the name of the run, and `host`, which readers derive from the path. `--source` \
         selects sources.\n\n\
         | table or view | source | contents |\n|---|---|---|\n"
    );
    let mut sections = String::new();
    let of_sources = dataset_schema().tables_of_sources();
    for of in of_sources.iter().filter(|of| of.sources.is_empty()) {
        entry(
            &mut text,
            "Table",
            of.table.name,
            &of.sources,
            of.table.help,
        );
        sections.push_str("\n## The run\n");
        table(&mut sections, of.table);
    }
    for spec in REGISTRY {
        let _ = writeln!(sections, "\n## Source `{}`: {}", spec.name, spec.help);
        for filled in spec.tables {
            let of = of_sources.iter().find(|of| of.table.name == filled.name);
            let sources = of.map_or(&[][..], |of| &of.sources[..]);
            if sources.first() == Some(&spec.name) {
                entry(&mut text, "Table", filled.name, sources, filled.help);
                table(&mut sections, filled);
            } else {
                let name = filled.name;
                let _ = writeln!(sections, "\nAlso fills [`{name}`](#table-{name}).");
            }
        }
        for view in spec.views {
            entry(&mut text, "View", view.name, &[spec.name], view.help);
            let _ = writeln!(sections, "\n### View `{}`\n\n{}.\n", view.name, view.help);
            rows(&mut sections, (view.columns)().into_iter());
        }
    }
    text + &sections
}

/// A line of the index: a link to the heading, the sources, and the description.
fn entry(text: &mut String, kind: &str, name: &str, sources: &[&str], help: &str) {
    let anchor = kind.to_lowercase();
    let sources: Vec<_> = sources.iter().map(|source| format!("`{source}`")).collect();
    let sources = sources.join(", ");
    let _ = writeln!(
        text,
        "| [`{name}`](#{anchor}-{name}) | {sources} | {help} |"
    );
}

fn table(text: &mut String, table: &Table) {
    let _ = writeln!(text, "\n### Table `{}`\n\n{}.\n", table.name, table.help);
    rows(text, table.columns());
}

fn rows(text: &mut String, columns: impl Iterator<Item = &'static Column>) {
    text.push_str("| column | type | unit | kind | null | meaning |\n|---|---|---|---|---|---|\n");
    for column in columns {
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

/// A short list for the terminal.
fn text() -> String {
    let mut text = String::new();
    for table in dataset_schema().tables() {
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
    text
}
