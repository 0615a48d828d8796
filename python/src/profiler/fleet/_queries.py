"""The queries: SQL that all engines run unchanged."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Callable, Optional

from .._errors import Error
from ._dataset import TABLES

if TYPE_CHECKING:
    import pyarrow

    from ._engines import Engine


@dataclass(frozen=True)
class Query:
    """A file of SQL. Its result is a table for later queries."""

    name: str
    title: str
    #: What its rows and columns mean.
    help: str
    sql: str

    @property
    def is_scan(self) -> bool:
        """Whether it reads tables of runs. Then no row needs those of other hosts."""
        return any(name in TABLES for name in self._names)

    @property
    def needs(self) -> list[str]:
        """The queries whose results it reads."""
        return [name for name in self._names if name in QUERIES]

    @property
    def _names(self) -> list[str]:
        found = re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", re.sub("--.*", "", self.sql))
        return sorted(set(found) - set(re.findall(r"\b(\w+) AS \(", self.sql)))


def _read(name: str, sql: str) -> Query:
    lines = itertools.takewhile(lambda line: line.startswith("--"), sql.splitlines())
    title, *text = (line[2:].strip() for line in lines)
    return Query(name, title, " ".join(text), sql)


def _all() -> dict[str, Query]:
    directory = resources.files("profiler.fleet").joinpath("sql")
    files = sorted(file.name for file in directory.iterdir() if file.name.endswith(".sql"))
    return {name[:-4]: _read(name[:-4], directory.joinpath(name).read_text(encoding="utf-8")) for name in files}


#: All queries by name.
QUERIES = _all()
#: The queries for people; the others prepare their input.
ANSWERS = [
    "accounting",
    "jobs",
    "inefficient_jobs",
    "slow_nodes",
    "filesystem_pressure",
    "interference",
    "campaigns",
    "anomalies",
]


def in_order(names: Iterable[str]) -> list[Query]:
    """The queries with all that they need, each after these."""
    found: dict[str, Query] = {}

    def add(name: str) -> None:
        if name not in QUERIES:
            raise Error(f"no query {name!r}; there are {', '.join(ANSWERS)}")
        if name not in found:
            for needed in QUERIES[name].needs:
                add(needed)
            found[name] = QUERIES[name]

    for name in names:
        add(name)
    return list(found.values())


def run(
    engine: Engine, names: Iterable[str], done: Optional[Callable[[Query, int], None]] = None
) -> dict[str, pyarrow.Table]:
    """The results of queries by name. `done` is called with the number of rows of each, also of those
    that these need."""
    names = list(names)
    results = {}
    for query in in_order(names):
        if query.name in names:
            results[query.name] = engine.answer(query)
            rows = results[query.name].num_rows
        else:
            rows = engine.prepare(query)
        if done is not None:
            done(query, rows)
    return results
