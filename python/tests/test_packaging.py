"""The source distribution, and wheels of other machines, built without network."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from test_wheel import PROJECT, VERSION, environment, install

pytest.importorskip("hatchling", reason="the newest Python only")


def build(source: Path, out: Path, target: str, **variables: str) -> Path:
    """Builds a distribution from a copy of the sources."""
    copy = out / "sources"
    if not copy.exists():
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out / "dist")]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, env={**os.environ, **variables})
    (built,) = (out / "dist").iterdir()
    return built


def test_tag_of_another_machine(tmp_path: Path) -> None:
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    wheel = build(PROJECT, tmp_path, "wheel", PROFILER_BINARY=str(program), PROFILER_BINARY_MACHINE=other)
    assert wheel.name == f"node_profiler-{VERSION}-py3-none-linux_{other}.whl"
    assert zipfile.ZipFile(wheel).read(f"node_profiler-{VERSION}.data/scripts/profiler") == b"\x7fELF"
    with pytest.raises(AssertionError, match="not a supported wheel on this platform"):
        install(environment(tmp_path / "venv"), wheel)


def test_source_distribution(tmp_path: Path) -> None:
    archive = build(PROJECT, tmp_path / "sdist", "sdist")
    assert archive.name == f"node_profiler-{VERSION}.tar.gz"
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
        file.extractall(tmp_path)
    assert {"hatch_build.py", "pyproject.toml", "README.md", "LICENSE-MIT", "tests/test_wheel.py"} <= names
    assert not [name for name in names if "cache" in name]
    wheel = build(tmp_path / f"node_profiler-{VERSION}", tmp_path / "again", "wheel")
    direct = build(PROJECT, tmp_path / "direct", "wheel")
    files = [zipfile.ZipFile(one) for one in (wheel, direct)]
    contents = [{name: file.read(name) for name in file.namelist()} for file in files]
    assert contents[0] == contents[1]
