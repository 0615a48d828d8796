"""Reads exported tables with several libraries and prints as JSON what differs from the run:
exported.py RUN FORMAT DIRECTORY"""

import json
import math
import sys
from datetime import datetime, timezone
from pathlib import Path

import pandas
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet

run, form, directory = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def plain(value, type_):
    """A value in the same way for all libraries."""
    if value is None or value is pandas.NaT or value is pandas.NA:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    if pa.types.is_list(type_):
        value = json.loads(value) if isinstance(value, str) else value
        return tuple(plain(each, type_.value_type) for each in value)
    if pa.types.is_timestamp(type_):
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, pandas.Timestamp):
            return value.value // 1000
        return (value.replace(tzinfo=timezone.utc) - EPOCH) // (EPOCH.resolution)
    if pa.types.is_boolean(type_):
        return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
    if pa.types.is_integer(type_):
        return int(value)
    if pa.types.is_floating(type_):
        return float(value)
    # An empty field of CSV is a null, too.
    return str(value) or (None if form == "csv" else "")


def rows(columns, types):
    """Rows as texts in an order of their own. `columns` are lists by name."""
    plain_columns = [[plain(value, type_) for value in columns[name]] for name, type_ in types.items()]
    return sorted(map(repr, zip(*plain_columns)))


def of_arrow(table):
    return {name: table[name].to_pylist() for name in table.column_names}


def of_pandas(frame):
    return {name: frame[name].tolist() for name in frame.columns}


def of_polars(frame):
    return frame.to_dict(as_series=False)


def texts(types):
    """Types with which text formats are read: all columns keep every digit."""
    return {name: pa.string() for name in types}


def arrow_csv(path, types):
    options = pyarrow.csv.ConvertOptions(
        column_types=texts(types), strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    # A field can have line breaks.
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    return of_arrow(pyarrow.csv.read_csv(path, convert_options=options, parse_options=parse))


# Whole numbers have no other type in pandas that can be null.
PANDAS = {"dtype_backend": "pyarrow"}

READERS = {
    "csv": {
        "pyarrow": arrow_csv,
        "pandas": lambda path, types: of_pandas(pandas.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])),
        "polars": lambda path, types: of_polars(polars.read_csv(path, infer_schema=False)),
    },
    "json": {
        "json": lambda path, types: of_pandas(pandas.DataFrame(json.loads(path.read_text()), dtype=object)),
        "polars": lambda path, types: of_polars(polars.read_json(path, infer_schema_length=None)),
    },
    "ndjson": {
        "json": lambda path, types: of_pandas(
            pandas.DataFrame([json.loads(line) for line in path.read_text().split("\n") if line], dtype=object)
        ),
        "polars": lambda path, types: of_polars(polars.read_ndjson(path, infer_schema_length=None)),
    },
    "feather": {
        "pyarrow": lambda path, types: of_arrow(pyarrow.feather.read_table(path)),
        "pandas": lambda path, types: of_pandas(pandas.read_feather(path, **PANDAS)),
        "polars": lambda path, types: of_polars(polars.read_ipc(path)),
    },
    "parquet": {
        "pyarrow": lambda path, types: of_arrow(pyarrow.parquet.read_table(path)),
        "pandas": lambda path, types: of_pandas(pandas.read_parquet(path, **PANDAS)),
        "polars": lambda path, types: of_polars(polars.read_parquet(path)),
    },
}

read, problems = 0, []
for source in sorted(path for path in run.iterdir() if path.is_dir()):
    stored = ds.dataset(source, partitioning="hive").to_table()
    types = {
        field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in stored.schema
    }
    expected = rows(of_arrow(stored), types)
    path = directory / f"{source.name}.{form}"
    for reader, load in READERS[form].items():
        columns = load(path, types)
        if sorted(columns) != sorted(types):
            problems.append([source.name, reader, "columns", sorted(set(columns) ^ set(types))])
            continue
        found = rows(columns, types)
        differ = [pair for pair in zip(expected, found) if pair[0] != pair[1]]
        if len(found) != len(expected) or differ:
            problems.append([source.name, reader, len(expected), len(found), differ[:1]])
        read += 1
    units = {field.name: (field.metadata or {}).get(b"unit") for field in stored.schema}
    if form in ("feather", "parquet"):
        kept = pyarrow.feather.read_table(path) if form == "feather" else pyarrow.parquet.read_table(path)
        found = {field.name: (field.metadata or {}).get(b"unit") for field in kept.schema}
        lost = [name for name, unit in units.items() if unit and found[name] != unit]
        problems.extend([source.name, "units", name] for name in lost)
print(json.dumps({"read": read, "problems": problems}))
