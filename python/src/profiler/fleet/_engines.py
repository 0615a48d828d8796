"""Engines that run the queries: DuckDB, Spark, and DuckDB on the workers of a Dask cluster.

An engine has each table of the dataset as a view, with signed integers, and keeps the result of each
query as a table for the next ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional, Protocol

import pyarrow

from .._errors import Error
from .._reader import _import, _literal
from ._dataset import Dataset, Files
from ._queries import Query

if TYPE_CHECKING:
    import duckdb


class Engine(Protocol):
    """Where queries run."""

    #: Name and version, for the page.
    name: str

    def prepare(self, query: Query) -> int:
        """Makes the result of a query a table for the next ones. Returns its number of rows."""
        ...

    def answer(self, query: Query) -> pyarrow.Table:
        """The same, with the rows."""
        ...

    def processes(self) -> list[int]:
        """Processes of this machine that do the work."""
        ...

    def close(self) -> None: ...


def _conditions(dataset: Dataset, of: Files, places: str) -> str:
    """The rows of compacted files that count."""
    conditions = []
    if of.places is not None:
        conditions.append(f"EXISTS (SELECT 1 FROM {places} p WHERE p.run = c.run AND p.host = c.host)")
    if dataset.hosts is not None:
        least, greatest = map(_literal, dataset.hosts)
        conditions.append(f"host BETWEEN {least} AND {greatest}")
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


class DuckDb:
    """DuckDB in this process."""

    def __init__(self, dataset: Dataset, master: Optional[str] = None, threads: Optional[int] = None) -> None:
        if master is not None:
            raise Error("DuckDB runs on this machine: --master is an option of spark and dask")
        package = _import("duckdb")
        self.name = f"DuckDB {package.__version__}"
        self._connection: duckdb.DuckDBPyConnection = package.connect()
        # The results are sorted where order matters.
        self._connection.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        if threads is not None:
            self._connection.execute(f"SET threads = {threads}")
        # Functions of Spark.
        self._connection.execute("CREATE MACRO unix_micros(ts) AS epoch_us(ts)")
        self._connection.execute("CREATE MACRO timestamp_micros(us) AS make_timestamptz(us)")
        self._tables: dict[str, pyarrow.Table] = {}
        self.register("session", dataset.sessions)
        self.register("node_time", dataset.node_times)
        for table, of in dataset.files.items():
            self._create_view(dataset, table, of)

    def register(self, name: str, table: pyarrow.Table) -> None:
        self._connection.register(name, table)

    def _create_view(self, dataset: Dataset, table: str, of: Files) -> None:
        # Columns that older files do not have are null.
        columns = dataset.columns[table]
        empty = ", ".join(f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in columns.items())
        rows = [f"SELECT {empty} WHERE false"]
        if of.parts:
            options = "hive_partitioning = true, hive_types = {'host': VARCHAR}, union_by_name = true"
            rows.append(f"SELECT * FROM read_parquet([{_list(of.parts)}], {options})")
        if of.compacted:
            places = f"{table}_places"
            if of.places is not None:
                self.register(places, of.places)
            options = "hive_partitioning = false, union_by_name = true"
            conditions = _conditions(dataset, of, places)
            rows.append(f"SELECT * FROM read_parquet([{_list(of.compacted)}], {options}) c{conditions}")
        signed = {"UBIGINT": "BIGINT", "UINTEGER": "BIGINT"}
        casts = ", ".join(
            f'CAST("{name}" AS {signed[kind]}) AS "{name}"' if kind in signed else f'"{name}"'
            for name, kind in columns.items()
        )
        self._connection.execute(f'CREATE VIEW "{table}" AS SELECT {casts} FROM ({" UNION ALL BY NAME ".join(rows)})')

    def prepare(self, query: Query) -> int:
        with _errors_of(query):
            self._connection.execute(f"CREATE TEMP TABLE {query.name} AS {query.sql}")
            (rows,) = self._connection.execute(f"SELECT count(*) FROM {query.name}").fetchall()
        return int(rows[0])

    def answer(self, query: Query) -> pyarrow.Table:
        with _errors_of(query):
            result = self._connection.sql(query.sql).to_arrow_table()
        self.register(query.name, result)
        return result

    def processes(self) -> list[int]:
        return [os.getpid()]

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def _errors_of(query: Query) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise Error(f"{query.name}: {str(error).strip().splitlines()[0]}") from None


def _list(paths: list[str]) -> str:
    return ", ".join(map(_literal, paths))


#: Types of DuckDB as Spark reads them from Parquet. It has no unsigned integers.
_SPARK = {
    "VARCHAR": "STRING",
    "BOOLEAN": "BOOLEAN",
    "INTEGER": "INT",
    "UINTEGER": "BIGINT",
    "BIGINT": "BIGINT",
    "UBIGINT": "DECIMAL(20,0)",
    "DOUBLE": "DOUBLE",
    "TIMESTAMPTZ": "TIMESTAMP",
}


class Spark:
    """Spark: `local[2]`, or the cluster of a master."""

    def __init__(self, dataset: Dataset, master: Optional[str] = None) -> None:
        sql = _import("pyspark.sql")
        builder = sql.SparkSession.builder.appName("profiler.fleet").master(master or "local[*]")
        options = {
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "2g",
        }
        for key, value in options.items():
            builder = builder.config(key, value)
        self._session = builder.getOrCreate()
        context = self._session.sparkContext
        context.setLogLevel("ERROR")
        # The default suits clusters of hundreds of cores.
        self._session.conf.set("spark.sql.shuffle.partitions", str(max(4, 2 * context.defaultParallelism)))
        self.name = f"Spark {self._session.version}"
        self.register("session", dataset.sessions)
        self.register("node_time", dataset.node_times)
        for table, of in dataset.files.items():
            self._create_view(dataset, table, of)

    def register(self, name: str, table: pyarrow.Table) -> None:
        self._session.createDataFrame(table).createOrReplaceTempView(name)

    def _create_view(self, dataset: Dataset, table: str, of: Files) -> None:
        columns = {name: kind for name, kind in dataset.columns[table].items() if kind in _SPARK}
        stored = ", ".join(f"`{name}` {_SPARK[kind]}" for name, kind in columns.items() if name != "host")
        names = ", ".join(f"`{name}`" for name in columns)
        # Keys in paths are no columns of the table.
        reader = self._session.read.option("recursiveFileLookup", "true")
        rows = []
        if of.parts:
            frame = reader.schema(stored).parquet(*_urls(of.parts))
            host = "url_decode(regexp_extract(_metadata.file_path, '.*/host=([^/]*)/', 1)) AS host"
            frame.selectExpr("*", host).createOrReplaceTempView(f"{table}_parts")
            rows.append(f"SELECT {names} FROM {table}_parts")
        if of.compacted:
            if of.places is not None:
                self.register(f"{table}_places", of.places)
            frame = reader.schema(f"{stored}, host STRING").parquet(*_urls(of.compacted))
            frame.createOrReplaceTempView(f"{table}_compacted")
            rows.append(f"SELECT {names} FROM {table}_compacted c{_conditions(dataset, of, f'{table}_places')}")
        if not rows:
            self._session.createDataFrame([], f"{stored}, host STRING").createOrReplaceTempView(f"{table}_empty")
            rows.append(f"SELECT {names} FROM {table}_empty")
        casts = ", ".join(
            f"CAST(`{name}` AS BIGINT) AS `{name}`" if kind == "UBIGINT" else f"`{name}`"
            for name, kind in columns.items()
        )
        self._session.sql(f"SELECT {casts} FROM ({' UNION ALL '.join(rows)})").createOrReplaceTempView(table)

    def prepare(self, query: Query) -> int:
        # It stays on the executors.
        return int(self._keep(query).count())

    def answer(self, query: Query) -> pyarrow.Table:
        return self._keep(query).toArrow()

    def _keep(self, query: Query) -> Any:
        from pyspark.errors import PySparkException

        try:
            # A cached frame would be computed again by queries that read it several times.
            frame = self._session.sql(query.sql).localCheckpoint()
        except PySparkException as error:
            raise Error(f"{query.name}: {str(error).strip().splitlines()[0]}") from None
        frame.createOrReplaceTempView(query.name)
        return frame

    def processes(self) -> list[int]:
        return [os.getpid(), *_descendants(os.getpid())]

    def close(self) -> None:
        self._session.stop()


def _urls(paths: list[str]) -> list[str]:
    # Spark takes paths as patterns.
    return ["file://" + "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in path) for path in paths]


def _descendants(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return children + [one for child in children for one in _descendants(child)]


def _scan(dataset: Dataset, query: Query) -> pyarrow.Table:
    """A query on the rows of some hosts, in a worker."""
    engine = DuckDb(dataset, threads=1)
    try:
        return engine.answer(query)
    finally:
        engine.close()


class Dask:
    """A Dask cluster, whose workers read the tables with DuckDB; the rest runs here."""

    def __init__(self, dataset: Dataset, master: Optional[str] = None) -> None:
        distributed = _import("distributed")
        if master is None:
            master = distributed.LocalCluster(threads_per_worker=1, dashboard_address=None)
        self._cluster: Any = None if isinstance(master, str) else master
        self._client: Any = distributed.Client(master)
        self.name = f"Dask {distributed.__version__}"
        threads = sum(self._client.nthreads().values())
        # Several parts per worker, as hosts have different numbers of rows.
        self._parts = [self._client.scatter(part) for part in dataset.split(4 * max(1, threads))]
        self._local = DuckDb(dataset)

    def prepare(self, query: Query) -> int:
        return int(self.answer(query).num_rows)

    def answer(self, query: Query) -> pyarrow.Table:
        if not query.is_scan:
            return self._local.answer(query)
        tables = self._client.gather(self._client.map(_scan, self._parts, query=query, pure=False))
        result = pyarrow.concat_tables(tables)
        self._local.register(query.name, result)
        return result

    def processes(self) -> list[int]:
        return [os.getpid(), *_descendants(os.getpid())]

    def close(self) -> None:
        self._local.close()
        self._client.close()
        if self._cluster is not None:
            self._cluster.close(timeout=60)


#: Engines by name.
ENGINES: dict[str, type[Any]] = {"duckdb": DuckDb, "spark": Spark, "dask": Dask}


def connect(name: str, dataset: Dataset, master: Optional[str] = None) -> Engine:
    """An engine with the tables of a dataset. `master` is the URL of a Spark master or a Dask scheduler."""
    engine: Engine = ENGINES[name](dataset, master)
    return engine
