"""The command `python -m profiler.fleet`."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from datetime import datetime, timezone
from typing import Any, Optional

from pyarrow import csv, parquet

from .._errors import Error
from ._cost import Meter
from ._dataset import open_dataset
from ._engines import ENGINES, connect
from ._page import write_page
from ._queries import ANSWERS, QUERIES, Query, in_order, run


def _parser() -> argparse.ArgumentParser:
    queries = "\n".join(f"  {name:20} {QUERIES[name].title}" for name in ANSWERS)
    parser = argparse.ArgumentParser(
        prog="python -m profiler.fleet",
        description="Answer questions about all runs below a directory: of one machine, or of a site.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"queries:\n{queries}\n\n"
        + textwrap.dedent("""\
        examples:
          python -m profiler.fleet accounting --dataset /shared/profiles
          python -m profiler.fleet all --dataset /shared/profiles --since 2026-11-01 --until 2026-12-01 -o november
          python -m profiler.fleet all --dataset /shared/profiles --engine spark --master spark://head:7077

        The output directory has QUERY.parquet and QUERY.csv of each query, and index.html with all of them.
        Merge the files of finished runs first, with `profiler compact`: it makes all queries faster."""),
    )
    parser.add_argument("query", nargs="+", metavar="QUERY", help="queries to answer, or `all`")
    parser.add_argument(
        "--dataset", required=True, action="append", metavar="DIR", help="directory with the runs; can be repeated"
    )
    parser.add_argument("--engine", choices=sorted(ENGINES), default="duckdb", help="default: duckdb, on this machine")
    parser.add_argument("--master", metavar="URL", help="Spark master or Dask scheduler; default: this machine")
    parser.add_argument("--since", type=_date, metavar="DATE", help="only runs that end after this date (UTC)")
    parser.add_argument("--until", type=_date, metavar="DATE", help="only runs that start before this date (UTC)")
    parser.add_argument("-o", "--output", default="site", metavar="DIR", help="for the results (default: site)")
    return parser


def _date(text: str) -> datetime:
    date = datetime.fromisoformat(text)
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    names = ANSWERS if "all" in options.query else options.query
    try:
        in_order(names)
    except Error as error:
        parser.error(str(error))
    try:
        _answer(options, names)
    except (Error, OSError) as error:
        print(f"profiler.fleet: {error}", file=sys.stderr)
        return 1
    return 0


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _answer(options: Any, names: list[str]) -> None:
    begin = time.monotonic()
    dataset = open_dataset(options.dataset, options.since, options.until)
    hosts = len(set(dataset.sessions["host"].to_pylist()))
    files = sum(len(of.parts) + len(of.compacted) for of in dataset.files.values())
    _report(f"{dataset.sessions.num_rows} sessions of {hosts} nodes, {files} files ({time.monotonic() - begin:.1f} s)")
    for note in dataset.notes[:5]:
        _report(f"  {note}")
    if len(dataset.notes) > 5:
        _report(f"  … and {len(dataset.notes) - 5} more, listed in index.html")
    engine = connect(options.engine, dataset, options.master)
    try:
        meter = Meter(engine.processes)

        def done(query: Query, rows: int) -> None:
            _report(f"{query.name:20} {rows:9} rows {meter.lap()}")

        results = run(engine, names, done)
    finally:
        engine.close()
    os.makedirs(options.output, exist_ok=True)
    for name in names:
        parquet.write_table(results[name], f"{options.output}/{name}.parquet")
        csv.write_csv(results[name], f"{options.output}/{name}.csv")
    write_page(f"{options.output}/index.html", dataset, engine.name, {name: results[name] for name in names})
    _report(f"results in {options.output}: open index.html")
