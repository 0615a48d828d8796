"""The files of runs, on local disks and, with fsspec, anywhere else."""

from __future__ import annotations

import glob
import json
import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ._errors import Error

Path = Union[str, "os.PathLike[str]"]


class _Local:
    """The part of fsspec's interface that is used here."""

    protocol = "file"

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern))

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def cat_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()


def _escape(path: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", path)


@dataclass
class RunFiles:
    """The directory of one run."""

    filesystem: Any
    path: str
    #: Metadata of each host: run.json, run.<hostname>.json.
    hosts: list[dict[str, Any]] = field(default_factory=list)
    #: Parquet files by table.
    tables: dict[str, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def local(self) -> bool:
        return isinstance(self.filesystem, _Local)

    def load(self) -> RunFiles:
        for path in self.filesystem.glob(f"{_escape(self.path)}/run*.json"):
            try:
                self.hosts.append(json.loads(self.filesystem.cat_file(path)))
            except ValueError as error:
                raise Error(f"{path}: damaged: {error}") from None
        for path in sorted(self.filesystem.glob(f"{_escape(self.path)}/*/host=*/part-*.parquet")):
            self.tables.setdefault(path.split("/")[-3], []).append(path)
        if not self.hosts and not self.tables:
            raise Error(f"{self.path}: not the directory of a run: neither run.json nor tables")
        return self

    def text(self, name: str) -> Optional[str]:
        try:
            content: bytes = self.filesystem.cat_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return None
        return content.decode()

    def url(self, path: str) -> str:
        """A file's name for DuckDB, which finds the file system by its protocol."""
        return path if self.local else str(self.filesystem.unstrip_protocol(path))


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
