"""Regions that callbacks of a framework open and close."""

from __future__ import annotations

from typing import Any, Optional

from . import _channel
from ._marks import Region


class Stages:
    """A stack of open regions. Each has its kind as name."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Region]] = []

    def __getstate__(self) -> dict[str, Any]:
        # Callbacks are copied into other processes, where the regions are not open.
        return {"_open": []}

    def start(self, kind: str, **fields: Any) -> None:
        # Left open by an exception.
        self.end(kind, "error")
        if _channel.active is not None:
            region = Region(kind, kind=kind, **fields)
            region.__enter__()
            self._open.append((kind, region))

    def end(self, kind: str, status: Optional[str] = None) -> None:
        """Close the innermost region of this kind, and those inside it."""
        while any(opened == kind for opened, _ in self._open):
            opened, region = self._open.pop()
            region.status = status
            region.__exit__(None, None, None)
            if opened == kind:
                return

    def fail(self, error: BaseException) -> None:
        """Close all regions."""
        while self._open:
            self._open.pop()[1].__exit__(type(error), error, None)
