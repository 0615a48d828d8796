"""The program `profiler`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any

from ._errors import Error


def find() -> str:
    """The binary in $PROFILER, beside this Python (the wheel can contain it), or in PATH."""
    given = os.environ.get("PROFILER")
    if given:
        found = shutil.which(given)
        if not found:
            raise Error(f"PROFILER={given}: not an executable file")
        return found
    found = shutil.which("profiler", path=sysconfig.get_path("scripts")) or shutil.which("profiler")
    if not found:
        raise Error("the program `profiler` is neither in PATH nor in the environment variable PROFILER")
    return found


def message(stderr: str, code: int) -> str:
    """The line of the output that has the reason of a failure."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for start in ("error: ", "profiler: "):
        for line in lines:
            if line.startswith(start) and not line.startswith("profiler: limited"):
                return line[len(start) :]
    return lines[-1] if lines else f"profiler: exit code {code}"


def summary(paths: list[str]) -> list[dict[str, Any]]:
    """`profiler summary --json`, one dictionary for each run."""
    done = subprocess.run([find(), "summary", "--json", *paths], capture_output=True, text=True)
    if done.returncode:
        raise Error(message(done.stderr, done.returncode))
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return runs
