"""Regions across processes that are not forked in the region: pools, loky, Dask, programs."""

from __future__ import annotations

import os
from typing import Any, Callable, Generic, Optional, TypeVar

from . import _channel, _marks

R = TypeVar("R")


def environment() -> dict[str, str]:
    """The environment for a program whose regions belong to the current region.

        with profiler.region("convert"):
            subprocess.run([sys.executable, "convert.py"], env=profiler.environment())
    """
    variables = dict(os.environ)
    current = _marks._current.get()
    if _channel.active is not None and current is not None:
        variables.update({_channel.VARIABLE: _channel.active.path, _marks.VARIABLE: str(current)})
    return variables


class propagate(Generic[R]):
    """A picklable function whose regions belong to the region in which this object was made.

        with profiler.region("search"), ProcessPoolExecutor() as pool:
            pool.map(profiler.propagate(score), candidates)

    The worker must be a descendant of this process, or be profiled by the same run. It also begins
    to send marks, if it was started before the run.
    """

    def __init__(self, function: Callable[..., R]) -> None:
        self.function = function
        self.socket: Optional[str] = _channel.active.path if _channel.active else None
        self.parent = _marks._current.get()

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        active = _channel.active
        if self.socket != (active.path if active else None):
            _channel.connect(self.socket)
        outer = _marks._current.get()
        _marks._current.set(self.parent)
        try:
            return self.function(*args, **kwargs)
        finally:
            _marks._current.set(outer)
