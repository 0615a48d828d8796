"""The program `profiler`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Optional

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


def environment() -> dict[str, str]:
    """Variables for the program: without colors, which Jupyter and CI services force. Other threads can
    change them meanwhile."""
    values = {name: os.environ.get(name) for name in os.environ if name != "CLICOLOR_FORCE"}
    return {**{name: value for name, value in values.items() if value is not None}, "NO_COLOR": "1"}


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
    done = subprocess.run([find(), "summary", "--json", *paths], capture_output=True, text=True, env=environment())
    if done.returncode:
        raise Error(message(done.stderr, done.returncode))
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return runs


def options_of(options: dict[str, Any]) -> list[str]:
    """Options of the program: interval="1s" is --interval=1s, threads=True is --threads."""
    arguments: list[str] = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            arguments.append(option)
        elif isinstance(value, dict):
            for key, text in value.items():
                arguments += [option, f"{key}={text}"]
        elif value is not None and value is not False:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            arguments.append(f"{option}={text}")
    return arguments


def export(paths: list[str], format: str, output: Optional[str], options: dict[str, Any]) -> None:
    """`profiler export`."""
    command = [find(), "export", format, *paths, *options_of(options)]
    if output is not None:
        command += ["-o", os.fspath(output)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise Error(message(done.stderr, done.returncode))
