from __future__ import annotations

import re


class Error(Exception):
    """A run that cannot be started or read. The message is one line."""


def reason(error: Exception) -> str:
    """One line of an exception's text."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip()
    # The operating system's reason, among the functions of the HDF5 library.
    match = re.search(r"error message = '([^']+)'", text)
    return match[1] if match else (text.splitlines() or [type(error).__name__])[0]
