"""Wheels and the source distribution, built and installed without network."""

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
from conftest import BINARY, rows

import profiler

pytest.importorskip("hatchling", reason="the newest Python only")

PROJECT = Path(__file__).parent.parent
VERSION = profiler.__version__


def execute(*command: str, **variables: str) -> str:
    # The sources must not be found instead of the wheel.
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PROFILER")}
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, out: Path, target: str, **variables: str) -> Path:
    """Builds a distribution from a copy of the sources."""
    copy = out / "sources"
    if not copy.exists():
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out / "dist")]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, env={**os.environ, **variables})
    (built,) = (out / "dist").iterdir()
    return built


def environment(directory: Path) -> Path:
    execute(sys.executable, "-m", "venv", "--without-pip", str(directory))
    return directory / "bin"


def install(bin: Path, wheel: Path) -> str:
    pip = [sys.executable, "-m", "pip", "--python", str(bin / "python"), "install", "--no-index"]
    return execute(*pip, str(wheel))


MARKS = """
import profiler, sys
assert "site-packages" in profiler.__file__, profiler.__file__
assert {"numpy", "pyarrow", "subprocess"}.isdisjoint(sys.modules)
with profiler.region("from the wheel"):
    pass
"""


def test_pure_wheel(tmp_path: Path) -> None:
    wheel = build(PROJECT, tmp_path, "wheel")
    assert wheel.name == f"node_profiler-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    sources = PROJECT / "src"
    files = {path for pattern in ("*.py", "*.sql", "*.css", "py.typed") for path in sources.rglob(pattern)}
    assert {name for name in names if name.startswith("profiler/")} == {
        str(path.relative_to(sources)) for path in files
    }
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE-MIT", "LICENSE-APACHE"}

    bin = environment(tmp_path / "venv")
    assert "Successfully installed" in install(bin, wheel)
    assert "already installed" in install(bin, wheel)
    command = [str(BINARY), "run", "-q", "--out", str(tmp_path), "--run-id", "marks", "--", str(bin / "python"), "-c"]
    execute(*command, MARKS)
    assert [row["name"] for row in rows(profiler.open(tmp_path / "marks"))] == ["from the wheel"]
    assert not (bin / "profiler").exists()


def test_wheel_with_the_program(tmp_path: Path) -> None:
    program = tmp_path / "stripped"
    execute("strip", "-o", str(program), str(BINARY))
    wheel = build(PROJECT, tmp_path, "wheel", PROFILER_BINARY=str(program))
    assert wheel.name == f"node_profiler-{VERSION}-py3-none-linux_{platform.machine()}.whl"
    bin = environment(tmp_path / "venv")
    install(bin, wheel)
    path = f"{bin}:{os.environ['PATH']}"
    assert shutil.which("profiler", path=path) == str(bin / "profiler")
    version = execute("profiler", "--version", PATH=path)
    assert version == execute(str(BINARY), "--version") and version.startswith("profiler ")
    # The environment need not be activated.
    script = "import profiler, sys\nwith profiler.run('100ms', sys.argv[1], run_id='r'): profiler.event('e')"
    execute(str(bin / "python"), "-c", script, str(tmp_path))
    assert [row["name"] for row in rows(profiler.open(tmp_path / "r"))] == ["e"]
    recorded = profiler.open(tmp_path / "r").metadata[0]["command"][0]
    assert recorded == str(bin / "profiler")


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
