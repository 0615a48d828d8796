//! Tables and views of a dataset.

use super::Table;

/// A DuckDB view that a source adds to `views.sql`.
#[derive(Debug)]
pub struct View {
    /// Meaning of one row.
    pub help: &'static str,
    /// The statement.
    pub sql: &'static str,
}

/// The tables that a dataset can have, and the views beyond those of every table.
#[derive(Debug)]
pub struct DatasetSchema {
    pub tables: Vec<&'static Table>,
    /// Views of the sources.
    pub views: Vec<&'static View>,
}

impl DatasetSchema {
    /// No tables.
    pub const EMPTY: &'static Self = &Self {
        tables: Vec::new(),
        views: Vec::new(),
    };
}
