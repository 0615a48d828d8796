"""Replaces the table `process` of a run: foreign_run.py RUN KIND

Each KIND is a table of a few KB, or of 2 MB, that takes much more memory.
"""

import glob
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

MEBIBYTE = 1 << 20

run, kind = sys.argv[1:]
(path,) = glob.glob(f"{run}/process/host=*/part-00000.parquet")
table = pq.ParquetFile(path).read()
metadata = table.schema.metadata


def repeated(rows, columns=None):
    """The first row, this many times."""
    first = table.slice(0, 1)
    if columns:
        first = first.select(columns)
    return first.take(pa.array([0] * rows, pa.int32()))


def with_command_lines(rows, length):
    """The first row, this many times, with a command line of this length."""
    texts = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array(["x" * length])
    )
    new = repeated(rows)
    return new.set_column(new.schema.get_field_index("cmdline"), "cmdline", texts)


options = {}
if kind == "cells":
    new = with_command_lines(4, 300 * MEBIBYTE)
    options = {"dictionary_pagesize_limit": 1 << 30}
elif kind == "pages":
    new = with_command_lines(4, 300 * MEBIBYTE)
    options = {"use_dictionary": False}
elif kind == "repeated":
    new = with_command_lines(2000, MEBIBYTE)
    options = {"dictionary_pagesize_limit": 1 << 30}
elif kind == "long":
    new = with_command_lines(1, 2 * MEBIBYTE)
elif kind == "rows":
    new = repeated(20_000_000, ["ts", "pid", "start_ts", "comm", "run"])

# Readers get plain texts.
pq.write_table(
    new.replace_schema_metadata(metadata),
    path,
    compression="zstd",
    store_schema=False,
    row_group_size=1 << 30,
    **options,
)
print(json.dumps(os.path.getsize(path)))
