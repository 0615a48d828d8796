"""Prints the rows of a query over a run's views as JSON: read.py RUN SQL"""

import json
import os
import sys

import duckdb

run, sql = sys.argv[1:]
os.chdir(run)
with duckdb.connect() as db:
    with open("views.sql") as views:
        db.execute(views.read())
    rows = db.execute(sql).fetchall()
print(json.dumps(rows, default=float))
