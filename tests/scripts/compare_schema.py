"""Compares a run's Parquet files with `profiler schema --json`; prints the differences as JSON: compare_schema.py RUN JSON"""

import glob
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

run, declared = sys.argv[1:]
with open(declared) as file:
    declared = {table["table"]: table["columns"] for table in json.load(file)["tables"]}
TYPES = {
    "UBIGINT": pa.uint64(),
    "UINTEGER": pa.uint32(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}


def plain(type):
    """The type without dictionary encoding."""
    if pa.types.is_dictionary(type):
        return type.value_type
    if pa.types.is_list(type):
        return f"{plain(type.value_type)}[]"
    return type


differences = []


def check(where, found, expected):
    if found != expected:
        differences.append(f"{where}: {found} in the file, {expected} declared")


written = sorted(name for name in os.listdir(run) if os.path.isdir(f"{run}/{name}"))
for table in written:
    for file in glob.glob(f"{run}/{table}/*/*.parquet"):
        schema = pq.read_schema(file)
        columns = declared.get(table, [])
        check(table, schema.names, [column["name"] for column in columns])
        for column in columns:
            if column["name"] not in schema.names:
                continue
            where = f"{table}.{column['name']}"
            field = schema.field(column["name"])
            item = TYPES[column["type"].removesuffix("[]")]
            expected = f"{item}[]" if column["type"].endswith("[]") else item
            check(where, plain(field.type), expected)
            check(f"{where} nullable", field.nullable, column["nullable"])
            metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
            for key in ["unit", "kind", "help", "model"]:
                check(f"{where} {key}", metadata.get(key), column[key])
        about = schema.metadata or {}
        for key in [b"run", b"host", b"schema_version"]:
            if not any(key in name for name in about):
                differences.append(f"{file}: file metadata without {key.decode()}: {list(about)}")
print(json.dumps(differences, default=str))
