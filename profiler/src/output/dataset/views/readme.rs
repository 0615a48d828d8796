//! The text of `README.md`.

use std::fmt::Write as _;

use crate::schema::DatasetSchema;

const INTRODUCTION: &str = "\
# A run of profiler

Each directory is a table, stored as Parquet files: `TABLE/host=NODE/part-NNNNN.parquet`. Every reader
of Parquet opens them, for example:

```sh
duckdb -init views.sql
python3 -c 'import pandas; print(pandas.read_parquet(\"process\"))'
```

Timestamps are UTC in microseconds. A *counter* is the increase over `interval_ns`, a *gauge* the
value at the sample, a *maximum* the greatest of the interval; null means \"not available\", never 0. `(host, pid, start_ts)` identifies a
process. Rows with a `tid` are threads; the rows of their processes contain them.

| file | content |
|---|---|
| `run.json`, `run.NODE.json` | description of the run: target, settings, times, sources, losses |
| `views.sql` | DuckDB views of all tables, and common joins |
| `schema.json` | all tables, views and columns with type, unit and meaning |
| `_part-NNNNN.arrows` | rows that are not in Parquet yet; `profiler recover` converts those of a killed profiler |
";

/// The introduction to the directory of a run.
pub fn text(schema: &DatasetSchema) -> String {
    let mut text = INTRODUCTION.to_owned();
    let tables = schema.tables().map(|table| (table.name, table.help));
    let views = schema.views().map(|view| (view.name, view.help));
    let both: [(&str, &mut dyn Iterator<Item = _>); 2] = [
        ("table", &mut { tables }),
        ("view of `views.sql`", &mut { views }),
    ];
    for (kind, rows) in both {
        let _ = write!(text, "\n| {kind} | content |\n|---|---|\n");
        for (name, help) in rows {
            let _ = writeln!(text, "| `{name}` | {help} |");
        }
    }
    text
}
