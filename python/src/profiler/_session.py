"""Profiles this process and its descendants while a block runs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Optional, Union

from . import _binary, _channel
from ._errors import Error

if TYPE_CHECKING:
    from ._reader import Reader

# Seconds until a profiler that neither profiles nor fails is given up.
TIMEOUT = 60

_runs = itertools.count()


class Session:
    """A run of the profiler on this process. See `run`."""

    #: Directory of the run.
    path: str
    #: What the profiler reported on stderr.
    messages: str

    def __init__(self, interval: str = "1s", out: Optional[str] = None, **options: Any) -> None:
        for name in ("pid", "cgroup", "job", "node", "quiet", "log"):
            if name in options:
                raise TypeError(f"run() does not take the option {name!r}")
        out = os.fspath(out or os.environ.get("PROFILER_OUT") or "profiles")
        if not options.get("run_id"):
            started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            options["run_id"] = f"{started}-{socket.gethostname()}-{os.getpid()}.{next(_runs)}"
        self.path = os.path.join(out, str(options["run_id"]))
        self.messages = ""
        self._options = {"interval": interval, "out": Path(out), **options}
        self._process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> Session:
        """Return when this process is being profiled and its marks have a socket."""
        if self._process is not None:
            raise Error(f"{self.path}: the run has been started already")
        command: list[Union[str, bytes]] = [_binary.find(), "run", "--pid", str(os.getpid()), *_binary.options_of(self._options)]
        # Messages are needed here, wherever the configuration sends them.
        environment = _binary.environment()
        environment.pop("PROFILER_LOG", None)
        self._pid = os.getpid()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        # In a session of its own, the profiler does not see the Ctrl-C that ends the block.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,
        )
        try:
            self._wait_until_it_profiles()
            self._connect()
        except BaseException:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._stderr.close()
            raise
        return self

    def _read_messages(self) -> str:
        self._stderr.seek(0, os.SEEK_END)
        size = self._stderr.tell()
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="replace")

    def _wait_until_it_profiles(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + TIMEOUT
        while True:
            code = self._process.poll()
            self.messages = self._read_messages()
            if code is not None:
                raise Error(_binary.message(self.messages, code))
            if any(line.startswith("profiling ") for line in self.messages.splitlines()):
                return
            if time.monotonic() > deadline:
                raise Error(f"the profiler did not begin within {TIMEOUT} s: {_binary.message(self.messages, 0)}")
            time.sleep(0.005)

    def _connect(self) -> None:
        with open(os.path.join(self.path, self._metadata_name()), encoding="utf-8") as file:
            path = json.load(file).get("socket")
        self._outer = os.environ.get(_channel.VARIABLE)
        self._socket: Optional[str] = path
        if path:
            os.environ[_channel.VARIABLE] = path
            _channel.connect(path)

    def _metadata_name(self) -> str:
        """The second and further nodes of a run have a file of their own."""
        name = f"run.{self._options.get('hostname') or socket.gethostname()}.json"
        return name if os.path.exists(os.path.join(self.path, name)) else "run.json"

    def stop(self) -> None:
        """End the run. The files are complete when this returns."""
        process = self._process
        # A child that was forked in the block leaves it, too: the run is not its own.
        if process is None or os.getpid() != self._pid:
            return
        self._process = None
        channel = _channel.active
        lost = channel.dropped if channel is not None and channel.path == self._socket else 0
        if self._outer is None:
            os.environ.pop(_channel.VARIABLE, None)
        else:
            os.environ[_channel.VARIABLE] = self._outer
        _channel.from_environment()
        # The last marks are read before the profiler ends: it drains its socket first.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        code = process.wait()
        self.messages = self._read_messages()
        self._stderr.close()
        marks = f"{lost} marks at the end of the run were not stored"
        if code:
            raise Error(_binary.message(self.messages, code) + f"; {marks}" * (lost > 0))
        if lost:
            warnings.warn(f"{self.path}: {marks}", stacklevel=3)

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.stop()
        except Error as failure:
            if error is None:
                raise
            warnings.warn(str(failure), stacklevel=2)

    def summary(self) -> dict[str, Any]:
        """The figures of `profiler summary --json`."""
        return _binary.summary([self.path])[0]

    def export(self, format: str, output: Optional[str] = None, **options: Any) -> None:
        """Write the run in a format of `profiler export`, or log it: `p.export("mlflow", mlflow_run=ID)`."""
        _binary.export([self.path], format, output, options)

    def open(self) -> Reader:
        """The tables of the run."""
        from ._reader import open as open_run

        return open_run(self.path)


def run(interval: str = "1s", out: Optional[str] = None, **options: Any) -> Session:
    """Profile this process and its descendants, as a context manager.

        with profiler.run(interval="100ms", out="profiles", label={"env": "test"}) as p:
            work()
        print(p.path, p.summary()["total"]["cpu_s"])

    Keywords are the options of `profiler run`. Root and users with capabilities profile by
    themselves, others by the service of the node if there is one, or in less detail.
    """
    return Session(interval, out, **options)
