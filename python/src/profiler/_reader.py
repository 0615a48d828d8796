"""Reads the tables of runs, lazily: opening a run reads the names of its files."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from . import _binary
from ._errors import Error
from ._files import Path, RunFiles, find, utf8
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
        """Data that is missing, as in `run.json`: `what`, `count` and `why`."""
        sessions = [session for host in self.metadata for session in [*host.get("earlier", []), host]]
        return [loss for session in sessions for loss in session.get("losses", [])]

    # Tables

    def _schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tables and views of `schema.json` and `views.sql`, by name."""
        if self._schemas is None:
            tables: dict[str, Any] = {}
            views: dict[str, Any] = {}
            for run in self._runs:
                schema = run.schema()
                try:
                    for table in schema.get("tables", []):
                        tables.setdefault(table["table"], table)
                    for view in schema.get("views", []):
                        views.setdefault(view["view"], view)
                except (AttributeError, KeyError, TypeError):
                    raise Error(f"{run.path}/schema.json: damaged: tables without names") from None
                for name in [*run.tables, *run.compacted_tables]:
                    tables.setdefault(name, {"table": name, "help": "", "columns": []})
            # Joins of `process` with each other table are only in views.sql.
            for run in self._runs:
                for name, comment in _VIEW.findall(run.text("views.sql") or ""):
                    if name not in tables:
                        views.setdefault(name, {"view": name, "help": comment.replace("''", "'"), "columns": []})
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
            package = _import("duckdb")
            connection: duckdb.DuckDBPyConnection = package.connect()
            connection.execute("SET TimeZone = 'UTC'")
            remote = {id(run.filesystem): run.filesystem for run in self._runs if not run.local}.values()
            for filesystem in remote:
                connection.register_filesystem(filesystem)
            if remote and int(package.__version__.split(".")[0]) < 2:
                # Its threads wait for the interpreter lock, held by the one that waits for them.
                connection.execute("SET threads = 1")
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
            selects = []
            for schema, has_run in parts:
                run = self._runs[int(schema[3:])]
                name = "" if has_run else f"{_literal(run.name)} AS run, "
                selects.append(f'SELECT {name}* FROM {schema}."{view}"')
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

    def _local_paths(self) -> list[str]:
        for run in self._runs:
            if not run.local:
                raise Error(f"{run.path}: the program `profiler` reads local runs only")
        return self.paths

    def summaries(self) -> list[dict[str, Any]]:
        """`profiler summary --json` of each run."""
        return _binary.summary(self._local_paths())

    def export(self, format: str, output: Optional[str] = None, **options: Any) -> None:
        """Write the runs in a format of `profiler export`: `r.export("csv", "usage.csv", table="usage")`."""
        _binary.export(self._local_paths(), format, output, options)

    def summary(self) -> dict[str, Any]:
        """`profiler summary --json` of the run."""
        if len(self._runs) != 1:
            raise Error(f"{len(self._runs)} runs are open: use summaries()")
        return self.summaries()[0]


# Name and comment of a view.
_VIEW = re.compile(r"^COMMENT ON VIEW \"?(\w+)\"? IS '((?:[^']|'')*)';", re.M)
# The end of a comment on a column: its unit.
_UNIT = re.compile(r" \[(\S+)\]$")
# Names of packages, and of the extras that install them.
_EXTRAS = {"pyarrow": "pandas", "matplotlib": "plot"}


def _import(name: str) -> Any:
    """An optional package."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = (error.name or name).partition(".")[0]
        extra = _EXTRAS.get(package, package)
        raise Error(f"{package} is not installed: pip install node-profiler[{extra}]") from None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _create_views(connection: duckdb.DuckDBPyConnection, run: RunFiles) -> None:
    views = run.text("views.sql")
    if views is None:
        raise Error(f"{run.path}/views.sql: missing")

    def files(match: re.Match[str]) -> str:
        found = run.tables.get(match[1], [])
        if f"'../compacted/{match[1]}/" in views:
            found = [file for file in found if not run.is_replaced(file)]
        if not found:
            raise Error(f"{run.path}/{match[1]}: the Parquet files are missing")
        return f"read_parquet([{', '.join(_literal(run.url(file)) for file in found)}]"

    statements = re.sub(r"read_parquet\('(\w+)/host=\*/part-\*\.parquet'", files, views)
    statements = statements.replace("'../compacted/", f"'{_literal(run.compacted)[1:-1]}/")
    if run.is_below_keys:
        # DuckDB would add the keys to each table, where a column can have the same name.
        host = "url_decode(regexp_extract(filename, '.*/host=([^/]*)/', 1)) AS host"
        statements = re.sub(
            r"SELECT \*(\s+FROM read_parquet\(\[.*?\],\s+)hive_partitioning = true, hive_types = \{[^}]*\}",
            rf"SELECT * EXCLUDE filename, {host}\1hive_partitioning = false, filename = true",
            statements,
            flags=re.S,
        )
    import duckdb

    try:
        connection.execute(statements)
    except duckdb.Error as error:
        raise Error(f"{run.path}: damaged: {_line(error)}") from None


# Names of types in DuckDB and in Arrow.
_TYPES = {
    "VARCHAR": "string",
    "BOOLEAN": "bool",
    "INTEGER": "int32",
    "UINTEGER": "uint32",
    "BIGINT": "int64",
    "UBIGINT": "uint64",
    "DOUBLE": "double",
}


def column_of_file(field: Any) -> Column:
    """The description of a column in the metadata of a Parquet file."""
    text = str(field.type)
    is_list = text.startswith("list<")
    text = re.sub(r"^list<.*?: (\w+).*", r"\1", text)
    names = {arrow: name for name, arrow in _TYPES.items()}
    name = "TIMESTAMPTZ" if text.startswith("timestamp") else names.get(text, text)
    facts = [field.metadata.get(key, b"").decode() for key in (b"unit", b"kind", b"help")]
    return Column(field.name, name + "[]" * is_list, *facts)


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

    def __call__(self, columns: Optional[list[str]] = None, filter: Any = None) -> pandas.DataFrame:
        """The same as `df`: `r.process_cpu()`."""
        return self.df(columns, filter)

    @property
    def help(self) -> str:
        return str(self._definition["help"])

    @property
    def columns(self) -> list[Column]:
        """Name, type, unit, kind and meaning of each column."""
        if self._definition["columns"]:
            columns = [Column(*(str(one[key]) for key in Column._fields)) for one in self._definition["columns"]]
        elif self._is_view:
            columns = self._columns_of_view()
        else:
            # Without schema.json of this version: the Parquet files have the same facts.
            columns = [column_of_file(field) for field in self.dataset().schema if field.metadata]
        if all(column.name != "host" for column in columns):
            columns.append(Column("host", "VARCHAR", "", "label", "Name of the node"))
        return columns

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column that has one: `ns`, `bytes`, `1` for counts."""
        return {column.name: column.unit for column in self.columns if column.unit}

    def _columns_of_view(self) -> list[Column]:
        rows = self._reader.connection().execute(
            "SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = ?"
            " ORDER BY schema_name, column_index",
            [self.name],
        )
        # Joins of `process` with a table have the columns of both.
        joined = ("process", self.name.partition("_")[2]) if self.name.startswith("process_") else ()
        tables = [self._reader[name] for name in joined if name in self._reader._schema()[0]]
        known = {column.name: column for table in tables for column in table.columns}
        columns: dict[str, Column] = {}
        for name, kind, comment in rows.fetchall():
            kind = "TIMESTAMPTZ" if kind == "TIMESTAMP WITH TIME ZONE" else kind
            if name in known:
                columns[name] = known[name]._replace(type=kind)
            elif name not in columns or comment:
                # The views of several runs have no comments; those of each run can have them.
                unit = _UNIT.search(comment or "")
                text = _UNIT.sub("", comment or "")
                columns[name] = Column(name, kind, unit[1] if unit else "", "label", text)
        return list(columns.values())

    # Arrow

    def dataset(self) -> dataset.Dataset:
        """The Parquet files as a dataset of pyarrow, for lazy reads with projections and filters."""
        if self._is_view:
            raise Error(f"{self.name} is a view: use arrow() or sql()")
        pyarrow, dataset = _import("pyarrow"), _import("pyarrow.dataset")
        hive = dataset.partitioning(pyarrow.schema([("host", pyarrow.string())]), flavor="hive")
        parts, schemas, shared = [], [], {}
        for run in self._reader._runs:
            filesystem = None if run.local else run.filesystem
            name = utf8 if run.local else str
            shared.update({name(file): filesystem for file in run.shared_files(self.name)})
            # Directories above the run can be named like partitions, too.
            of_run = {"filesystem": filesystem, "partitioning": hive, "partition_base_dir": name(run.path)}
            parts.append(([name(file) for file in run.own_files(self.name)], of_run))
        # Compacted files have a column for the host.
        parts += [([file], {"filesystem": filesystem}) for file, filesystem in shared.items()]
        parts = [(files, options) for files, options in parts if files]
        for files, options in parts:
            for file in files:
                try:
                    schemas.append(dataset.dataset([file], **options).schema)
                except (OSError, pyarrow.ArrowException) as error:
                    raise Error(f"{file}: damaged: {_line(error)}") from None
        if not parts:
            return dataset.dataset(self._empty())
        schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
        datasets = [dataset.dataset(files, schema=schema, **options) for files, options in parts]
        all_rows = datasets[0] if len(datasets) == 1 else dataset.dataset(datasets)
        if not shared:
            return all_rows
        # Files before version 3 of the schema have no column `run`.
        name = dataset.field("run")
        return all_rows.filter(name.isin([run.name for run in self._reader._runs]) | name.is_null())

    def _empty(self) -> pyarrow.Table:
        import pyarrow

        def arrow_type(name: str) -> pyarrow.DataType:
            if name.endswith("[]"):
                return pyarrow.list_(arrow_type(name[:-2]))
            return pyarrow.timestamp("us", "UTC") if name == "TIMESTAMPTZ" else pyarrow.type_for_alias(_TYPES[name])

        return pyarrow.schema([(column.name, arrow_type(column.type)) for column in self.columns]).empty_table()

    def arrow(self, columns: Optional[list[str]] = None, filter: Any = None) -> pyarrow.Table:
        """The rows as a table of pyarrow; `filter` is an expression of pyarrow.compute."""
        pyarrow = _import("pyarrow")
        if self._is_view:
            relation = self._reader.connection().view(self.name)
            import duckdb

            try:
                if columns is not None and filter is None:
                    # At least one column has the number of rows.
                    names = ", ".join(f'"{name}"' for name in columns)
                    relation = relation.project(names or "1 AS one")
                table = relation.to_arrow_table()
            except duckdb.Error as error:
                raise self._failure(error) from None
        else:
            table = None
        try:
            if table is None:
                return self.dataset().to_table(columns=columns, filter=filter)
            if filter is not None:
                table = table.filter(filter)
            return table if columns is None else table.select(columns)
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> Error:
        line = _line(error)
        missing = re.search(r"FieldRef\.Name\((.+?)\)|column \"(.+?)\" not found|Field \"(.+?)\" does not exist", line)
        if missing:
            name = next(filter(None, missing.groups()))
            return Error(f"table {self.name} has no column {name!r}")
        return Error(f"{self._reader!r}: table {self.name} is damaged: {line}")

    def df(self, columns: Optional[list[str]] = None, filter: Any = None) -> pandas.DataFrame:
        """The rows as a data frame of pandas, with types that have nulls."""
        types = _import("pandas").ArrowDtype
        frame: pandas.DataFrame = self.arrow(columns, filter).to_pandas(types_mapper=types)
        return frame

    def pl(self, columns: Optional[list[str]] = None, filter: Any = None) -> polars.DataFrame:
        """The rows as a data frame of polars."""
        frame: polars.DataFrame = _import("polars").from_arrow(self.arrow(columns, filter))
        return frame

    def lazy(self) -> polars.LazyFrame:
        """The rows as a lazy frame of polars; those of a view are computed at once."""
        if self._is_view:
            return self.pl().lazy()
        frame: polars.LazyFrame = _import("polars").scan_pyarrow_dataset(self.dataset())
        return frame

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """A DuckDB query, in which `this` is the table: `SELECT max(rss) FROM this`."""
        rows: Any = self._reader.connection().view(self.name)
        relation: duckdb.DuckDBPyRelation = rows.query("this", query)
        return relation

    def __len__(self) -> int:
        return self.arrow([]).num_rows if self._is_view else int(self.dataset().count_rows())

    # Figures

    def histogram(self, **equals: Any) -> Histogram:
        """All histograms of the rows with these values, merged: `latency.histogram(kind="runqueue")`."""
        if "buckets" not in [column.name for column in self.columns]:
            raise Error(f"table {self.name} has no histograms")
        compute = _import("pyarrow.compute")
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
        _import("matplotlib")
        from ._plot import plot

        return plot(self, list(columns))
