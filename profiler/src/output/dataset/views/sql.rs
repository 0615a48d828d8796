//! The text of `views.sql`.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{super::compacted, FileColumns};
use crate::schema::{DatasetSchema, HOST_COLUMN, Kind, RUN_COLUMN, Sparse, Table, View, duckdb};

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
    for table in schema.tables() {
        let Some(sparse) = table.sparse else { continue };
        sql.push_str(&filled(table, sparse, tables, schema));
        let help = format!("{}; also at samples without a row", table.help);
        comment(&mut sql, &table.filled(), &help);
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

/// The view with the rows of sleeping processes that are left out. Samples have numbers: those between
/// two rows of a process have none of it. Rows can also be lost: then the next one does not cover their
/// time.
fn filled(
    table: &Table,
    sparse: &Sparse,
    tables: &BTreeMap<String, FileColumns>,
    schema: &DatasetSchema,
) -> String {
    let (name, view) = (table.name, table.filled());
    let begin = format!("\nCREATE OR REPLACE VIEW {view} AS\n");
    let Some(columns) = tables.get(name).filter(|columns| columns.is_sparse) else {
        return format!("{begin}SELECT * FROM {name};\n");
    };
    let stored = table
        .columns()
        .filter(|of| columns.names.iter().any(|name| name == of.name));
    let asleep = stored.filter_map(|column| {
        let is_span = column.name == "interval_ns" || Some(column.name) == sparse.asleep;
        let value = match column.name {
            "ts" => "s.ts".to_owned(),
            name if is_span => format!("if({name} IS NULL, NULL, {NS_ASLEEP})"),
            name if sparse.occasional.contains(&name) => "NULL".to_owned(),
            name if column.kind == Kind::Counter => format!("if({name} IS NULL, NULL, 0)"),
            _ => return None,
        };
        let type_name = duckdb::type_name(column);
        Some(format!("({value})::{type_name} AS {}", column.name))
    });
    let spans = ["interval_ns"].into_iter().chain(sparse.asleep);
    let spans = spans.map(|of| format!("greatest({of}::BIGINT - asleep_ns, 0)::UBIGINT AS {of}"));
    format!(
        "{begin}WITH samples AS (\n  \
         SELECT host, ts, lag(ts) OVER w AS before, lead(ts) OVER w AS after, row_number() OVER w AS n,\n  \
         max(ts) OVER (PARTITION BY host) AS last, count(*) OVER (PARTITION BY host) AS last_n\n  \
         FROM ({samples}) WINDOW w AS (PARTITION BY host ORDER BY ts)),\n\
         ends AS (SELECT host, pid, start_ts, max(end_ts) AS ended_at FROM process GROUP BY ALL),\n\
         timed AS (\n  \
         SELECT t.*, ended_at, least(ts, coalesce(ended_at, ts)) AS until\n  \
         FROM {name} t LEFT JOIN ends USING (host, pid, start_ts)),\n\
         numbered AS (\n  \
         SELECT t.*, s.n, if(until = s.ts, s.n - 1, s.n) AS n_before, if(until = s.ts, s.before, s.ts) AS before, s.after, s.last, s.last_n\n  \
         FROM timed t ASOF LEFT JOIN samples s ON t.host = s.host AND t.until >= s.ts),\n\
         linked AS (\n  \
         SELECT * EXCLUDE (last_ts, missing),\n  \
         if(missing < until AND 2 * (epoch_us(until) - (interval_ns // 1000)::BIGINT) <= epoch_us(last_ts) + epoch_us(missing),\n  \
         epoch_us(before) - epoch_us(last_ts), 0) * 1000 AS asleep_ns\n  \
         FROM (SELECT *, lag(ts) OVER w AS last_ts, lag(after) OVER w AS missing FROM numbered\n  \
         WINDOW w AS (PARTITION BY host, run, pid, start_ts, tid ORDER BY ts))),\n\
         followed AS (\n  \
         SELECT *, lead(n_before) OVER w AS next_n, lead(asleep_ns) OVER w AS next_asleep_ns FROM linked\n  \
         WINDOW w AS (PARTITION BY host, run, pid, start_ts, tid ORDER BY ts)),\n\
         gaps AS (\n  \
         SELECT *, unnest(range(n + 1, coalesce(next_n, last_n) + 1)) AS asleep_n\n  \
         FROM followed\n  \
         WHERE next_asleep_ns > 0 OR (next_n IS NULL AND ended_at IS NULL AND last <= ts + INTERVAL {period} SECOND))\n\
         SELECT * EXCLUDE ({helpers})\n  \
         REPLACE ({spans})\n\
         FROM linked\n\
         UNION ALL BY NAME\n\
         SELECT l.* EXCLUDE ({helpers}, next_n, next_asleep_ns, asleep_n)\n  \
         REPLACE ({asleep})\n\
         FROM gaps l JOIN samples s ON l.host = s.host AND l.asleep_n = s.n;\n",
        samples = samples(name, tables, schema),
        helpers = "ended_at, until, n, n_before, before, after, last, last_n, asleep_ns",
        period = Sparse::PERIOD_S,
        spans = spans.collect::<Vec<_>>().join(", "),
        asleep = asleep.collect::<Vec<_>>().join(", "),
    )
}

/// When samples were: in the first table of a host with rows at every sample, else in the rows of this
/// one.
fn samples(name: &str, tables: &BTreeMap<String, FileColumns>, schema: &DatasetSchema) -> String {
    let of_samples = schema
        .tables()
        .filter(|table| table.every_tick && tables.contains_key(table.name))
        .map(|table| table.name);
    let times = of_samples
        .chain([name])
        .enumerate()
        .map(|(place, table)| format!("SELECT host, ts, {place} AS place FROM {table}"));
    format!(
        "\n  SELECT DISTINCT host, ts FROM (\n  SELECT *, min(place) OVER (PARTITION BY host) AS first FROM (\n  {}))\n  \
         WHERE place = first",
        times.collect::<Vec<_>>().join("\n  UNION ALL "),
    )
}

/// Time of a row that is left out.
const NS_ASLEEP: &str = "1000 * (epoch_us(s.ts) - epoch_us(greatest(s.before, l.ts)))";

/// The view without rows of threads, because the rows of their processes contain them.
fn of_processes(table: &Table) -> String {
    let names = OF_PROCESS.map(|name| format!("p.{name}")).join(", ");
    format!(
        "\nCREATE OR REPLACE VIEW process_{} AS\n\
         SELECT {names}, t.*\n\
         FROM {} t LEFT JOIN process p USING (host, pid, start_ts)\n\
         WHERE t.tid IS NULL;\n",
        table.name,
        table.filled(),
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
