"""Replaces columns in all files of a table of a run: rewrite.py RUN TABLE "VALUE AS COLUMN, …"

Prints the number of files."""

import json
import pathlib
import sys

import duckdb

run, table, columns = sys.argv[1:]
files = sorted(pathlib.Path(run, table).glob("host=*/*.parquet"))
for file in files:
    new = file.with_suffix(".new")
    with duckdb.connect() as db:
        db.execute(
            f"COPY (SELECT * REPLACE ({columns}) "
            f"FROM read_parquet('{file}', hive_partitioning = false)) TO '{new}' (FORMAT parquet, COMPRESSION zstd)"
        )
    new.rename(file)
print(json.dumps(len(files)))
