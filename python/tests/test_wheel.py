"""Wheels made by `cargo xtask wheel`, installed without network: PROFILER_WHEELS is their directory."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from conftest import BINARY, rows

import profiler

PROJECT = Path(__file__).parent.parent
VERSION = profiler.__version__


def wheel(platforms: str) -> Path:
    (found,) = Path(os.environ["PROFILER_WHEELS"]).glob(f"node_profiler-{VERSION}-py3-none-{platforms}.whl")
    return found


def execute(*command: str, **variables: str) -> str:
    # The sources must not be found instead of the wheel.
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PROFILER")}
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    pure = wheel("any")
    names = zipfile.ZipFile(pure).namelist()
    sources = PROJECT / "src"
    files = {path for pattern in ("*.py", "*.sql", "*.css", "py.typed") for path in sources.rglob(pattern)}
    assert {name for name in names if name.startswith("profiler/")} == {
        str(path.relative_to(sources)) for path in files
    }
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE-MIT", "LICENSE-APACHE"}

    bin = environment(tmp_path / "venv")
    assert "Successfully installed" in install(bin, pure)
    assert "already installed" in install(bin, pure)
    command = [str(BINARY), "run", "-q", "--out", str(tmp_path), "--run-id", "marks", "--", str(bin / "python"), "-c"]
    execute(*command, MARKS)
    assert [row["name"] for row in rows(profiler.open(tmp_path / "marks"))] == ["from the wheel"]
    assert not (bin / "profiler").exists()


def test_wheel_with_the_program(tmp_path: Path) -> None:
    full = wheel("manylinux_*")
    tag = re.search(r"manylinux_2_(\d+)_(\w+)\.whl$", full.name)
    assert tag and tag[2] == platform.machine()
    # The program was linked with the library of this machine, or an older one.
    assert 17 <= int(tag[1]) <= int(platform.libc_ver()[1].split(".")[1])
    bin = environment(tmp_path / "venv")
    install(bin, full)
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
