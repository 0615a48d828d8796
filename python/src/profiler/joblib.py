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


class _Task:
    """Picklable, in contrast to a decorated function that does not replace the original."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Region(self.name, kind="joblib"):
            return self.function(*args, **kwargs)


class _Marker:
    """Calls belong to the region in which this object was made: joblib takes later ones from its own thread."""

    def __init__(self) -> None:
        self.origin = propagate(_Task)

    def __call__(self, calls: Iterable[Call]) -> Iterator[Call]:
        return ((self.origin.with_function(_Task(call)), args, kwargs) for call, args, kwargs in calls)


class Parallel(joblib.Parallel):  # type: ignore[misc]
    """`joblib.Parallel`, with a region for each call whose parent is the current region."""

    def __call__(self, iterable: Iterable[Call]) -> Any:
        is_marked = _channel.active is not None and not isinstance(self._backend, _Backend)
        return super().__call__(_Marker()(iterable) if is_marked else iterable)


class _Backend(LokyBackend):  # type: ignore[misc]
    _marker: Optional[_Marker] = None

    def start_call(self) -> None:
        super().start_call()
        self._marker = None if _channel.active is None else _Marker()

    def submit(self, func: Any, callback: Any = None) -> Any:
        if self._marker is not None:
            func.items = list(self._marker(func.items))
        return super().submit(func, callback)


# Before joblib 1.5, `submit` had another name.
if hasattr(LokyBackend, "submit"):
    joblib.register_parallel_backend("profiler", _Backend)
