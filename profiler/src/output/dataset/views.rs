//! `views.sql`: `DuckDB` views, one per table, and the useful joins. A table of which the run has no rows has a view without
//! rows, so that every query runs on every run.
//!
//! The paths are relative to the run directory: `cd RUN && duckdb -init views.sql`, or
//! `SET file_search_path = 'RUN'` before reading it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{self, Read as _},
};

use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};

use super::{
    files::{self, Directory},
    part,
};
use crate::{
    commands::schema,
    schema::Table,
    sources::{REGISTRY, View},
};

/// Name of the file.
pub const FILE: &str = "views.sql";

/// So often the file is written again when another host has meanwhile brought a table.
const TRIES: usize = 8;

/// Rewrites the file when the tables that have parts are others than before. `writer` keeps the temporary files
/// of several hosts apart.
///
/// # Errors
///
/// When the run cannot be read or the file cannot be written.
pub fn refresh(run: &Directory, writer: &str) -> io::Result<()> {
    // Who writes last has looked after writing: what another host wrote in between is not undone.
    for _ in 0..TRIES {
        if !refresh_once(run, writer)? {
            break;
        }
    }
    Ok(())
}

/// Whether the file was not right, and was written.
fn refresh_once(run: &Directory, writer: &str) -> io::Result<bool> {
    let mut tables = BTreeMap::new();
    for name in run.names()? {
        if let Ok(table) = run.sub(&name)
            && let Some(times) = times_of_parts(&table)?
        {
            tables.insert(name, times);
        }
    }
    let sql = sql(&tables);
    let mut before = String::new();
    let read = run
        .read(FILE)
        .and_then(|file| file.take(sql.len() as u64 + 1).read_to_string(&mut before));
    if read.is_ok() && before == sql {
        return Ok(false);
    }
    run.replace(FILE, writer, sql.as_bytes())?;
    Ok(true)
}

/// The columns of a table that are points in time, if it has any parts.
fn times_of_parts(table: &Directory) -> io::Result<Option<Vec<String>>> {
    for name in table.names()? {
        if files::host_of_directory(&name).is_some() {
            let host = table.sub(&name)?;
            let names = host.names()?;
            if let Some(part) = names.iter().rfind(|name| part::number(name).is_some()) {
                return Ok(Some(times(&host, part).unwrap_or_default()));
            }
        }
    }
    Ok(None)
}

fn times(directory: &Directory, name: &str) -> io::Result<Vec<String>> {
    let file = directory.read(name)?;
    let load = || Ok(ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())?);
    let metadata = part::decode(load)?;
    let fields = metadata.schema().fields().iter();
    // DuckDB takes no empty name, and none twice, whatever its case: one such view would end the script.
    let mut known = BTreeSet::new();
    Ok(fields
        .filter(|field| matches!(field.data_type(), DataType::Timestamp(..)))
        .map(|field| field.name().clone())
        .filter(|name| !name.is_empty() && known.insert(name.to_lowercase()))
        .collect())
}

/// The views of tables, each with those of its columns that are points in time.
///
/// `DuckDB` has functions only for microseconds: from version 2 on it reads our nanoseconds as a type of its own
/// that can neither be subtracted nor grouped into buckets.
fn sql(tables: &BTreeMap<String, Vec<String>>) -> String {
    let mut sql = "-- Use: cd RUN && duckdb -init views.sql\n".to_owned();
    for (table, times) in tables {
        let casts: Vec<_> = times
            .iter()
            .map(|time| format!("{0}::TIMESTAMPTZ AS {0}", quoted(time)))
            .collect();
        let replace = if casts.is_empty() {
            String::new()
        } else {
            format!(" REPLACE ({})", casts.join(", "))
        };
        let _ = write!(
            sql,
            "\nCREATE OR REPLACE VIEW {} AS\n\
             SELECT *{replace}\n\
             FROM read_parquet('{}/host=*/part-*.parquet',\n  \
             hive_partitioning = true, hive_types = {{'host': VARCHAR}}, union_by_name = true);\n",
            quoted(table),
            table.replace('\'', "''"),
        );
    }
    for table in schema::tables().filter(|table| !tables.contains_key(table.name)) {
        sql.push_str(&without_rows(table));
    }
    // Rows of threads are excluded, because the rows of their processes contain them.
    for table in schema::tables().filter(|table| table.thread_column().is_some()) {
        let table = table.name;
        let _ = write!(
            sql,
            "\n-- {table} of whole processes, with their names\n\
             CREATE OR REPLACE VIEW process_{table} AS\n\
             SELECT p.comm, p.cmdline, p.ppid, p.uid, t.*\n\
             FROM {table} t LEFT JOIN process p USING (host, pid, start_ts)\n\
             WHERE t.tid IS NULL;\n"
        );
    }
    for View { help, sql: view } in REGISTRY.iter().flat_map(|spec| spec.views) {
        let _ = write!(sql, "\n-- {help}\n{view}\n");
    }
    sql
}

/// The view of a table that the run has no rows of.
fn without_rows(table: &Table) -> String {
    let columns = table
        .columns()
        .map(|column| (column.name, schema::type_in_views(column)))
        .chain([("host", "VARCHAR".to_owned())])
        .map(|(name, of_type)| format!("NULL::{of_type} AS {}", quoted(name)));
    format!(
        "\n-- no rows were collected\nCREATE OR REPLACE VIEW {} AS\nSELECT {}\nWHERE false;\n",
        quoted(table.name),
        columns.collect::<Vec<_>>().join(", "),
    )
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, Schema};

    use super::*;
    use crate::schema::{Cell as _, Timestamp};

    fn tables(names: &[&str]) -> BTreeMap<String, Vec<String>> {
        let times = vec!["ts".to_owned(), "start_ts".to_owned()];
        names
            .iter()
            .map(|&name| (name.to_owned(), times.clone()))
            .collect()
    }

    #[test]
    fn tables_without_rows_have_views_of_the_same_types() {
        let sched = sql(&tables(&["sched"]));
        assert!(sched.contains("VIEW \"sched\" AS\nSELECT * REPLACE"));
        assert_eq!(sched.matches("VIEW \"sched\" AS").count(), 1);
        for table in schema::tables() {
            assert!(sched.contains(&format!("VIEW \"{}\" AS", table.name)));
        }
        let latency = sched.split("VIEW \"latency\" AS").nth(1).expect("a view");
        let latency = latency.split(';').next().expect("its text");
        for column in [
            "NULL::TIMESTAMPTZ AS \"ts\"",
            "NULL::UBIGINT AS \"sum_ns\"",
            "NULL::UBIGINT[] AS \"buckets\"",
            "NULL::VARCHAR AS \"host\"",
        ] {
            assert!(latency.contains(column), "{column}: {latency}");
        }
    }

    #[test]
    fn times_can_be_calculated_with() {
        let sched = sql(&tables(&["sched"]));
        assert!(sched.contains(
            "* REPLACE (\"ts\"::TIMESTAMPTZ AS \"ts\", \"start_ts\"::TIMESTAMPTZ AS \"start_ts\")"
        ));
        let none = sql(&BTreeMap::from([("host".to_owned(), Vec::new())]));
        assert!(none.contains("SELECT *\nFROM"));
    }

    #[test]
    fn columns_that_duckdb_does_not_take_are_left_out() {
        let names = ["ts", "TS", "", "end_ts", "ts"];
        let time = Timestamp::data_type();
        let fields = names.map(|name| Field::new(name, time.clone(), true));
        let part = part::Encoder::new(Arc::new(Schema::new(fields.to_vec()))).unwrap();
        let directory = tempfile::TempDir::new().unwrap();
        std::fs::write(directory.path().join("part"), part.finish().unwrap()).unwrap();
        let directory = Directory::open(directory.path(), None).unwrap();
        assert_eq!(times(&directory, "part").unwrap(), ["ts", "end_ts"]);
    }

    #[test]
    fn names_are_quoted() {
        let sql = sql(&tables(&["a'b\"c"]));
        assert!(sql.contains("\"a'b\"\"c\"") && sql.contains("'a''b\"c/host"));
    }
}
