"""The magic `%%profile` of IPython: `%load_ext profiler`."""

from __future__ import annotations

import argparse
import io
import shlex
from typing import Any, NoReturn

from ._errors import Error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Error(f"{message}; usage: %%profile [-i INTERVAL] [-o DIRECTORY]")


_parser = _Parser(add_help=False)
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
    ("peak memory, at least", "peak_memory_bytes", _bytes),
    ("read from storage", "storage_read_bytes", _bytes),
    ("written", "storage_write_bytes", _bytes),
]


def profile(line: str, cell: str) -> None:
    """Profile a cell: `%%profile [-i INTERVAL] [-o DIRECTORY]`."""
    from IPython.core.error import UsageError
    from IPython.core.getipython import get_ipython
    from IPython.display import HTML, Image, display

    from ._session import run

    shell: Any = get_ipython()  # type: ignore[no-untyped-call, unused-ignore]
    try:
        options = _parser.parse_args(shlex.split(line))
        with run(options.interval, options.out) as session:
            outcome = shell.run_cell(cell)
        totals = session.summary()["total"]
    except (Error, ValueError) as error:
        raise UsageError(str(error)) from None
    try:
        # As an image: IPython shows figures only after `%matplotlib inline`.
        image = io.BytesIO()
        session.open().timeline.plot().savefig(image, format="png", dpi=100)
        display(Image(image.getvalue(), format="png"))  # type: ignore[no-untyped-call, unused-ignore]
    except (Error, ImportError) as error:
        print(f"no plot: {error}")
    rows = "".join(f"<tr><th>{label}</th><td>{show(totals.get(name))}</td></tr>" for label, name, show in _FIGURES)
    display(HTML(f"<table>{rows}</table>"))  # type: ignore[no-untyped-call, unused-ignore]
    print(session.path)
    # The error has been shown; the cell counts as failed only if the magic raises it, too.
    outcome.raise_error()


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(profile, magic_kind="cell", magic_name="profile")
