"""Reads every table of runs with DuckDB, through views.sql, and with pandas; prints the rows of each as JSON.

Fails unless both find the same rows, with timestamps of type timestamp, and every view in views.sql is
readable. A table without rows has no file. Use --full if the disk was full: a small table may have been
written although views.sql, which names it, was not. Usage: read_all.py [--full] RUN...
"""

import glob
import json
import os
import sys

import duckdb
import pandas


def read(run, full):
    os.chdir(run)
    tables = sorted({path.split("/")[0] for path in glob.glob("*/*/*.parquet")})
    counts = {}
    with duckdb.connect() as db:
        with open("views.sql") as views:
            db.execute(views.read())
        views = {view for (view,) in db.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()}
        for table in tables:
            frame = pandas.read_parquet(table)
            counts[table] = len(frame)
            if full and table not in views:
                continue
            rows = db.execute(f'SELECT * FROM "{table}"').df()
            assert len(frame) == len(rows), table
            assert set(frame.columns) == set(rows.columns), table
            for column in ["ts", "start_ts", "end_ts"]:
                if column in frame:
                    assert isinstance(frame[column].dtype, pandas.DatetimeTZDtype), (table, column)
                    assert isinstance(rows[column].dtype, pandas.DatetimeTZDtype), (table, column)
        for view in views:
            db.execute(f'SELECT * FROM "{view}"').df()
    return counts


runs = [argument for argument in sys.argv[1:] if argument != "--full"]
print(json.dumps([read(os.path.abspath(run), len(runs) < len(sys.argv) - 1) for run in runs]))
