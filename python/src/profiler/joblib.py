"""joblib, and what uses it: regions of the calls, also in workers.

    from profiler.joblib import Parallel
    Parallel(n_jobs=4)(joblib.delayed(score)(x) for x in candidates)

    with joblib.parallel_config(backend="profiler"):
        search.fit(x, y)  # scikit-learn

`Parallel` replaces `joblib.Parallel`. The backend "profiler" is "loky" with regions, for calls by
libraries. With one job, joblib has no backend, and calls of libraries have no regions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import joblib
from joblib._parallel_backends import LokyBackend

from . import _channel
from ._marks import Region
from ._propagate import propagate

Call = tuple[Callable[..., Any], Any, Any]


def _run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with Region(getattr(function, "__name__", type(function).__name__), kind="joblib"):
        return function(*args, **kwargs)


def _marked(run: propagate[Any], calls: Iterable[Call]) -> Iterator[Call]:
    for function, args, kwargs in calls:
        if isinstance(function, propagate) and function.function is _run:
            yield function, args, kwargs
        else:
            yield run, (function, *args), kwargs


class Parallel(joblib.Parallel):  # type: ignore[misc]
    """`joblib.Parallel`, with a region for each call whose parent is the current region."""

    def __call__(self, iterable: Iterable[Call]) -> Any:
        if _channel.active is not None:
            # Made here: joblib takes most calls from a thread of its own, where no region is open.
            iterable = _marked(propagate(_run), iterable)
        return super().__call__(iterable)


class _Backend(LokyBackend):  # type: ignore[misc]
    _call: Optional[propagate[Any]] = None

    def start_call(self) -> None:
        super().start_call()
        self._call = None if _channel.active is None else propagate(_run)

    def submit(self, func: Any, callback: Any = None) -> Any:
        if self._call is not None:
            func.items = list(_marked(self._call, func.items))
        return super().submit(func, callback)


# Before joblib 1.5, `submit` had another name.
if hasattr(LokyBackend, "submit"):
    joblib.register_parallel_backend("profiler", _Backend)
