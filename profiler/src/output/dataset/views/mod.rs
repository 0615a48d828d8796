//! `views.sql`: the views of the tables of a run.
//!
//! It has `DuckDB` views of all tables, and common joins. A table without rows has an empty
//! view, so every query works on every run. Paths are relative to the run directory:
//! `cd RUN && duckdb -init views.sql`, or `SET file_search_path = 'RUN'` before reading the file.

mod sql;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _},
    sync::Arc,
};

use arrow::datatypes::{DataType, Field, TimeUnit};

use super::{
    compacted::{self, CompactedRun},
    dictionary::{README_FILE, SCHEMA_FILE},
    files::{self, Directory},
    parquet_file,
    parquet_reader::ParquetReader,
    sparse,
};
use crate::schema::DatasetSchema;

/// Name of the file with the views.
pub const FILE: &str = "views.sql";

/// Attempts to write the file while other hosts add tables.
const TRIES: usize = 8;

/// Whether a file of the run directory describes its tables. Runs of older versions have the files that
/// are beside the runs now.
pub fn is_description(name: &str) -> bool {
    [FILE, SCHEMA_FILE, README_FILE].contains(&name)
}

/// Columns of a Parquet file.
#[derive(Clone, Debug, Default)]
struct FileColumns {
    names: Vec<String>,
    /// Whether rows are in files of the run.
    is_in_run: bool,
    /// Compacted files with rows of the run.
    compacted: Vec<String>,
    /// Timestamps in ns, as in version 2 of the schema.
    times_in_ns: Vec<String>,
    /// Whether [rows are left out](sparse::is_sparse).
    is_sparse: bool,
}

/// Rewrites the file if its content has changed. `writer` makes the name of the temporary file unique
/// among the hosts.
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
    let run_id = run.path().file_name().unwrap_or_default();
    let run_id = run_id.to_string_lossy();
    let mut tables = BTreeMap::new();
    // A file that cannot be read must not hide the rows of the run.
    let compacted = CompactedRun::read(run).map_err(|error| {
        let message = format!("{}: {error}", compacted::FILE);
        io::Error::new(error.kind(), message)
    })?;
    let compacted = compacted.unwrap_or_default();
    for name in run.names()? {
        if let Ok(table) = run.sub(&name)
            && let Some(columns) = columns_of_table(&name, &table, &compacted)?
        {
            tables.insert(name, columns);
        }
    }
    for table in compacted.tables.keys() {
        let files = compacted.files_of(table);
        let Some(&newest) = files.last() else {
            continue;
        };
        let columns = tables.entry(table.clone()).or_insert_with(|| {
            let (day, name) = compacted::day_and_name(newest).unwrap_or_default();
            let directory = run.sub("..").and_then(|out| out.sub(compacted::DIRECTORY));
            let directory = directory.and_then(|of| of.sub(table)?.sub(day));
            let columns = directory.and_then(|directory| columns(&directory, name));
            columns.unwrap_or_default()
        });
        columns.compacted = files.into_iter().map(str::to_owned).collect();
    }
    let sql = sql::text(&run_id, &tables, schema);
    update(run, writer, &sql)
}

/// Writes the file unless it has this content. Returns whether it had to be written.
fn update(run: &Directory, writer: &str, content: &str) -> io::Result<bool> {
    let mut before = String::new();
    let read = run.read(FILE).and_then(|file| {
        file.take(content.len() as u64 + 1)
            .read_to_string(&mut before)
    });
    if read.is_ok() && before == content {
        return Ok(false);
    }
    run.replace(FILE, writer, content.as_bytes())?;
    Ok(true)
}

/// The columns of a table; `None` without Parquet files.
fn columns_of_table(
    name: &str,
    table: &Directory,
    compacted: &CompactedRun,
) -> io::Result<Option<FileColumns>> {
    for directory in table.names()? {
        if let Some(host) = files::host_of_directory(&directory)
            && let Ok(directory) = table.sub(&directory)
        {
            let compacted = compacted.of(name, host);
            let names = directory.names()?;
            let numbers = names.iter().filter_map(|name| parquet_file::number(name));
            let mut numbers: BTreeSet<u32> = numbers.collect();
            if let Some(compacted) = compacted {
                numbers = compacted.remaining(&directory, numbers)?;
            }
            if let Some(&last) = numbers.last() {
                let columns = columns(&directory, &parquet_file::name(last));
                return Ok(Some(FileColumns {
                    is_in_run: true,
                    ..columns.unwrap_or_default()
                }));
            }
        }
    }
    Ok(None)
}

fn columns(directory: &Directory, name: &str) -> io::Result<FileColumns> {
    let reader = parquet_file::decode(|| ParquetReader::open(directory, name))?;
    // DuckDB rejects empty names, and names that differ only in case: the script would end there.
    let mut known = BTreeSet::new();
    let fields = reader.schema().fields().iter();
    let fields: Vec<_> = fields
        .filter(|field| !field.name().is_empty() && known.insert(field.name().to_lowercase()))
        .collect();
    let is_in_ns = |field: &&&Arc<Field>| {
        matches!(
            field.data_type(),
            DataType::Timestamp(TimeUnit::Nanosecond, _)
        )
    };
    let names = |fields: &mut dyn Iterator<Item = &&Arc<Field>>| {
        fields.map(|field| field.name().clone()).collect()
    };
    Ok(FileColumns {
        names: names(&mut fields.iter()),
        times_in_ns: names(&mut fields.iter().filter(is_in_ns)),
        is_sparse: sparse::is_sparse(reader.schema()),
        ..FileColumns::default()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, Schema};

    use super::*;
    use crate::{
        columns,
        schema::{Buckets, OwnerKey, Table, TickKey, TypedTable},
    };

    columns! {
        /// A sum and a histogram.
        pub struct Row {
            sum_ns: u64 = Counter("ns", "A sum"),
            buckets: Buckets = Counter("1", "A histogram"),
        }
    }

    static OWNED: TypedTable<OwnerKey, Row> = TypedTable::new("owned", "Rows of processes");
    static NODE_ROWS: TypedTable<TickKey, Row> = TypedTable::new("plain", "Rows of the node");

    fn sql_of(names: &[&str]) -> String {
        let times = ["ts", "start_ts"].map(str::to_owned).to_vec();
        let columns = FileColumns {
            names: times.clone(),
            times_in_ns: times,
            is_in_run: true,
            is_sparse: false,
            compacted: Vec::new(),
        };
        let tables = names.iter().map(|&name| (name.to_owned(), columns.clone()));
        let declared: [&Table; 2] = [&OWNED, &NODE_ROWS];
        let schema = DatasetSchema::new(declared.map(|table| ("source", table)), Vec::new());
        sql::text("a run", &tables.collect(), &schema)
    }

    #[test]
    fn tables_without_rows_have_views_of_the_same_types() {
        let sql = sql_of(&["plain"]);
        assert!(sql.contains("VIEW \"plain\" AS\nSELECT * REPLACE"));
        assert_eq!(sql.matches("VIEW \"plain\" AS").count(), 1);
        let owned = sql.split("VIEW \"owned\" AS").nth(1).expect("a view");
        let owned = owned.split(';').next().expect("its text");
        for column in [
            "\"ts\" TIMESTAMPTZ,",
            "\"sum_ns\" UBIGINT,",
            "\"buckets\" UBIGINT[],",
            "\"host\" VARCHAR))",
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
    fn timestamps_in_ns_are_cast() {
        assert!(sql_of(&["plain"]).contains(
            "* REPLACE (\"ts\"::TIMESTAMPTZ AS \"ts\", \"start_ts\"::TIMESTAMPTZ AS \"start_ts\"), \
             'a run' AS run\n"
        ));
        let columns = FileColumns {
            names: vec!["ts".to_owned(), "run".to_owned()],
            is_in_run: true,
            ..FileColumns::default()
        };
        let tables = BTreeMap::from([("host".to_owned(), columns)]);
        assert!(sql::text("a", &tables, DatasetSchema::EMPTY).contains("SELECT *\nFROM"));
    }

    /// The largest part of the file: `schema.json` has the other columns.
    #[test]
    fn own_columns_of_tables_with_rows_have_comments() {
        let columns = FileColumns {
            names: ["ts", "sum_ns"].map(str::to_owned).to_vec(),
            is_in_run: true,
            ..FileColumns::default()
        };
        let declared: [&Table; 2] = [&OWNED, &NODE_ROWS];
        let schema = DatasetSchema::new(declared.map(|table| ("source", table)), Vec::new());
        let tables = BTreeMap::from([("plain".to_owned(), columns)]);
        let sql = sql::text("a run", &tables, &schema);
        let comments: Vec<_> = sql
            .lines()
            .filter(|line| line.starts_with("COMMENT ON COLUMN"))
            .collect();
        let expected = "COMMENT ON COLUMN \"plain\".\"sum_ns\" IS 'A sum [ns]';";
        assert_eq!(comments, [expected]);
        for view in ["plain", "owned", "process_owned"] {
            let comment = format!("COMMENT ON VIEW \"{view}\" IS 'Rows of ");
            assert!(sql.contains(&comment), "{view}");
        }
    }

    #[test]
    fn columns_that_duckdb_rejects_are_left_out() {
        let names = ["ts", "TS", "", "end_ts", "ts"];
        let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
        let fields = names.map(|name| Field::new(name, time.clone(), true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let file = parquet_file::Encoder::new(schema).unwrap();
        let directory = tempfile::TempDir::new().unwrap();
        std::fs::write(directory.path().join("part"), file.finish().unwrap()).unwrap();
        let directory = Directory::open(directory.path(), None).unwrap();
        assert_eq!(
            columns(&directory, "part").unwrap().times_in_ns,
            ["ts", "end_ts"]
        );
    }

    #[test]
    fn names_are_quoted() {
        let sql = sql_of(&["a'b\"c"]);
        assert!(sql.contains("\"a'b\"\"c\"") && sql.contains("'a''b\"c/host"));
    }
}
