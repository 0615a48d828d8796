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

    __slots__ = ("_lock", "_send", "_socket", "dropped", "is_closed", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        #: Marks that were not sent since the last one that was.
        self.dropped = 0
        #: Whether the profiler has ended.
        self.is_closed = False
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
        if self.is_closed:
            with self._lock:
                self.dropped += 1
            return
        try:
            if self.dropped:
                with self._lock:
                    dropped, self.dropped = self.dropped, 0
                mark = f'{mark},"dropped":{dropped}'
            self._send((mark + "}").encode("ascii"))
        except OSError as error:
            # The socket is full, or nobody reads it any more.
            self.is_closed = isinstance(error, ConnectionError)
            with self._lock:
                self.dropped += dropped + 1


# None while no profiler runs this process. Read it as an attribute of this module: it changes.
active: Optional[Channel] = None


def is_active() -> bool:
    """Whether a profiler takes the marks of this process."""
    return active is not None and not active.is_closed


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
