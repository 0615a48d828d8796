"""The magic `%%profile` of IPython: `%load_ext profiler`."""

from __future__ import annotations

import argparse
from typing import Any

from ._errors import Error

_parser = argparse.ArgumentParser(prog="%%profile", add_help=False)
_parser.add_argument("-i", "--interval", default="100ms")
_parser.add_argument("-o", "--out", default="profiles")


def _seconds(value: Any) -> str:
    return "–" if value is None else f"{value:.3f} s"


def _bytes(value: Any) -> str:
    return "–" if value is None else f"{value / 2**20:.1f} MiB"


# Rows under a cell: label, figure of `profiler summary`, format.
_FIGURES = [
    ("CPU time", "cpu_s", _seconds),
    ("run queue", "runqueue_s", _seconds),
    ("blocked", "blocked_s", _seconds),
    ("peak memory (PSS)", "peak_pss_bytes", _bytes),
    ("read from storage", "storage_read_bytes", _bytes),
    ("written", "storage_write_bytes", _bytes),
]


def profile(line: str, cell: str) -> None:
    """Profile a cell: `%%profile [-i INTERVAL] [-o DIRECTORY]`."""
    from IPython.core.error import UsageError
    from IPython.core.getipython import get_ipython
    from IPython.display import HTML, display

    from ._session import run

    try:
        options = _parser.parse_args(line.split())
    except SystemExit:
        raise UsageError("usage: %%profile [-i INTERVAL] [-o DIRECTORY]") from None
    shell = get_ipython()  # type: ignore[no-untyped-call, unused-ignore]
    try:
        with run(options.interval, options.out) as session:
            outcome = shell.run_cell(cell)
        totals = session.summary()["target"]
    except Error as error:
        raise UsageError(str(error)) from None
    try:
        display(session.open().timeline.plot())  # type: ignore[no-untyped-call, unused-ignore]
    except (Error, ImportError) as error:
        print(f"no plot: {error}")
    rows = "".join(f"<tr><th>{label}</th><td>{show(totals.get(name))}</td></tr>" for label, name, show in _FIGURES)
    display(HTML(f"<table>{rows}</table>"))  # type: ignore[no-untyped-call, unused-ignore]
    print(session.path)
    # The error has been shown; the cell counts as failed only if the magic raises it, too.
    outcome.raise_error()


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(profile, magic_kind="cell", magic_name="profile")
