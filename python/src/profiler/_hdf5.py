"""Data frames in an HDF5 file, as pandas stores them."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any, Optional

import pandas
import tables

from ._errors import reason


def write(frames: dict[str, Any], old: Optional[Path], new: Path) -> None:
    """Make the file `new`: what `old` has, and the frames by key."""
    if old is not None:
        if not tables.is_hdf5_file(str(old)):
            raise ValueError("not an HDF5 file")
        shutil.copyfile(old, new)
    with warnings.catch_warnings():
        # Keys need not be identifiers of Python.
        warnings.simplefilter("ignore", tables.NaturalNameWarning)
        with pandas.HDFStore(str(new), mode="w" if old is None else "a") as store:
            for key, frame in frames.items():
                # Smaller than the fixed format, which is the one for no rows and many columns.
                table = 0 < len(frame) and len(frame.columns) < 500
                store.put(key, frame, format="table" if table else "fixed", index=False, track_times=False)
    _verify(new, frames)


def _verify(path: Path, frames: dict[str, Any]) -> None:
    """The HDF5 library does not report a full disk when it closes a file."""
    try:
        for key, frame in frames.items():
            found: Any = pandas.read_hdf(str(path), key)
            if not found.equals(frame.astype({"Host": found["Host"].dtype})):
                raise ValueError("other values than written")
    except Exception as error:
        # The operating system's reason, if it still has one.
        with open(path, "ab") as file:
            file.write(bytes(1 << 20))
        raise ValueError(f"not written completely: {reason(error)}") from None
