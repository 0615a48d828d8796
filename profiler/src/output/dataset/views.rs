//! `views.sql`: `DuckDB` views of all tables, and common joins. A table without rows has an empty
//! view, so every query works on every run.
//!
//! Paths are relative to the run directory: `cd RUN && duckdb -init views.sql`, or
//! `SET file_search_path = 'RUN'` before reading the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{self, Read as _},
};

use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};

use super::{
    files::{self, Directory},
    parquet_file,
};
use crate::schema::{DatasetSchema, Table, View, duckdb};

/// Name of the file.
pub const FILE: &str = "views.sql";

/// Attempts to write the file while other hosts add tables.
const TRIES: usize = 8;

/// Rewrites the file if the set of tables with rows has changed. `writer` makes the name of the
/// temporary file unique among the hosts.
///
/// # Errors
///
/// When the run cannot be read or the file cannot be written.
pub fn refresh(run: &Directory, writer: &str, schema: &DatasetSchema) -> io::Result<()> {
    // The last writer reads the tables again after writing, so no table of another host is lost.
    for _ in 0..TRIES {
        if !refresh_once(run, writer, schema)? {
            break;
        }
    }
    Ok(())
}

/// Returns whether the file had to be written.
fn refresh_once(run: &Directory, writer: &str, schema: &DatasetSchema) -> io::Result<bool> {
    let mut tables = BTreeMap::new();
    for name in run.names()? {
        if let Ok(table) = run.sub(&name)
            && let Some(times) = times_of_table(&table)?
        {
            tables.insert(name, times);
        }
    }
    let sql = sql(&tables, schema);
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

/// The timestamp columns of a table; `None` without Parquet files.
fn times_of_table(table: &Directory) -> io::Result<Option<Vec<String>>> {
    for name in table.names()? {
        if files::host_of_directory(&name).is_some() {
            let host = table.sub(&name)?;
            let names = host.names()?;
            if let Some(name) = names
                .iter()
                .rfind(|name| parquet_file::number(name).is_some())
            {
                return Ok(Some(times(&host, name).unwrap_or_default()));
            }
        }
    }
    Ok(None)
}

fn times(directory: &Directory, name: &str) -> io::Result<Vec<String>> {
    let file = directory.read(name)?;
    let load = || Ok(ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())?);
    let metadata = parquet_file::decode(load)?;
    let fields = metadata.schema().fields().iter();
    // DuckDB rejects empty names, and names that differ only in case: the script would end there.
    let mut known = BTreeSet::new();
    Ok(fields
        .filter(|field| matches!(field.data_type(), DataType::Timestamp(..)))
        .map(|field| field.name().clone())
        .filter(|name| !name.is_empty() && known.insert(name.to_lowercase()))
        .collect())
}

/// The content of the file, for tables with these timestamp columns.
///
/// The functions of `DuckDB` take microseconds. From version 2 on, it reads nanoseconds as a
/// separate type, which can neither be subtracted nor grouped into buckets.
fn sql(tables: &BTreeMap<String, Vec<String>>, schema: &DatasetSchema) -> String {
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
    for table in &schema.tables {
        if !tables.contains_key(table.name) {
            sql.push_str(&without_rows(table));
        }
    }
    // Rows of threads are excluded, because the rows of their processes contain them.
    let has_threads = |table: &&&Table| table.thread_column().is_some();
    for table in schema.tables.iter().filter(has_threads) {
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
    for View { help, sql: view } in &schema.views {
        let _ = write!(sql, "\n-- {help}\n{view}\n");
    }
    sql
}

/// The view of a table without rows.
fn without_rows(table: &Table) -> String {
    let columns = table
        .columns()
        .map(|column| (column.name, duckdb::type_in_views(column)))
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
    use crate::{
        columns,
        schema::{Buckets, Cell as _, OwnerKey, TickKey, Timestamp, TypedTable},
    };

    columns! {
        /// A sum and a histogram.
        pub struct Row {
            sum_ns: u64 = Counter("ns", "A sum"),
            buckets: Buckets = Counter("1", "A histogram"),
        }
    }

    static OWNED: TypedTable<OwnerKey, Row> = TypedTable::new("owned", "Rows of processes");
    static PLAIN: TypedTable<TickKey, Row> = TypedTable::new("plain", "Rows of the node");

    fn sql_of(names: &[&str]) -> String {
        let times = vec!["ts".to_owned(), "start_ts".to_owned()];
        let tables = names.iter().map(|&name| (name.to_owned(), times.clone()));
        let schema = DatasetSchema {
            tables: vec![&OWNED, &PLAIN],
            views: Vec::new(),
        };
        sql(&tables.collect(), &schema)
    }

    #[test]
    fn tables_without_rows_have_views_of_the_same_types() {
        let sql = sql_of(&["plain"]);
        assert!(sql.contains("VIEW \"plain\" AS\nSELECT * REPLACE"));
        assert_eq!(sql.matches("VIEW \"plain\" AS").count(), 1);
        let owned = sql.split("VIEW \"owned\" AS").nth(1).expect("a view");
        let owned = owned.split(';').next().expect("its text");
        for column in [
            "NULL::TIMESTAMPTZ AS \"ts\"",
            "NULL::UBIGINT AS \"sum_ns\"",
            "NULL::UBIGINT[] AS \"buckets\"",
            "NULL::VARCHAR AS \"host\"",
        ] {
            assert!(owned.contains(column), "{column}: {owned}");
        }
    }

    #[test]
    fn tables_of_processes_have_views_without_threads() {
        let sql = sql_of(&[]);
        assert!(sql.contains("VIEW process_owned AS") && !sql.contains("process_plain"));
    }

    #[test]
    fn timestamps_are_cast_to_microseconds() {
        assert!(sql_of(&["plain"]).contains(
            "* REPLACE (\"ts\"::TIMESTAMPTZ AS \"ts\", \"start_ts\"::TIMESTAMPTZ AS \"start_ts\")"
        ));
        let tables = BTreeMap::from([("host".to_owned(), Vec::new())]);
        assert!(sql(&tables, DatasetSchema::EMPTY).contains("SELECT *\nFROM"));
    }

    #[test]
    fn columns_that_duckdb_rejects_are_left_out() {
        let names = ["ts", "TS", "", "end_ts", "ts"];
        let time = Timestamp::data_type();
        let fields = names.map(|name| Field::new(name, time.clone(), true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let file = parquet_file::Encoder::new(schema).unwrap();
        let directory = tempfile::TempDir::new().unwrap();
        std::fs::write(directory.path().join("part"), file.finish().unwrap()).unwrap();
        let directory = Directory::open(directory.path(), None).unwrap();
        assert_eq!(times(&directory, "part").unwrap(), ["ts", "end_ts"]);
    }

    #[test]
    fn names_are_quoted() {
        let sql = sql_of(&["a'b\"c"]);
        assert!(sql.contains("\"a'b\"\"c\"") && sql.contains("'a''b\"c/host"));
    }
}
