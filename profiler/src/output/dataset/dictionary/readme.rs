//! The text of `README.md`.

use std::fmt::Write as _;

use crate::schema::{DatasetSchema, Edition};

const INTRODUCTION: &str = "\
# Runs of profiler

Each directory is a run, and each directory in it a table, stored as Parquet files:
`RUN/TABLE/host=NODE/part-NNNNN.parquet`. Every reader of Parquet opens them, for example, with `RUN` being
the name of a run:

```sh
profiler summary RUN
(cd RUN && duckdb -init views.sql)
python3 -c 'import pandas; print(pandas.read_parquet(\"RUN/process\"))'
duckdb -c \"SELECT run, host, command, start_ts, end_ts FROM read_parquet('*/run/*/*.parquet', union_by_name = true)\"
```

Timestamps are UTC in microseconds. A *counter* is the increase over `interval_ns`, a *gauge* the
value at the sample, a *maximum* the greatest of the interval; null means \"not available\", never 0. `(host, pid, start_ts)` identifies a
process. Rows with a `tid` are threads; the rows of their processes contain them.

| file | content |
|---|---|
| `schema.json` | all tables, views and columns with type, unit and meaning |
| `RUN/run.json`, `RUN/run.NODE.json` | description of the run: target, settings, times, sources, losses |
| `RUN/views.sql` | DuckDB views of all tables, and common joins |
| `_part-NNNNN.arrows` | rows that are not in Parquet yet; `profiler recover RUN` converts those of a killed profiler |

A run can be copied without the files beside it: its Parquet files have the units and meanings of their
columns too.
";

/// Around the edition, which is of no use for who reads the text.
const BEGIN: &str = "<!-- ";
const END: &str = " -->";

/// The introduction to a directory of runs.
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
    let _ = write!(text, "\n{BEGIN}{}{END}\n", schema.edition());
    text
}

/// The edition in the last line.
pub fn edition(text: &str) -> Option<Edition> {
    let last = text.lines().last()?;
    Edition::parse(last.strip_prefix(BEGIN)?.strip_suffix(END)?)
}
