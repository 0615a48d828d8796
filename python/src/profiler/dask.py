"""Dask: a region for each task that a worker executes.

    client.register_plugin(profiler.dask.Regions())

The name of a region is that of the task's function, its group the start of the task's key. Workers
must be profiled: started in the run as descendants of its target, or with the profiler on their node.
"""

from __future__ import annotations

from typing import Any, Optional

from distributed import WorkerPlugin
from distributed.utils import key_split

from . import _channel
from ._marks import Region


class Regions(WorkerPlugin):  # type: ignore[misc]
    name = "profiler-regions"

    def __init__(self) -> None:
        self._socket: Optional[str] = _channel.active.path if _channel.active else None
        self._open: dict[Any, Region] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_socket": self._socket, "_open": {}}

    def setup(self, worker: Any) -> None:
        # A worker on another node has no such socket, and keeps that of its own environment.
        if self._socket and not _channel.is_active():
            _channel.connect(self._socket)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "executing":
            # Regions of a worker overlap: each has its own id, and none is the parent of the next.
            region = self._open[key] = Region(key_split(key), kind="dask", group=str(key))
            region.__enter__()
            region.leave_context()
        elif start == "executing" and key in self._open:
            region = self._open.pop(key)
            if finish == "error":
                region.status = "error"
            region.__exit__(None, None, None)

    def teardown(self, worker: Any) -> None:
        for region in self._open.values():
            region.__exit__(None, None, None)
        self._open.clear()
