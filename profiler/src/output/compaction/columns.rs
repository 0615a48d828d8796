//! Columns of compacted files: those of the newest version of the schema, and others that were found.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::reduce;
use crate::{
    output::dataset::{compacted::plain, metadata, sparse},
    schema::{self, DatasetSchema, HOST_COLUMN, RUN_COLUMN},
};

/// Columns of all files, in the order of the newest version of the schema, then others.
#[derive(Default)]
pub struct Fields {
    names: Vec<String>,
    by_name: BTreeMap<String, Field>,
    /// Number of files with the column.
    count: BTreeMap<String, u64>,
    /// Whether [rows are left out](sparse::is_sparse) of a file.
    pub is_sparse: bool,
}

impl Fields {
    /// Adds the columns of a file. The host and extremes of gauges are columns of compacted files only.
    pub fn add(&mut self, schema: &Schema) {
        self.is_sparse |= sparse::is_sparse(schema);
        for field in schema.fields() {
            let name = field.name();
            if name == HOST_COLUMN.name || reduce::is_extreme(schema, name) {
                continue;
            }
            let nullable = field.is_nullable();
            let known = self.by_name.entry(name.clone()).or_insert_with(|| {
                self.names.push(name.clone());
                let data_type = plain(field.data_type()).clone();
                Field::clone(field).with_data_type(data_type)
            });
            if nullable {
                *known = known.clone().with_nullable(true);
            }
            *self.count.entry(name.clone()).or_default() += 1;
        }
    }

    /// Gives the columns of the newest version their place, type and description.
    pub fn known_first(&mut self, table: &schema::Table) {
        let mut names = Vec::new();
        for column in table.columns() {
            let field = column.field();
            let data_type = plain(field.data_type()).clone();
            let field = field.with_data_type(data_type);
            let known = self.by_name.get(column.name);
            let nullable = known.is_none_or(Field::is_nullable);
            self.by_name
                .insert(column.name.to_owned(), field.with_nullable(nullable));
            names.push(column.name.to_owned());
        }
        let others = std::mem::take(&mut self.names).into_iter();
        let others: Vec<_> = others.filter(|name| !names.contains(name)).collect();
        self.names = [names, others].concat();
    }

    /// The schema of the rows; the last column is the run.
    pub fn schema(&self, table: &str, schema: &DatasetSchema, files: u64) -> SchemaRef {
        let names = self.names.iter().filter(|name| *name != RUN_COLUMN.name);
        let fields = names.map(|name| {
            let field = &self.by_name[name];
            let is_in_all = self.count.get(name) == Some(&files);
            field
                .clone()
                .with_nullable(field.is_nullable() || !is_in_all)
        });
        let run = RUN_COLUMN.field().with_data_type(DataType::Utf8);
        // Rows without it get it when they are read.
        let fields: Vec<_> = fields.chain([run.with_nullable(true)]).collect();
        let mut all: Vec<(&str, String)> = vec![
            (metadata::TABLE, table.to_owned()),
            (metadata::SCHEMA_VERSION, schema::SCHEMA_VERSION.to_string()),
        ];
        if schema.table(table).is_some_and(|table| table.keyed) {
            all.push((metadata::KEYED, "true".to_owned()));
        }
        if self.is_sparse {
            all.push((metadata::SPARSE, "true".to_owned()));
        }
        let all = all.into_iter().map(|(key, value)| (key.to_owned(), value));
        Arc::new(Schema::new_with_metadata(
            fields,
            all.collect::<HashMap<_, _>>(),
        ))
    }
}

/// The schema of reduced rows, none of which is left out; the last column is the run.
pub fn with_extremes(schema: &Schema) -> SchemaRef {
    let extremes = reduce::extremes(schema).into_iter().map(Arc::new);
    let (run, others) = match schema.fields().split_last() {
        Some((run, others)) => (Some(run.clone()), others),
        None => (None, &[][..]),
    };
    let fields: Vec<_> = others.iter().cloned().chain(extremes).chain(run).collect();
    let mut all = schema.metadata().clone();
    all.remove(metadata::SPARSE);
    Arc::new(Schema::new_with_metadata(fields, all))
}

/// The schema of compacted files: the last column is the host.
pub fn with_host(schema: &Schema) -> SchemaRef {
    let host = Arc::new(HOST_COLUMN.field());
    let fields = schema.fields().iter().map(|field| {
        if field.name() == RUN_COLUMN.name {
            Arc::new(Field::clone(field).with_nullable(false))
        } else {
            field.clone()
        }
    });
    let fields: Vec<_> = fields.chain([host]).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

pub fn without_run(schema: &Schema) -> Schema {
    let fields = schema.fields();
    Schema::new(fields[..fields.len() - 1].to_vec())
}
