"""The files of runs, on local disks and, with fsspec, anywhere else."""

from __future__ import annotations

import errno
import glob
import json
import os
import posixpath
import re
import stat
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Optional, Union
from urllib.parse import unquote

from ._errors import Error

Path = Union[str, "os.PathLike[str]"]


#: Size beyond which a schema.json is of another program, in bytes.
_LARGEST_SCHEMA = 4 << 20


class _Local:
    """The part of fsspec's interface that is used here."""

    protocol = "file"

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern))

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def cat_file(self, path: str) -> bytes:
        with open_regular(path) as file:
            return file.read()


def open_regular(path: str) -> BinaryIO:
    """A file where a user can have placed anything: a pipe that nobody writes to, a link, a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _refused(path, "a link" if error.errno == errno.ELOOP else "not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refused(path, "not a regular file")
    return open(descriptor, "rb")


def require_regular(path: str) -> None:
    """Refuses what a reader that is given the name must not open."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        raise Error(f"{path}: {'a link' if stat.S_ISLNK(mode) else 'not a regular file'}")


def utf8(path: str) -> str:
    """A local file's name for DuckDB and Arrow, which take names as UTF-8 in every locale."""
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeError:
        raise Error(f"{path!r}: DuckDB and Arrow cannot open files whose names are not UTF-8") from None


def _refused(path: str, why: str) -> OSError:
    return OSError(errno.EINVAL, why, path)


def _escape(path: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", path)


def _read(filesystem: Any, path: str) -> bytes:
    try:
        content: bytes = filesystem.cat_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Error(f"{path}: {error.strerror or error}") from None
    return content


def parse(path: str, content: Union[str, bytes]) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(content)
    except ValueError as error:
        raise Error(f"{path}: damaged: {error}") from None
    if not isinstance(value, dict):
        raise Error(f"{path}: damaged: not an object")
    return value


def trusted(path: str, run: str) -> Optional[bytes]:
    """A file beside a run, if it is of the owner of the run or of root: a directory can be shared with others."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_uid not in (0, os.stat(run).st_uid):
                return None
            content = file.read(_LARGEST_SCHEMA + 1)
    except OSError:
        return None
    return content if len(content) <= _LARGEST_SCHEMA else None


@dataclass
class RunFiles:
    """The directory of one run."""

    filesystem: Any
    path: str
    #: Metadata of each host: run.json, run.<hostname>.json.
    hosts: list[dict[str, Any]] = field(default_factory=list)
    #: Parquet files by table.
    tables: dict[str, list[str]] = field(default_factory=dict)
    #: Compacted files with rows of this run by table; they have those of many runs.
    compacted_tables: dict[str, set[str]] = field(default_factory=dict)
    #: Numbers of Parquet files whose rows are in compacted files too, by table and host.
    replaced: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def local(self) -> bool:
        return isinstance(self.filesystem, _Local)

    def load(self) -> RunFiles:
        for path in sorted(self.filesystem.glob(f"{_escape(self.path)}/run*.json")):
            self.hosts.append(parse(path, _read(self.filesystem, path)))
        compacted = json.loads(self.text("compacted.json") or "{}")
        for table, hosts in compacted.get("tables", {}).items():
            files = self.compacted_tables.setdefault(table, set())
            for host, rows in hosts.items():
                files.update(rows.get("files", []))
                self.replaced[table, host] = {part["number"] for part in rows.get("replaced", [])}
        for path in sorted(self.filesystem.glob(f"{_escape(self.path)}/*/host=*/part-*.parquet")):
            if self.local:
                require_regular(path)
            self.tables.setdefault(path.split("/")[-3], []).append(path)
        if not self.hosts and not self.tables:
            raise Error(f"{self.path}: not the directory of a run: neither run.json nor tables")
        return self

    @property
    def is_below_keys(self) -> bool:
        """Whether the path looks like that of a partition, as in `sweep/lr=0.1/RUN`: the keys are no columns."""
        return re.search(r"[^/]=", self.path) is not None

    def text(self, name: str) -> Optional[str]:
        try:
            return _read(self.filesystem, f"{self.path}/{name}").decode(errors="replace")
        except FileNotFoundError:
            return None

    def schema(self) -> dict[str, Any]:
        """The tables and views of `schema.json` with their columns.

        It is in the runs of older versions, and beside all others. Without one, the Parquet files have the same
        facts about tables with rows.
        """
        own = self.text("schema.json")
        if own is not None:
            return parse(f"{self.path}/schema.json", own)
        try:
            content = trusted(f"{self.path}/../schema.json", self.path) if self.local else self._remote_schema()
            schema = parse("schema.json", content or b"{}")
        except Error:
            return {}
        # Another program can have written a file of this name.
        if "edition" not in schema or schema.get("schema_version") != self.schema_version:
            return {}
        if f" profiler {self.version}," not in schema["edition"]:
            # Files of other versions can have other columns.
            for table in schema["tables"]:
                if table["table"] in {*self.tables, *self.compacted_tables}:
                    table["columns"] = []
            schema["views"] = []
        return schema

    def _remote_schema(self) -> bytes:
        try:
            return _read(self.filesystem, f"{posixpath.dirname(self.path.rstrip('/'))}/schema.json")
        except FileNotFoundError:
            return b""

    @property
    def version(self) -> str:
        """The version of the profiler that wrote the run."""
        return str(self.hosts[0].get("version", "")) if self.hosts else ""

    @property
    def schema_version(self) -> Any:
        return self.hosts[0].get("schema_version") if self.hosts else None

    def is_replaced(self, path: str) -> bool:
        """Whether the rows of a Parquet file are in compacted files too: a compaction was interrupted."""
        table, host, name = path.split("/")[-3:]
        number = re.sub(r"\D", "", name)
        return number != "" and int(number) in self.replaced.get((table, unquote(host[len("host=") :])), ())

    @property
    def compacted(self) -> str:
        """The directory with the rows of compacted runs, beside this one."""
        return self.url(self._compacted)

    @property
    def _compacted(self) -> str:
        above = f"{self.path}/.." if self.local else posixpath.dirname(self.path.rstrip("/"))
        return f"{above}/compacted"

    def own_files(self, table: str) -> list[str]:
        """The Parquet files of a table whose rows are not in compacted files."""
        return [path for path in self.tables.get(table, []) if not self.is_replaced(path)]

    def shared_files(self, table: str) -> list[str]:
        """The compacted files of a table with rows of this run."""
        names = sorted(self.compacted_tables.get(table, ()))
        return [posixpath.normpath(f"{self._compacted}/{table}/{name}") for name in names]

    def url(self, path: str) -> str:
        """A file's name for DuckDB, which finds the file system by its protocol."""
        return utf8(path) if self.local else str(self.filesystem.unstrip_protocol(path))


def find(paths: Union[Path, list[Path]], filesystem: Any = None, **options: Any) -> list[RunFiles]:
    """The runs at a path: a run, a directory of runs, a pattern such as `profiles/*`, or a list."""
    runs: list[RunFiles] = []
    for path in paths if isinstance(paths, (list, tuple)) else [paths]:
        name = os.fspath(path)
        fs = filesystem
        if fs is None and "://" in name:
            try:
                import fsspec
            except ImportError:
                raise Error(f"{name}: remote runs need the package fsspec") from None
            fs, name = fsspec.core.url_to_fs(name, **options)
        if fs is not None:
            # Lists of earlier readers, since which files may have been added or compacted.
            fs.invalidate_cache()
        fs = fs or _Local()
        name = name.rstrip("/") or "/"
        found = [name] if fs.isdir(name) else sorted(p for p in fs.glob(name) if fs.isdir(p))
        if not found:
            raise Error(f"{name}: no such run")
        for directory in found:
            if fs.glob(f"{_escape(directory)}/run*.json") or fs.glob(f"{_escape(directory)}/*/host=*"):
                runs.append(RunFiles(fs, directory).load())
                continue
            inside = fs.glob(f"{_escape(directory)}/*/run*.json")
            if not inside and len(found) == 1:
                raise Error(f"{directory}: not the directory of a run: neither run.json nor tables")
            inner = sorted({posixpath.dirname(file) for file in inside})
            runs += [RunFiles(fs, one).load() for one in inner if not posixpath.basename(one).startswith(".")]
    if not runs:
        raise Error(f"{paths}: no runs")
    return runs
