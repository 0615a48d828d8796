"""Reads every table of a run with several engines, as a user would, and prints as JSON where their
results differ from pyarrow's: rows, types, nulls, least and greatest values, sums, and the join of
`usage` with `process`. Usage: readers.py RUN ENGINE..."""

import json
import math
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

KEY = ["host", "pid", "start_ts"]


def kind(type_):
    """How a column is compared."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_timestamp(type_):
        return "time"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return "number"
    if pa.types.is_list(type_):
        return "texts" if pa.types.is_string(type_.value_type) else "list"
    return "text"


def kinds(run, table):
    schema = ds.dataset(run / table, partitioning="hive").schema
    return {field.name: kind(field.type) for field in schema}


class Arrow:
    """The reference."""

    def __init__(self, run):
        self.run = run

    def table(self, table):
        return ds.dataset(self.run / table, partitioning="hive").to_table()

    def statistics(self, table, kinds):
        data = self.table(table)
        columns = {}
        for name, kind in kinds.items():
            column = data[name]
            if kind == "time":
                limits = pc.min_max(column.cast(pa.int64()))
            elif kind in ("list", "texts"):
                column_values = pc.list_flatten(column)
                limits = pc.min_max(column_values)
            elif kind == "bool":
                limits = pc.min_max(column.cast(pa.int8()))
            elif kind == "text":
                limits = pc.min_max(column.cast(pa.string()))
            else:
                limits = pc.min_max(column)
            total = None
            if kind in ("number", "list", "bool"):
                values = column_values if kind == "list" else column
                total = pc.sum(values.cast(pa.float64(), safe=False)).as_py()
            columns[name] = [column.null_count, limits["min"].as_py(), limits["max"].as_py(), total]
        return data.num_rows, columns

    def joined(self):
        usage, process = self.table("usage"), self.table("process").select(KEY + ["comm"])
        return usage.select(KEY).join(process, KEY, join_type="inner").num_rows


class DuckDb:
    def __init__(self, run):
        import duckdb

        self.run = run
        self.connection = duckdb.connect()

    def source(self, table):
        return f"read_parquet('{self.run}/{table}/*/*.parquet', hive_partitioning = true)"

    def statistics(self, table, kinds):
        def expressions(name, kind):
            column = f'"{name}"'
            value = {
                "time": f"epoch_us({column})",
                "bool": f"{column}::INT",
            }.get(kind, column)
            if kind in ("list", "texts"):
                least, most = f"min(list_min({column}))", f"max(list_max({column}))"
                total = f"sum(list_sum({column})::DOUBLE)" if kind == "list" else "NULL"
            else:
                least, most = f"min({value})", f"max({value})"
                total = f"sum({value}::DOUBLE)" if kind in ("number", "bool") else "NULL"
            return [f"count(*) - count({column})", least, most, total]

        selected = ["count(*)"]
        for name, kind in kinds.items():
            selected += expressions(name, kind)
        query = f"SELECT {', '.join(selected)} FROM {self.source(table)}"
        rows, *values = self.connection.execute(query).fetchone()
        return rows, {name: values[4 * i : 4 * i + 4] for i, name in enumerate(kinds)}

    def joined(self):
        query = (
            f"SELECT count(*) FROM {self.source('usage')} "
            f"JOIN {self.source('process')} USING (host, pid, start_ts)"
        )
        return self.connection.execute(query).fetchone()[0]


class DataFusion:
    def __init__(self, run):
        from datafusion import SessionContext

        self.context = SessionContext()
        for table in tables(run):
            self.context.register_parquet(
                table, str(run / table), table_partition_cols=[("host", pa.string())]
            )

    def one(self, query):
        batches = self.context.sql(query).collect()
        return [column[0].as_py() for column in batches[0].columns]

    def statistics(self, table, kinds):
        selected = ["count(*)"]
        for name, kind in kinds.items():
            column = f'"{name}"'
            value = {
                "time": f"cast({column} AS BIGINT)",
                "bool": f"cast({column} AS INT)",
                "text": f"cast({column} AS VARCHAR)",
            }.get(kind, column)
            source = column
            if kind in ("list", "texts"):
                selected += [f"count(*) - count({source})", "NULL", "NULL", "NULL"]
                continue
            total = f"sum(cast({value} AS DOUBLE))" if kind in ("number", "bool") else "NULL"
            selected += [f"count(*) - count({source})", f"min({value})", f"max({value})", total]
        named = [f"{expression} AS c{i}" for i, expression in enumerate(selected)]
        rows, *values = self.one(f'SELECT {", ".join(named)} FROM "{table}"')
        statistics = {name: values[4 * i : 4 * i + 4] for i, name in enumerate(kinds)}
        for name, kind in kinds.items():
            if kind in ("list", "texts"):
                total = "sum(cast(x AS DOUBLE))" if kind == "list" else "NULL"
                query = (
                    f"SELECT min(x) AS a, max(x) AS b, {total} AS c "
                    f'FROM (SELECT unnest("{name}") AS x FROM "{table}")'
                )
                statistics[name][1:] = self.one(query)
        return rows, statistics

    def joined(self):
        query = (
            "SELECT count(*) AS n FROM usage JOIN process ON usage.host = process.host "
            "AND usage.pid = process.pid AND usage.start_ts = process.start_ts"
        )
        return self.one(query)[0]


class Polars:
    def __init__(self, run):
        import polars

        self.run, self.polars = run, polars

    def scan(self, table):
        return self.polars.scan_parquet(f"{self.run}/{table}", hive_partitioning=True)

    def statistics(self, table, kinds):
        pl = self.polars
        selected = [pl.len().alias("rows")]
        for name, kind in kinds.items():
            column = pl.col(name)
            value = {
                "time": column.cast(pl.Int64),
                "bool": column.cast(pl.Int8),
                "texts": column.list.explode(keep_nulls=False, empty_as_null=False)
                if kind in ("list", "texts")
                else None,
                "list": column.list.explode(keep_nulls=False, empty_as_null=False)
                if kind in ("list", "texts")
                else None,
                "text": column.cast(pl.String),
            }.get(kind, column)
            total = value.cast(pl.Float64).sum() if kind in ("number", "list", "bool") else pl.lit(None)
            selected += [
                column.null_count().alias(f"{name} nulls"),
                value.min().alias(f"{name} least"),
                value.max().alias(f"{name} most"),
                total.alias(f"{name} sum"),
            ]
        row = self.scan(table).select(selected).collect().row(0)
        return row[0], {name: list(row[1 + 4 * i : 5 + 4 * i]) for i, name in enumerate(kinds)}

    def joined(self):
        usage, process = self.scan("usage"), self.scan("process")
        joined = usage.select(KEY).join(process.select(KEY), on=KEY)
        return joined.select(self.polars.len()).collect().item()


class Pandas:
    def __init__(self, run):
        import pandas

        self.run, self.pandas = run, pandas

    def frame(self, table, columns=None):
        return self.pandas.read_parquet(self.run / table, columns=columns)

    def statistics(self, table, kinds):
        frame = self.frame(table)
        return len(frame), {name: of_series(frame[name], kind) for name, kind in kinds.items()}

    def joined(self):
        return len(self.frame("usage", KEY).merge(self.frame("process", KEY), on=KEY))


def of_series(series, kind):
    nulls = int(series.isna().sum())
    values = series.dropna()
    if kind in ("list", "texts"):
        values = values.explode().dropna()
    if values.empty:
        return [nulls, None, None, None if kind in ("time", "text", "texts") else 0.0]
    if kind == "time":
        values = values.astype("datetime64[us, UTC]").astype("int64")
    elif kind == "bool":
        values = values.astype("int8")
    elif kind in ("text", "texts"):
        values = values.astype(str)
    elif kind == "list":
        values = values.astype("uint64")
    total = float(values.astype("float64").sum()) if kind in ("number", "list", "bool") else None
    scalar = lambda value: value.item() if hasattr(value, "item") else value
    return [nulls, scalar(values.min()), scalar(values.max()), total]


class Dask:
    def __init__(self, run):
        import dask.dataframe

        self.run, self.dask = run, dask.dataframe

    def frame(self, table, columns=None):
        return self.dask.read_parquet(f"{self.run}/{table}", columns=columns)

    def statistics(self, table, kinds):
        frame = self.frame(table).compute()
        return len(frame), {name: of_series(frame[name], kind) for name, kind in kinds.items()}

    def joined(self):
        return len(self.frame("usage", KEY).merge(self.frame("process", KEY), on=KEY))


class Spark:
    def __init__(self, run):
        from pyspark.sql import SparkSession

        self.run = run
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        builder = builder.config("spark.sql.session.timeZone", "UTC")
        self.session = builder.config("spark.driver.memory", "1g").getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")

    def frame(self, table):
        return self.session.read.parquet(f"{self.run}/{table}")

    def statistics(self, table, kinds):
        from pyspark.sql import functions as f

        selected = [f.count(f.lit(1))]
        for name, kind in kinds.items():
            column = f.col(f"`{name}`")
            nulls = f.count(f.lit(1)) - f.count(column)
            if kind in ("list", "texts"):
                add = lambda sum, value: sum + value.cast("double")
                total = f.sum(f.aggregate(column, f.lit(0.0), add))
                selected += [
                    nulls,
                    f.min(f.array_min(column)),
                    f.max(f.array_max(column)),
                    total if kind == "list" else f.lit(None),
                ]
                continue
            value = {"time": f.unix_micros(column), "bool": column.cast("int")}.get(kind, column)
            total = f.sum(value.cast("double")) if kind in ("number", "bool") else f.lit(None)
            selected += [nulls, f.min(value), f.max(value), total]
        rows, *values = self.frame(table).select(selected).first()
        return rows, {name: values[4 * i : 4 * i + 4] for i, name in enumerate(kinds)}

    def joined(self):
        return self.frame("usage").join(self.frame("process"), KEY).count()


ENGINES = {
    "dask": Dask,
    "datafusion": DataFusion,
    "duckdb": DuckDb,
    "pandas": Pandas,
    "polars": Polars,
    "spark": Spark,
}


def tables(run):
    return sorted(path.name for path in run.iterdir() if any(path.glob("host=*/*.parquet")))


def equal(mine, theirs):
    if mine is None or theirs is None:
        # Sums of no values differ: 0 or null.
        return (mine or 0) == (theirs or 0)
    if isinstance(mine, str):
        return mine == theirs
    return math.isclose(float(mine), float(theirs), rel_tol=1e-9, abs_tol=1e-9)


def main():
    run = Path(sys.argv[1])
    reference, problems, read = Arrow(run), [], 0
    expected = {table: (kinds(run, table), None) for table in tables(run)}
    expected = {
        table: (columns, reference.statistics(table, columns))
        for table, (columns, _) in expected.items()
    }
    for name in sys.argv[2:]:
        engine = ENGINES[name](run)
        for table, (columns, (rows, statistics)) in expected.items():
            theirs, of_columns = engine.statistics(table, columns)
            read += 1
            if rows != theirs:
                problems.append(f"{name}: {table}: {theirs} rows, not {rows}")
            for column, mine in statistics.items():
                for what, a, b in zip(["nulls", "min", "max", "sum"], mine, of_columns[column]):
                    if not equal(a, b):
                        problems.append(f"{name}: {table}.{column}: {what} {b!r}, not {a!r}")
        joined, own = engine.joined(), reference.joined()
        if joined != own or own != expected["usage"][1][0]:
            problems.append(f"{name}: usage joined with process has {joined} rows, not {own}")
    print(json.dumps({"read": read, "problems": problems}))


main()
