"""The program `profiler`."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from typing import Any, Optional, Union

from ._errors import Error

# Older programs lack options and columns that this package uses.
OLDEST = (0, 1)


def find() -> str:
    """The binary in $PROFILER, beside this Python (the wheel can contain it), or in PATH."""
    given = os.environ.get("PROFILER")
    if given:
        found = shutil.which(given)
        if not found:
            raise Error(f"PROFILER={given}: not an executable file")
    else:
        found = shutil.which("profiler", path=sysconfig.get_path("scripts")) or shutil.which("profiler")
    if not found:
        raise Error(
            "the program `profiler` is neither in PATH nor in the environment variable PROFILER: "
            "install a package of profiler, or the wheel that contains the program"
        )
    _check_version(found)
    return found


@functools.lru_cache
def _check_version(program: str) -> None:
    remedy = "set PROFILER to the path of profiler"
    try:
        line = _output([program, "--version"]).stdout.partition("\n")[0]
    except OSError as error:
        raise Error(f"{program}: cannot be executed: {error.strerror}; {remedy}") from None
    version = re.match(r"profiler (\d+)\.(\d+)", line)
    if version is None:
        raise Error(f"{program}: another program of this name; {remedy}")
    if (int(version[1]), int(version[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Error(f"{program}: version {line.split()[1]}, older than {oldest}; install a newer one, or {remedy}")


def _output(command: Sequence[Union[str, bytes]]) -> subprocess.CompletedProcess[str]:
    """Runs the program, whose output is UTF-8 in every locale."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment(),
    )


def environment() -> dict[str, str]:
    """Variables for the program: without colors, which Jupyter and CI services force. Other threads can
    change them meanwhile."""
    values = {name: os.environ.get(name) for name in os.environ if name != "CLICOLOR_FORCE"}
    return {**{name: value for name, value in values.items() if value is not None}, "NO_COLOR": "1"}


def message(stderr: str, code: int) -> str:
    """The line of the output that has the reason of a failure."""
    if code < 0:
        return f"the profiler was killed by signal {-code}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for start in ("error: ", "profiler: "):
        for line in lines:
            if line.startswith(start) and not line.startswith("profiler: limited"):
                return line[len(start) :]
    return lines[-1] if lines else f"profiler: exit code {code}"


def summary(paths: list[str]) -> list[dict[str, Any]]:
    """`profiler summary --json`, one dictionary for each run."""
    done = _output([find(), "summary", "--json", *paths])
    if done.returncode:
        raise Error(message(done.stderr, done.returncode))
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return runs


def options_of(options: dict[str, Any]) -> list[bytes]:
    """Options of the program: interval="1s" is --interval=1s, threads=True is --threads.

    Texts are UTF-8 in every locale, paths are names of files.
    """
    arguments: list[bytes] = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            arguments.append(option.encode())
        elif isinstance(value, dict):
            for key, text in value.items():
                arguments += [option.encode(), _bytes(f"{key}={text}")]
        elif value is not None and value is not False:
            values = value if isinstance(value, (list, tuple)) else [value]
            arguments.append(option.encode() + b"=" + b",".join(map(_bytes, values)))
    return arguments


def _bytes(value: Any) -> bytes:
    if isinstance(value, os.PathLike):
        return os.fsencode(value)
    # Bytes that were not text in the command line or environment of this process remain as they are.
    return str(value).encode("utf-8", "surrogateescape")


def export(paths: list[str], format: str, output: Optional[str], options: dict[str, Any]) -> None:
    """`profiler export`."""
    command: list[Union[str, bytes]] = [find(), "export", format, *paths, *options_of(options)]
    if output is not None:
        command += ["-o", os.fspath(output)]
    done = _output(command)
    if done.returncode:
        raise Error(message(done.stderr, done.returncode))
