"""Files that have their name only when they are complete."""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Optional

# Of the process that has the lock, and of those that create the first file.
_LOCKED, _FIRST = ".tmp", ".new"
_DAY = 86400


@contextmanager
def temporary(path: Path, suffix: str = _FIRST) -> Iterator[Path]:
    """A new empty file beside `path`, which is removed unless it has been renamed."""
    name = path.with_name(f".{path.name}.{secrets.token_hex(4)}{suffix}")
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def synchronize(path: Path) -> None:
    """Write a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def update(path: Path, write: Callable[[Optional[Path], Path], None]) -> None:
    """Replace a file with what `write(old, new)` makes of it; `old` is None if there is none yet.

    Of several processes, each makes its file from that of the one before. Readers have the old
    file until the new one is complete.
    """
    path = Path(os.path.realpath(path))
    while not _try_update(path, write):
        pass
    synchronize(path.parent)


def _try_update(path: Path, write: Callable[[Optional[Path], Path], None]) -> bool:
    """False if another process was faster."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return _create(path, write)
    try:
        _lock(handle)
        old = os.fstat(handle)
        if not _is_at(path, old):
            # Replaced since it was opened: the lock is on a file that nobody uses any more.
            return False
        _remove_abandoned(path)
        with temporary(path, _LOCKED) as new:
            write(path, new)
            with suppress(PermissionError):
                os.chown(new, -1, old.st_gid)
            os.chmod(new, old.st_mode & 0o7777)
            synchronize(new)
            os.replace(new, path)
        return True
    finally:
        os.close(handle)


def _create(path: Path, write: Callable[[Optional[Path], Path], None]) -> bool:
    with temporary(path) as new:
        write(None, new)
        # In contrast to rename(2), link(2) fails if the file exists by now.
        synchronize(new)
        with suppress(FileExistsError):
            os.link(new, path)
            return True
    return False


def _is_at(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(status, os.stat(path))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> None:
    if hasattr(fcntl, "F_OFD_SETLKW"):
        # struct flock: all of the file.
        fcntl.fcntl(handle, fcntl.F_OFD_SETLKW, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.flock(handle, fcntl.LOCK_EX)


def _remove_abandoned(path: Path) -> None:
    """Remove files of killed processes."""
    for name in os.listdir(path.parent):
        file = path.parent / name
        if name.startswith(f".{path.name}.") and file.suffix in (_LOCKED, _FIRST):
            with suppress(FileNotFoundError):
                if file.suffix == _LOCKED or file.stat().st_mtime < time.time() - _DAY:
                    file.unlink()
