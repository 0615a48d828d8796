"""Time, bytes read and memory of queries."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple


class Cost(NamedTuple):
    seconds: float
    #: Bytes returned by read(2), from disks or the page cache.
    read_bytes: int
    #: Largest resident memory of all processes together.
    peak_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:8.2f} s {self.read_bytes / 1e6:9.1f} MB read {self.peak_bytes / 1e6:7.0f} MB peak"


class Meter:
    """Measures what is done between two calls of `lap` by processes of this machine."""

    def __init__(self, processes: Callable[[], list[int]]) -> None:
        self._processes = processes
        self.lap()

    def lap(self) -> Cost:
        """The cost since the last lap."""
        now, pids = time.monotonic(), self._processes()
        read = {pid: _value(f"/proc/{pid}/io", "rchar:") for pid in pids}
        peak = sum(_value(f"/proc/{pid}/status", "VmHWM:") for pid in pids) * 1024
        for pid in pids:
            _reset_peak(pid)
        before = getattr(self, "_read", {})
        cost = Cost(now - getattr(self, "_begin", now), sum(read[pid] - before.get(pid, 0) for pid in pids), peak)
        self._read, self._begin = read, now
        return cost


def _value(path: str, key: str) -> int:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(key)), 0)
    except OSError:
        return 0  # The process has ended, or belongs to another user.


def _reset_peak(pid: int) -> None:
    try:
        with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pass
