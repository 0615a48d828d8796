"""Replaces the table `process` of a run: foreign_run.py RUN KIND

Each KIND is a table of a few KB, or of 2 MB, that takes much more memory; `journal` is that of a killed
profiler.
"""

import glob
import io
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

MEBIBYTE = 1 << 20

run, kind = sys.argv[1:]
if kind == "journal":
    (path,) = glob.glob(f"{run}/process/host=*/_part-00000.arrows")
    rows = pa.ipc.open_stream(open(path, "rb").read())
    batch = rows.read_next_batch()
    texts = pa.array(["x" * (2 * MEBIBYTE)] * batch.num_rows)
    index = batch.schema.get_field_index("cmdline")
    columns = batch.columns[:index] + [texts] + batch.columns[index + 1 :]
    written = io.BytesIO()
    # A killed profiler does not end the stream.
    stream = pa.ipc.new_stream(written, batch.schema)
    stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    with open(path, "wb") as file:
        file.write(written.getvalue())
    print(json.dumps(os.path.getsize(path)))
    sys.exit()
(path,) = glob.glob(f"{run}/process/host=*/part-00000.parquet")
stored = pq.ParquetFile(path)
table = stored.read()
metadata = stored.metadata.metadata


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
new = new.replace_schema_metadata()
with pq.ParquetWriter(
    path, new.schema, compression="zstd", store_schema=False, **options
) as writer:
    writer.write_table(new, row_group_size=1 << 30)
    writer.add_key_value_metadata(
        {key: value for key, value in metadata.items() if key != b"ARROW:schema"}
    )
print(json.dumps(os.path.getsize(path)))
