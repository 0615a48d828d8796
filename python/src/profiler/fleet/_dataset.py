"""The files and sessions of all runs below a directory, compacted or not."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Optional, Union

import pyarrow
from pyarrow import parquet

from .._errors import Error
from .._files import open_regular, parse, require_regular, trusted
from .._reader import column_of_file

#: Tables that the queries read.
TABLES = ["file_io", "gpu_process", "process", "sched", "system", "timeline", "usage"]
#: Labels of runs (`--label`) that queries group by, in the order of the columns of `session`.
LABELS = ["project", "partition", "campaign", "name"]

_TIME = pyarrow.timestamp("us", "UTC")
#: One row per run and node.
SESSION = pyarrow.schema(
    [("run", pyarrow.string()), ("host", pyarrow.string()), ("start_ts", _TIME), ("end_ts", _TIME)]
    + [(name, pyarrow.string()) for name in ("state", "user_name", "job_id", *LABELS)]
    + [("is_node", pyarrow.bool_())]
)
#: One row per session: the run with the rows of the node, and the time between which they count;
#: null without a limit.
NODE_TIME = pyarrow.schema(
    [("run", pyarrow.string()), ("host", pyarrow.string()), ("node_run", pyarrow.string())]
    + [("start_ts", _TIME), ("end_ts", _TIME)]
)
#: Runs and hosts whose rows in compacted files count.
PLACE = pyarrow.schema([("run", pyarrow.string()), ("host", pyarrow.string())])
#: The first version whose files have times that all engines read.
_VERSION = 3


@dataclass
class Files:
    """Parquet files of a table."""

    #: Those of single runs. The host is in the path.
    parts: list[str] = field(default_factory=list)
    #: Those of `profiler compact`, with the rows of many runs.
    compacted: list[str] = field(default_factory=list)
    #: Runs and hosts with rows in compacted files; None if these files have no others.
    places: Optional[pyarrow.Table] = None


@dataclass
class Dataset:
    """All runs of a site, or those that overlap a time."""

    paths: list[str]
    sessions: pyarrow.Table
    node_times: pyarrow.Table
    files: dict[str, Files]
    #: Types of the columns, in DuckDB's notation, by table.
    columns: dict[str, dict[str, str]]
    #: Runs that are left out or not complete, with the reason.
    notes: list[str]
    #: The least and the greatest host whose rows are read; None for all.
    hosts: Optional[tuple[str, str]] = None

    def split(self, parts: int) -> list[Dataset]:
        """The same in at most `parts` parts, each with the rows of other hosts."""
        names = sorted(set(self.sessions["host"].to_pylist()))
        size = max(1, -(-len(names) // parts))
        return [self._of_hosts(names[at], names[min(at + size, len(names)) - 1]) for at in range(0, len(names), size)]

    def _of_hosts(self, least: str, greatest: str) -> Dataset:
        def within(table: pyarrow.Table) -> pyarrow.Table:
            mask = [least <= host <= greatest for host in table["host"].to_pylist()]
            return table.filter(pyarrow.array(mask, pyarrow.bool_()))

        files = {
            name: replace(of, parts=[path for path in of.parts if least <= _host(path) <= greatest])
            for name, of in self.files.items()
        }
        sessions, times = within(self.sessions), within(self.node_times)
        return replace(self, sessions=sessions, node_times=times, files=files, hosts=(least, greatest))


def _host(path: str) -> str:
    return path.split("/")[-2][len("host=") :]


@dataclass
class _Places:
    """Where the rows of a table are, of all runs."""

    parts: list[str] = field(default_factory=list)
    compacted: set[str] = field(default_factory=set)
    rows: dict[tuple[str, str], int] = field(default_factory=dict)

    def files(self) -> Files:
        compacted = sorted(self.compacted)
        try:
            stored = sum(parquet.read_metadata(file).num_rows for file in compacted)
        except (OSError, pyarrow.ArrowException) as error:
            raise Error(f"compacted files: {str(error).splitlines()[0]}") from None
        places = None
        if stored != sum(self.rows.values()):
            # The files have rows of runs that were removed, or whose compaction has not ended.
            runs, hosts = zip(*self.rows) if self.rows else ((), ())
            places = pyarrow.table({"run": list(runs), "host": list(hosts)}, schema=PLACE)
        return Files(sorted(self.parts), compacted, places)


def open_dataset(
    paths: Union[str, list[str]], since: Optional[datetime] = None, until: Optional[datetime] = None
) -> Dataset:
    """The runs below directories that overlap the time from `since` to `until`; all without these."""
    paths = [os.path.abspath(path) for path in ([paths] if isinstance(paths, str) else paths)]
    limits = [None if limit is None else int(limit.timestamp() * 1e6) for limit in (since, until)]
    sessions: list[dict[str, Any]] = []
    times: list[dict[str, Any]] = []
    places = {table: _Places() for table in TABLES}
    notes: list[str] = []
    newest: tuple[int, str] = (-1, "")
    for directory in [one for path in paths for one in _runs(path)]:
        name = os.path.basename(directory)
        try:
            run = _Run(directory)
            if not run.manifests or not run.overlaps(*limits):
                continue
            run.add_files(f"{os.path.dirname(directory)}/compacted", places)
        except (Error, OSError) as error:
            notes.append(f"{name}: left out: {error}")
            continue
        sessions += run.sessions()
        times += run.node_times()
        if run.state != "complete":
            notes.append(f"{name}: {run.state}")
        newest = max(newest, (run.version, directory))
    if not sessions:
        left_out = f" ({len(notes)} left out, the first: {notes[0]})" if notes else ""
        raise Error(f"{', '.join(paths)}: no runs{left_out}")
    files = {table: of.files() for table, of in places.items()}
    return Dataset(
        paths,
        pyarrow.Table.from_pylist(sessions, SESSION),
        pyarrow.Table.from_pylist(times, NODE_TIME),
        files,
        _columns(newest[1], files),
        notes,
    )


def _runs(path: str) -> list[str]:
    """Directories that can be runs."""
    try:
        names = [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    return [f"{path}/{name}" for name in sorted(names) if name[0] != "." and name != "compacted"]


def _columns(run: str, files: dict[str, Files]) -> dict[str, dict[str, str]]:
    """Names and types of the columns of all tables, as of the run of the newest version."""
    found = _columns_of_schema(run)
    for table in set(TABLES) - set(found):
        parts = [*files[table].parts, *files[table].compacted]
        if parts:
            found[table] = {field.name: column_of_file(field).type for field in parquet.read_schema(parts[-1])}
    if not set(TABLES) <= set(found):
        found = {**_columns_of_views(run), **found}
    missing = sorted(set(TABLES) - set(found))
    if missing:
        raise Error(f"{run}: neither schema.json nor views.sql has the table {missing[0]}")
    return {table: {**found[table], "run": "VARCHAR", "host": "VARCHAR"} for table in TABLES}


def _columns_of_schema(run: str) -> dict[str, dict[str, str]]:
    """Those of schema.json: in the run of an older version, otherwise beside the runs."""
    path = f"{run}/schema.json"
    try:
        if os.path.exists(path):
            with open_regular(path) as file:
                content = file.read()
        else:
            content = trusted(f"{run}/../schema.json", run) or b"{}"
        tables = parse(path, content)["tables"]
        return {table["table"]: {one["name"]: one["type"] for one in table["columns"]} for table in tables}
    except (Error, OSError, KeyError, TypeError):
        return {}


def _columns_of_views(run: str) -> dict[str, dict[str, str]]:
    """Those of the tables without rows in the run."""
    try:
        with open_regular(f"{run}/views.sql") as file:
            text = file.read().decode()
    except (OSError, UnicodeError):
        return {}
    views = re.findall(r'VIEW "(\w+)" AS\nSELECT unnest\(NULL::STRUCT\((.*)\)\) WHERE false;', text)
    return {table: dict(re.findall(r'"(\w+)" ([\w\[\]]+)', columns)) for table, columns in views}


def _time(ns: Any) -> Optional[datetime]:
    return None if ns is None else datetime.fromtimestamp(ns // 1000 / 1e6, timezone.utc)


def _user(name: Optional[str]) -> Optional[str]:
    """The name of a user, of whom the run of a job (--split-by job) has the number."""
    if name and name.isdecimal():
        try:
            return pwd.getpwuid(int(name)).pw_name
        except (KeyError, OverflowError):
            pass
    return name or None


class _Run:
    """The directory of a run."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.name = os.path.basename(directory)
        self.manifests: list[dict[str, Any]] = []
        self._tables: list[str] = []
        for entry in os.scandir(directory):
            if entry.name in TABLES:
                self._tables.append(entry.name)
            elif re.fullmatch(r"run(\..+)?\.json", entry.name):
                with open_regular(entry.path) as file:
                    self.manifests.append(parse(entry.path, file.read()))
        self.manifests.sort(key=lambda one: str(one.get("hostname")))

    @property
    def version(self) -> int:
        return min(int(one.get("schema_version") or 0) for one in self.manifests)

    @property
    def state(self) -> str:
        states = [str(one.get("state")) for one in self.manifests]
        return next((s for s in ("incomplete", "running", "recovered") if s in states), states[0])

    def overlaps(self, since: Optional[int], until: Optional[int]) -> bool:
        starts = [one["start_ts"] // 1000 for one in self.manifests if one.get("start_ts") is not None]
        ends = [one["end_ts"] // 1000 for one in self.manifests if one.get("end_ts") is not None]
        ended = max(ends) if len(ends) == len(self.manifests) else None
        return (until is None or min(starts, default=0) < until) and (since is None or ended is None or ended > since)

    def _hosts(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Metadata of each host, and of its sessions."""
        for manifest in self.manifests:
            yield manifest, [*manifest.get("earlier", []), manifest]

    def sessions(self) -> list[dict[str, Any]]:
        rows = []
        for last, sessions in self._hosts():
            target, labels = last.get("target") or {}, last.get("labels") or {}
            job = (target.get("job") or {}).get("id")
            row = {"run": self.name, "host": last["hostname"], "state": last.get("state")}
            row |= {"start_ts": _time(sessions[0]["start_ts"]), "end_ts": _time(last.get("end_ts"))}
            row |= {"user_name": _user(last.get("user")), "job_id": None if job is None else str(job)}
            row |= {label: labels.get(label) for label in LABELS}
            rows.append({**row, "is_node": target.get("node") is True})
        return rows

    def node_times(self) -> list[dict[str, Any]]:
        rows = []
        for last, sessions in self._hosts():
            of_node = [one for one in sessions if (one.get("target") or {}).get("node_run")]
            place = {"run": self.name, "host": last["hostname"]}
            for one in of_node:
                limits = {"start_ts": _time(one["start_ts"]), "end_ts": _time(one.get("end_ts"))}
                rows.append({**place, "node_run": str(one["target"]["node_run"]), **limits})
            if not of_node:
                rows.append({**place, "node_run": self.name, "start_ts": None, "end_ts": None})
        return rows

    def add_files(self, compacted_directory: str, places: dict[str, _Places]) -> None:
        # Parts are listed first: their rows may move into compacted files meanwhile.
        parts: list[tuple[str, str, str]] = []
        for table in self._tables:
            for host in _directories(f"{self.directory}/{table}", "host="):
                directory = f"{self.directory}/{table}/{host}"
                names = os.listdir(directory)
                parts += [(table, host[5:], f"{directory}/{n}") for n in names if re.fullmatch(r"part-\d+\.parquet", n)]
        for _, _, path in parts:
            require_regular(path)
        compacted = self._compacted()
        for table, host, path in parts:
            of_host = compacted.get(table, {}).get(host, {})
            replaced = {one["number"] for one in of_host.get("replaced", [])}
            number = int(os.path.basename(path)[len("part-") : -len(".parquet")])
            if number in replaced:
                continue
            if self.version < _VERSION:
                raise Error("its times are in ns: `profiler compact` converts them")
            places[table].parts.append(path)
        for table in TABLES:
            for host, of_host in compacted.get(table, {}).items():
                for name in of_host["files"]:
                    if not re.fullmatch(r"day=[\w-]+/part-\d+\.parquet", name):
                        raise Error(f"compacted.json: {name}: not the name of a compacted file")
                    places[table].compacted.add(f"{compacted_directory}/{table}/{name}")
                places[table].rows[self.name, host] = of_host["rows"]

    def _compacted(self) -> dict[str, dict[str, Any]]:
        path = f"{self.directory}/compacted.json"
        try:
            with open_regular(path) as file:
                tables: dict[str, dict[str, Any]] = parse(path, file.read()).get("tables", {})
        except FileNotFoundError:
            return {}
        return tables


def _directories(path: str, prefix: str) -> list[str]:
    return [entry.name for entry in os.scandir(path) if entry.name.startswith(prefix)]
