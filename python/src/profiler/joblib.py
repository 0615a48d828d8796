"""joblib: `from profiler.joblib import delayed` marks each task, also in workers of loky."""

from __future__ import annotations

from typing import Any, Callable

import joblib

from ._marks import Region
from ._propagate import propagate


class _Task:
    """Picklable, in contrast to a decorated function that does not replace the original."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Region(self.name, kind="joblib"):
            return self.function(*args, **kwargs)


def delayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`joblib.delayed`, with a region for each call whose parent is the current region."""
    call: Callable[..., Any] = joblib.delayed(propagate(_Task(function)))
    return call
