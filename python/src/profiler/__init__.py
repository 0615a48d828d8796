"""Regions of a Python program, and the runs of `profiler`.

    import profiler

    @profiler.task
    def fit(epochs): ...

    with profiler.run(interval="100ms") as p:
        fit(3)
    print(p.summary()["total"]["cpu_s"])
    regions = profiler.open(p.path).regions()

Marks go to the socket that `profiler run -- python …` or `profiler.run()` provides. Without one,
they do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import Error
from ._marks import Region, event, gauge, loop, phase, region
from ._propagate import environment, propagate
from ._task import task

if TYPE_CHECKING:
    from ._histogram import Histogram
    from ._reader import Column, Reader, Table, open
    from ._session import Session, run

__version__ = "0.1.0"

__all__ = [
    "Column",
    "Error",
    "Histogram",
    "Reader",
    "Region",
    "Session",
    "Table",
    "active",
    "environment",
    "event",
    "gauge",
    "loop",
    "open",
    "phase",
    "propagate",
    "region",
    "run",
    "task",
]

# Imported on first use: marking must not cost the import of what only readers need.
_LAZY = {
    "Column": "_reader",
    "Histogram": "_histogram",
    "Reader": "_reader",
    "Session": "_session",
    "Table": "_reader",
    "open": "_reader",
    "run": "_session",
}


def active() -> bool:
    """Whether a profiler takes the marks of this process."""
    from . import _channel

    return _channel.is_active()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext profiler` provides the magic `%%profile`."""
    from .notebook import load_ipython_extension as load

    load(shell)
