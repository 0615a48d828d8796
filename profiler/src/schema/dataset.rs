//! Tables and views of a dataset.

use serde_json::{Value, json};

use super::{Column, Edition, RUN_COLUMN, SCHEMA_VERSION, Table, duckdb::type_name, run};

/// A DuckDB view of `views.sql`.
#[derive(Debug)]
pub struct View {
    pub name: &'static str,
    /// Meaning of one row.
    pub help: &'static str,
    pub query: &'static str,
    /// The columns of the result.
    pub columns: fn() -> Vec<&'static Column>,
}

/// A table, and the sources that fill it.
#[derive(Debug)]
pub struct SourceTable {
    pub table: &'static Table,
    /// Names on the command line; none for the table of the run itself.
    pub sources: Vec<&'static str>,
}

/// The tables that a dataset can have, and the views beyond those of every table.
#[derive(Debug)]
pub struct DatasetSchema {
    tables: Vec<SourceTable>,
    views: Vec<&'static View>,
}

impl DatasetSchema {
    /// No tables.
    pub const EMPTY: &'static Self = &Self {
        tables: Vec::new(),
        views: Vec::new(),
    };

    /// The table of the run, and tables and views of sources. Several sources can fill a table.
    pub fn new(
        tables: impl IntoIterator<Item = (&'static str, &'static Table)>,
        views: Vec<&'static View>,
    ) -> Self {
        let mut known = vec![SourceTable {
            table: run::RUN.untyped(),
            sources: Vec::new(),
        }];
        for (source, table) in tables {
            match known.iter_mut().find(|of| of.table.name == table.name) {
                Some(of) => of.sources.push(source),
                None => known.push(SourceTable {
                    table,
                    sources: vec![source],
                }),
            }
        }
        Self {
            tables: known,
            views,
        }
    }

    /// The tables, that of the run first.
    pub fn tables(&self) -> impl Iterator<Item = &'static Table> {
        self.tables.iter().map(|of| of.table)
    }

    /// The table of this name.
    pub fn table(&self, name: &str) -> Option<&'static Table> {
        self.tables().find(|table| table.name == name)
    }

    /// The tables with their sources.
    pub fn tables_of_sources(&self) -> &[SourceTable] {
        &self.tables
    }

    /// The views beyond those of every table.
    pub fn views(&self) -> impl Iterator<Item = &'static View> {
        self.views.iter().copied()
    }

    /// Which of two data dictionaries is the newer one.
    pub fn edition(&self) -> Edition {
        Edition::of_program(self.tables().flat_map(Table::columns).count())
    }

    /// The data dictionary: tables, views and columns with type, unit and meaning.
    pub fn to_json(&self) -> Value {
        let tables: Vec<_> = self
            .tables
            .iter()
            .map(|SourceTable { table, sources }| {
                json!({
                    "table": table.name, "sources": sources, "help": table.help,
                    "columns": columns(table.columns().chain([&RUN_COLUMN])),
                })
            })
            .collect();
        let views: Vec<_> = self
            .views()
            .map(|view| {
                json!({
                    "view": view.name, "help": view.help,
                    "columns": columns((view.columns)().into_iter()),
                })
            })
            .collect();
        json!({
            "schema_version": SCHEMA_VERSION, "edition": self.edition().to_string(),
            "tables": tables, "views": views,
        })
    }
}

fn columns(columns: impl Iterator<Item = &'static Column>) -> Vec<Value> {
    columns
        .map(|column| {
            json!({
                "name": column.name, "type": type_name(column), "unit": column.unit,
                "kind": column.kind.as_str(), "nullable": column.nullable, "help": column.help,
                "model": (!column.model.is_empty()).then_some(column.model),
            })
        })
        .collect()
}
