"""The socket to the profiler: one JSON object per datagram, sent without waiting."""

from __future__ import annotations

import os
import socket
import threading
from typing import Optional

VARIABLE = "PROFILER_SOCKET"

# Larger datagrams are refused by the profiler.
MAX_BYTES = 8 << 10


class Channel:
    """A connection to the socket of a running profiler."""

    __slots__ = ("_dropped", "_lock", "_send", "_socket", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._dropped = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._send = self._socket.send

    def send(self, mark: str) -> None:
        """Send a JSON object whose closing brace is missing."""
        dropped = 0
        try:
            if self._dropped:
                with self._lock:
                    dropped, self._dropped = self._dropped, 0
                mark = f'{mark},"dropped":{dropped}'
            self._send((mark + "}").encode("ascii"))
        except ConnectionError:
            # The profiler has ended.
            if active is self:
                connect(None)
        except OSError:
            # The socket is full.
            with self._lock:
                self._dropped += dropped + 1


# None while no profiler runs this process. Read it as an attribute of this module: it changes.
active: Optional[Channel] = None


def connect(path: Optional[str]) -> None:
    """Send marks to this socket from now on; None: to nobody."""
    global active
    channel = None
    if path:
        try:
            channel = Channel(path)
        except OSError:
            pass
    active = channel


def from_environment() -> None:
    connect(os.environ.get(VARIABLE))


# A child needs a socket and a number of dropped marks of its own.
os.register_at_fork(after_in_child=from_environment)
from_environment()
