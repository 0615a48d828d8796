//! The text of `views.sql`.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{super::compacted, FileColumns};
use crate::schema::{DatasetSchema, HOST_COLUMN, RUN_COLUMN, Table, View, duckdb};

/// Columns of `process` in the views of the tables with rows per process.
const OF_PROCESS: [&str; 4] = ["comm", "cmdline", "ppid", "uid"];
/// Columns with the same meaning in every table: a comment in each is a tenth of the file.
const SHARED: [&str; 5] = ["ts", "interval_ns", "pid", "start_ts", "tid"];

/// The content of the file, for tables with Parquet files.
pub fn text(
    run_id: &str,
    tables: &BTreeMap<String, FileColumns>,
    schema: &DatasetSchema,
) -> String {
    let mut sql = "-- Use: cd RUN && duckdb -init views.sql\n".to_owned();
    sql.push_str(include_str!("macros.sql"));
    for (name, columns) in tables {
        sql.push_str(&with_rows(run_id, name, columns));
        if let Some(table) = schema.table(name) {
            comment(&mut sql, name, table.help);
            comment_columns(&mut sql, table, columns);
        }
    }
    sql.push_str("\n-- Tables without rows\n");
    for table in schema.tables() {
        if !tables.contains_key(table.name) {
            sql.push_str(&without_rows(table));
            comment(&mut sql, table.name, table.help);
        }
    }
    for table in schema
        .tables()
        .filter(|table| table.thread_column().is_some())
    {
        sql.push_str(&of_processes(table));
        let view = format!("process_{}", table.name);
        let help = format!(
            "{}; with the names of the processes, without threads",
            table.help
        );
        comment(&mut sql, &view, &help);
    }
    for View {
        name, query, help, ..
    } in schema.views()
    {
        let _ = write!(sql, "\nCREATE OR REPLACE VIEW {name} AS\n{query};\n");
        comment(&mut sql, name, help);
    }
    sql
}

/// The view of a table. Before version 3 of the schema, files have no column `run`, and timestamps
/// are in ns: `DuckDB` can neither subtract timestamps in ns nor group them into buckets.
fn with_rows(run_id: &str, table: &str, columns: &FileColumns) -> String {
    let casts: Vec<_> = columns
        .times_in_ns
        .iter()
        .map(|time| format!("{0}::TIMESTAMPTZ AS {0}", quoted(time)))
        .collect();
    let replace = if casts.is_empty() {
        String::new()
    } else {
        format!(" REPLACE ({})", casts.join(", "))
    };
    let is_run = |name: &String| name.eq_ignore_ascii_case(RUN_COLUMN.name);
    let run = if columns.names.iter().any(is_run) {
        String::new()
    } else {
        format!(", {} AS {}", literal(run_id), RUN_COLUMN.name)
    };
    let in_run = format!(
        "SELECT *{replace}{run}\n\
         FROM read_parquet('{}/host=*/part-*.parquet',\n  \
         hive_partitioning = true, hive_types = {{'host': VARCHAR}}, union_by_name = true)",
        table.replace('\'', "''"),
    );
    let places = [
        columns.is_in_run.then_some(in_run),
        (!columns.compacted.is_empty()).then(|| in_compacted(run_id, table, &columns.compacted)),
    ];
    let places: Vec<_> = places.into_iter().flatten().collect();
    format!(
        "\nCREATE OR REPLACE VIEW {} AS\n{};\n",
        quoted(table),
        places.join("\nUNION ALL BY NAME\n"),
    )
}

/// The rows of the run in compacted files, which have those of many runs.
fn in_compacted(run_id: &str, table: &str, files: &[String]) -> String {
    let files = files
        .iter()
        .map(|file| literal(&compacted::place(table, file)));
    format!(
        "SELECT *\nFROM read_parquet([{}],\n  \
         hive_partitioning = false, union_by_name = true)\nWHERE run = {}",
        files.collect::<Vec<_>>().join(", "),
        literal(run_id),
    )
}

/// The view of a table without rows: the fields of a null are its columns.
fn without_rows(table: &'static Table) -> String {
    let columns = table.columns().chain([&RUN_COLUMN, &HOST_COLUMN]);
    let columns =
        columns.map(|column| format!("{} {}", quoted(column.name), duckdb::type_name(column)));
    format!(
        "\nCREATE OR REPLACE VIEW {} AS\nSELECT unnest(NULL::STRUCT({})) WHERE false;\n",
        quoted(table.name),
        columns.collect::<Vec<_>>().join(", "),
    )
}

/// The view without rows of threads, because the rows of their processes contain them.
fn of_processes(table: &Table) -> String {
    let table = table.name;
    let names = OF_PROCESS.map(|name| format!("p.{name}")).join(", ");
    format!(
        "\nCREATE OR REPLACE VIEW process_{table} AS\n\
         SELECT {names}, t.*\n\
         FROM {table} t LEFT JOIN process p USING (host, pid, start_ts)\n\
         WHERE t.tid IS NULL;\n"
    )
}

/// Adds the meaning of a view, for `duckdb_views()`.
fn comment(sql: &mut String, view: &str, help: &str) {
    let _ = writeln!(
        sql,
        "COMMENT ON VIEW {} IS {};",
        quoted(view),
        literal(help)
    );
}

/// Adds the meaning of the columns of a table with rows, for `duckdb_columns()`. `schema.json` has all.
fn comment_columns(sql: &mut String, table: &Table, columns: &FileColumns) {
    let known = table.columns().filter(|column| {
        !SHARED.contains(&column.name) && columns.names.iter().any(|name| name == column.name)
    });
    for column in known {
        let unit = match column.unit {
            "" => String::new(),
            unit => format!(" [{unit}]"),
        };
        let _ = writeln!(
            sql,
            "COMMENT ON COLUMN {}.{} IS {};",
            quoted(table.name),
            quoted(column.name),
            literal(&format!("{}{unit}", column.help)),
        );
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
