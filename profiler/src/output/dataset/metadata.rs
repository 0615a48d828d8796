//! Metadata of journals and Parquet files.

use std::sync::Arc;

use arrow::datatypes::{Fields, Schema, SchemaRef};

use crate::{
    schema::{self, Table},
    support::labels::Labels,
};

/// The run that the rows belong to.
pub const RUN_ID: &str = "profiler.run_id";
/// The node that the rows come from.
pub const HOSTNAME: &str = "profiler.hostname";
/// The table that the rows belong to.
pub const TABLE: &str = "profiler.table";
/// [`SCHEMA_VERSION`](schema::SCHEMA_VERSION) of the writer.
pub const SCHEMA_VERSION: &str = "profiler.schema_version";
/// [`Labels`] of the run as a JSON object; missing if there are none.
pub const LABELS: &str = "profiler.labels";
/// `true` for [keyed tables](Table::keyed).
pub const KEYED: &str = "profiler.lifetimes";

/// `true` in tables from which [rows of sleeping processes](schema::Table::sparse) are left out.
pub const SPARSE: &str = "profiler.sparse";

/// Shortest time of a row of a compacted file in µs; missing if all rows are as sampled.
pub const RESOLUTION: &str = "profiler.resolution_us";
/// Rows of a compacted file by host and run, as a JSON object.
pub const ROWS: &str = "profiler.rows";

/// The schema of a table whose columns can all be null.
pub fn nullable(table: &Table) -> SchemaRef {
    let schema = table.schema();
    let fields = schema.fields().iter();
    let fields = fields.map(|field| Arc::new(field.as_ref().clone().with_nullable(true)));
    let fields: Fields = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The schema of a table, or the like of it, with the metadata of a file.
pub fn with_metadata(
    table: &Table,
    schema: &SchemaRef,
    run_id: &str,
    hostname: &str,
    labels: &Labels,
    sparse: bool,
) -> SchemaRef {
    let mut all = schema.metadata().clone();
    let entries = [
        (RUN_ID, run_id),
        (HOSTNAME, hostname),
        (TABLE, table.name),
        (SCHEMA_VERSION, &schema::SCHEMA_VERSION.to_string()),
    ];
    all.extend(entries.map(|(key, value)| (key.to_owned(), value.to_owned())));
    if !labels.is_empty()
        && let Ok(labels) = serde_json::to_string(labels)
    {
        all.insert(LABELS.to_owned(), labels);
    }
    if table.keyed {
        all.insert(KEYED.to_owned(), "true".to_owned());
    }
    if sparse && table.sparse.is_some() {
        all.insert(SPARSE.to_owned(), "true".to_owned());
    }
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), all))
}
