"""Reads the tables of runs, lazily: opening a run reads the names of its files."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from . import _binary
from ._errors import Error
from ._files import Path, RunFiles, find
from ._histogram import Histogram, merge

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow
    from matplotlib.figure import Figure
    from pyarrow import dataset


class Column(NamedTuple):
    """A column of a table."""

    name: str
    #: Type in DuckDB's notation.
    type: str
    #: `ns`, `bytes`, `1` for counts; empty for texts.
    unit: str
    #: `counter`: increase in the interval of the row; `gauge`: value at the time of the row; `label`.
    kind: str
    help: str


def open(paths: Union[Path, list[Path]], *, filesystem: Any = None, **storage_options: Any) -> Reader:
    """Open runs: `profiles/RUN`, `profiles/*`, `s3://bucket/profiles/RUN`, or a list of these.

    `filesystem` is an fsspec file system; other keywords are options of the one that the URL names.
    """
    return Reader(find(paths, filesystem, **storage_options))


class Reader:
    """Runs as tables: `reader.usage.df()`, `reader.sql("FROM process_cpu")`.

    Tables and the views of `views.sql` are attributes. All runs are read as one dataset; the
    column `run` has their names.
    """

    def __init__(self, runs: list[RunFiles]) -> None:
        self._runs = runs
        self._schemas: Optional[tuple[dict[str, Any], dict[str, Any]]] = None
        self._connection: Any = None
        for run in runs:
            states = {str(host.get("state")) for host in run.hosts}
            if "incomplete" in states:
                warnings.warn(f"{run.path}: rows were lost; see Reader.losses", stacklevel=3)
            elif "running" in states:
                warnings.warn(f"{run.path}: not finished; rows since the last checkpoint are missing", stacklevel=3)

    def __repr__(self) -> str:
        return f"Reader({', '.join(self.paths)})"

    @property
    def paths(self) -> list[str]:
        return [run.path for run in self._runs]

    @property
    def metadata(self) -> list[dict[str, Any]]:
        """The content of `run.json` of each run and host."""
        return [host for run in self._runs for host in run.hosts]

    @property
    def losses(self) -> list[dict[str, Any]]:
        """Data that is missing, as in `run.json`."""
        return [loss for host in self.metadata for loss in host.get("losses", [])]

    # Tables

    def _schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tables and views of `schema.json`, by name."""
        if self._schemas is None:
            tables: dict[str, Any] = {}
            views: dict[str, Any] = {}
            for run in self._runs:
                text = run.text("schema.json")
                try:
                    schema = json.loads(text) if text else {}
                except ValueError as error:
                    raise Error(f"{run.path}/schema.json: damaged: {error}") from None
                for table in schema.get("tables", []):
                    tables.setdefault(table["table"], table)
                for view in schema.get("views", []):
                    views.setdefault(view["view"], view)
                for name in run.tables:
                    tables.setdefault(name, {"table": name, "help": "", "columns": []})
            self._schemas = tables, views
        return self._schemas

    @property
    def tables(self) -> list[str]:
        """Names of all tables and views, also of empty ones."""
        tables, views = self._schema()
        return sorted({*tables, *views})

    def __getitem__(self, name: str) -> Table:
        if name not in self.tables:
            raise Error(f"no table {name!r}; there are {', '.join(self.tables)}")
        return Table(self, name)

    def __getattr__(self, name: str) -> Table:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except Error as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.tables]

    def __iter__(self) -> Iterator[Table]:
        return (self[name] for name in self.tables)

    # SQL

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with the views of `views.sql`."""
        if self._connection is None:
            try:
                import duckdb
            except ImportError:
                raise Error("SQL needs DuckDB: pip install node-profiler[duckdb]") from None
            connection = duckdb.connect()
            connection.execute("SET TimeZone = 'UTC'")
            for filesystem in {id(run.filesystem): run.filesystem for run in self._runs if not run.local}.values():
                connection.register_filesystem(filesystem)
            if len(self._runs) == 1:
                _create_views(connection, self._runs[0])
            else:
                self._unite(connection)
            self._connection = connection
        return self._connection

    def _unite(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Views over all runs: the joins within each run, then their union.

        A process can be in several runs, and regions are numbered in each.
        """
        columns: dict[str, list[tuple[str, bool]]] = {}
        for number, run in enumerate(self._runs):
            connection.execute(f"CREATE SCHEMA run{number}; USE run{number}")
            _create_views(connection, run)
            connection.execute("USE memory.main")
            rows = connection.execute(
                "SELECT table_name, bool_or(column_name = 'run') FROM duckdb_columns() WHERE schema_name = ? GROUP BY ALL",
                [f"run{number}"],
            ).fetchall()
            for view, has_run in rows:
                columns.setdefault(view, []).append((f"run{number}", has_run))
        macros = re.findall(r"CREATE OR REPLACE MACRO .*?;\n", self._runs[-1].text("views.sql") or "", re.S)
        connection.execute("".join(macros))
        for view, parts in columns.items():
            selects = [
                f'SELECT * FROM {schema}."{view}"'
                if has_run
                else f"SELECT {_literal(self._runs[int(schema[3:])].name)} AS run, * FROM {schema}.\"{view}\""
                for schema, has_run in parts
            ]
            connection.execute(f'CREATE VIEW "{view}" AS {" UNION ALL BY NAME ".join(selects)}')

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """A DuckDB query on the tables and the views of `views.sql`; its result has `df()`, `pl()`, `fetchall()`."""
        return self.connection().sql(query)

    # Joins

    def regions(self) -> pandas.DataFrame:
        """One row per region, with its process and the resources it used."""
        return self["process_region"].df()

    def processes(self) -> pandas.DataFrame:
        """One row per process, with seconds on CPU, in the run queue, asleep and blocked."""
        return self["process_cpu"].df()

    def latencies(self) -> pandas.DataFrame:
        """One row per process and kind of operation: count, mean, percentiles, maximum."""
        return self["latency_quantiles"].df()

    # Figures

    def summaries(self) -> list[dict[str, Any]]:
        """`profiler summary --json` of each run."""
        for run in self._runs:
            if not run.local:
                raise Error(f"{run.path}: the program `profiler` reads local runs only")
        return _binary.summary(self.paths)

    def summary(self) -> dict[str, Any]:
        """`profiler summary --json` of the run."""
        if len(self._runs) != 1:
            raise Error(f"{len(self._runs)} runs are open: use summaries()")
        return self.summaries()[0]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _create_views(connection: duckdb.DuckDBPyConnection, run: RunFiles) -> None:
    views = run.text("views.sql")
    if views is None:
        raise Error(f"{run.path}/views.sql: missing")

    def files(match: re.Match[str]) -> str:
        found = run.tables.get(match[1])
        if not found:
            raise Error(f"{run.path}/{match[1]}: the Parquet files are missing")
        return f"read_parquet([{', '.join(_literal(run.url(file)) for file in found)}]"

    statements = re.sub(r"read_parquet\('(\w+)/host=\*/part-\*\.parquet'", files, views)
    import duckdb

    try:
        connection.execute(statements)
    except duckdb.Error as error:
        raise Error(f"{run.path}: damaged: {_line(error)}") from None


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Table:
    """A table of the runs that a `Reader` has opened."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self.name = name
        tables, views = reader._schema()
        self._definition = tables.get(name) or views[name]
        self._is_view = name not in tables

    def __repr__(self) -> str:
        return f"Table({self.name}: {self.help})"

    @property
    def help(self) -> str:
        return str(self._definition["help"])

    @property
    def columns(self) -> list[Column]:
        """Name, type, unit, kind and meaning of each column."""
        columns = self._definition["columns"]
        if columns:
            return [Column(*(str(column[key]) for key in Column._fields)) for column in columns]
        # A run without schema.json: its Parquet files have the same facts.
        return [
            Column(f.name, str(f.type), *((f.metadata or {}).get(k, b"").decode() for k in (b"unit", b"kind", b"help")))
            for f in self.dataset().schema
        ]

    # Arrow

    def dataset(self) -> dataset.Dataset:
        """The Parquet files as a dataset of pyarrow, for lazy reads with projections and filters."""
        if self._is_view:
            raise Error(f"{self.name} is a view: use arrow() or sql()")
        import pyarrow
        from pyarrow import dataset

        hive = dataset.partitioning(pyarrow.schema([("host", pyarrow.string())]), flavor="hive")
        parts, schemas = [], []
        for run in self._reader._runs:
            files = run.tables.get(self.name)
            if not files:
                continue
            filesystem = None if run.local else run.filesystem
            for file in files:
                try:
                    schemas.append(dataset.dataset(file, filesystem=filesystem, partitioning=hive).schema)
                except (OSError, pyarrow.ArrowException) as error:
                    raise Error(f"{file}: damaged: {_line(error)}") from None
            parts.append((files, filesystem))
        if not parts:
            return dataset.dataset(self._empty())
        schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
        datasets = [dataset.dataset(f, schema=schema, filesystem=fs, partitioning=hive) for f, fs in parts]
        return datasets[0] if len(datasets) == 1 else dataset.dataset(datasets)

    def _empty(self) -> pyarrow.Table:
        import pyarrow

        types = {
            "VARCHAR": pyarrow.string(),
            "BOOLEAN": pyarrow.bool_(),
            "INTEGER": pyarrow.int32(),
            "UINTEGER": pyarrow.uint32(),
            "BIGINT": pyarrow.int64(),
            "UBIGINT": pyarrow.uint64(),
            "DOUBLE": pyarrow.float64(),
            "TIMESTAMPTZ": pyarrow.timestamp("us", "UTC"),
        }

        def arrow_type(name: str) -> pyarrow.DataType:
            return pyarrow.list_(types[name[:-2]]) if name.endswith("[]") else types[name]

        fields = [pyarrow.field(column.name, arrow_type(column.type)) for column in self.columns]
        if "host" not in [column.name for column in self.columns]:
            fields.append(pyarrow.field("host", pyarrow.string()))
        return pyarrow.schema(fields).empty_table()

    def arrow(self, columns: Optional[list[str]] = None, filter: Any = None) -> pyarrow.Table:
        """The rows as a table of pyarrow; `filter` is an expression of pyarrow.compute."""
        if self._is_view:
            table = self._reader.connection().view(self.name).to_arrow_table()
            if filter is not None:
                table = table.filter(filter)
            return table if columns is None else table.select(columns)
        import pyarrow

        dataset = self.dataset()
        try:
            return dataset.to_table(columns=columns, filter=filter)
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise Error(f"{self._reader!r}: table {self.name} is damaged: {_line(error)}") from None

    def df(self, columns: Optional[list[str]] = None, filter: Any = None) -> pandas.DataFrame:
        """The rows as a data frame of pandas, with types that have nulls."""
        import pandas

        frame: pandas.DataFrame = self.arrow(columns, filter).to_pandas(types_mapper=pandas.ArrowDtype)
        return frame

    def pl(self, columns: Optional[list[str]] = None, filter: Any = None) -> polars.DataFrame:
        """The rows as a data frame of polars."""
        import polars

        return polars.from_arrow(self.arrow(columns, filter))

    def lazy(self) -> polars.LazyFrame:
        """The rows as a lazy frame of polars."""
        import polars

        return polars.scan_pyarrow_dataset(self.dataset())

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """A DuckDB query, in which `this` is the table: `SELECT max(rss) FROM this`."""
        return self._reader.connection().view(self.name).query("this", query)

    def __len__(self) -> int:
        return self.arrow([]).num_rows if self._is_view else int(self.dataset().count_rows())

    # Figures

    def histogram(self, **equals: Any) -> Histogram:
        """All histograms of the rows with these values, merged: `latency.histogram(kind="runqueue")`."""
        if "buckets" not in [column.name for column in self.columns]:
            raise Error(f"table {self.name} has no histograms")
        from pyarrow import compute

        # Rows of threads are contained in those of their processes.
        rows = compute.field("tid").is_null()
        for name, value in equals.items():
            rows &= compute.field(name) == value
        names = [column.name for column in self.columns]
        sums = [name if name in names else None for name in ("sum_ns", "max_ns")]
        table = self.arrow(["buckets", *filter(None, sums)], rows).to_pylist()
        return merge(
            Histogram(row["buckets"], sum_ns=row.get("sum_ns"), max_ns=row.get("max_ns")) for row in table
        )

    def plot(self, *columns: str) -> Figure:
        """Columns over time, one plot for each unit; without names, the usual ones of `timeline`."""
        from ._plot import plot

        return plot(self, list(columns))
