//! Metadata of journals and Parquet files.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};

use crate::schema::{self, Table};

/// The run that the rows belong to.
pub const RUN_ID: &str = "profiler.run_id";
/// The node that the rows come from.
pub const HOSTNAME: &str = "profiler.hostname";
/// The table that the rows belong to.
pub const TABLE: &str = "profiler.table";
/// [`SCHEMA_VERSION`](schema::SCHEMA_VERSION) of the writer.
pub const SCHEMA_VERSION: &str = "profiler.schema_version";
/// `true` for [keyed tables](Table::keyed).
pub const KEYED: &str = "profiler.lifetimes";

pub fn with_metadata(table: &Table, run_id: &str, hostname: &str) -> SchemaRef {
    let schema = table.schema();
    let mut all = schema.metadata().clone();
    let entries = [
        (RUN_ID, run_id),
        (HOSTNAME, hostname),
        (TABLE, table.name),
        (SCHEMA_VERSION, &schema::SCHEMA_VERSION.to_string()),
    ];
    all.extend(entries.map(|(key, value)| (key.to_owned(), value.to_owned())));
    if table.keyed {
        all.insert(KEYED.to_owned(), "true".to_owned());
    }
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), all))
}
