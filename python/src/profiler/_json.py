"""Arbitrary Python values as JSON of a limited size, in ASCII.

The result is for people who look at a region, not for restoring the values: long texts and lists
are cut, arrays and tensors are described by shape and type, other objects by the name of their
class. Members with names of secrets are left out.
"""

from __future__ import annotations

import functools
import math
import os
import re
from enum import Enum
from json.encoder import encode_basestring_ascii as _quote
from typing import Any, Callable, Optional

MAX_DEPTH = 5
MAX_ITEMS = 32
MAX_TEXT = 1024
# Space for the number of items left out, in each list that is open.
_MORE = 32

_SECRET = re.compile(
    r"pass_?(w|phrase)|pwd|secret|credential|cookie|authori[sz]ation|token(?!i[sz])"
    r"|(?<![a-z])((api|access|private|ssh)_?)?keys?(?![a-z])|(?<![a-z])auth(?![a-z])"
)
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# Packages whose objects are described by their attributes: reading them computes nothing.
_ARRAYS = {"numpy", "torch", "jax", "jaxlib", "cupy", "tensorflow", "pandas", "polars", "pyarrow"}


@functools.lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a value of this name is left out of all marks."""
    return _SECRET.search(_CAMEL_CASE.sub("_", name).lower()) is not None


@functools.lru_cache(maxsize=4096)
def _key(name: str) -> Optional[str]:
    """The name of a member as JSON; None if it is left out."""
    return None if is_secret(name) else quote(name, 128)


def encode(value: object, limit: int) -> str:
    """The JSON of a value, in at most `limit` characters (at least 64)."""
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple(value)
    if type(value) is dict and len(value) <= MAX_ITEMS:
        json = _simple_members(value)
        if json is not None and len(json) <= limit - 64:
            return json
    return _Encoder(limit - 64).value(value, MAX_DEPTH)


def _simple_members(values: dict[Any, Any]) -> Optional[str]:
    """Members that are numbers, as most arguments are: half the time of the encoder."""
    parts: list[str] = []
    for name, value in values.items():
        simple = _SIMPLE.get(type(value))
        if simple is None or type(name) is not str:
            return None
        key = _key(name)
        if key is not None:
            parts.append(f"{key}:{simple(value)}")
    return "{" + ",".join(parts) + "}"


def quote(text: str, limit: int = MAX_TEXT) -> str:
    """A text as JSON of at most about `limit` characters."""
    if len(text) * 12 > limit:
        # Long, or possibly: a character needs up to twelve.
        text = _cut(text, limit)
    quoted = _quote(text)
    if "\\ud" in quoted:
        # Half of a surrogate pair, as in names of files, is not JSON to the profiler.
        quoted = _quote(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return quoted


def _cut(text: str, limit: int) -> str:
    if len(_quote(text[:limit])) <= limit + 2 and len(text) <= limit:
        return text
    head = text[:limit]
    while len(_quote(head)) > limit - 4:
        head = head[: len(head) * 3 // 4]
    return head + "…"


def _integer(value: Any) -> str:
    # The profiler reads larger ones as floating point, or not at all.
    return str(int(value)) if -(2**63) <= value < 2**64 else f'"integer of {int(value).bit_length()} bits"'


def _real(value: Any) -> str:
    return repr(float(value)) if math.isfinite(value) else f'"{float(value)}"'


_SIMPLE: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
    int: _integer,
    float: _real,
}


def _type_name(value: object) -> str:
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"[:MAX_TEXT]


class _Encoder:
    __slots__ = ("left",)

    def __init__(self, limit: int) -> None:
        self.left = limit

    def take(self, json: str) -> str:
        self.left -= len(json) + 1
        return json

    def text(self, text: str) -> str:
        return self.take(quote(text, max(8, min(MAX_TEXT, self.left))))

    def value(self, value: Any, depth: int) -> str:
        simple = _SIMPLE.get(type(value))
        if simple is not None:
            return self.take(simple(value))
        try:
            return self.object(value, depth)
        except Exception:
            # The application must not notice marks, not even if its own __fspath__ fails.
            return self.text(_type_name(value))

    def object(self, value: Any, depth: int) -> str:
        if type(value) is dict:
            return self.members(value, depth)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Enum):
            return self.text(value.name)
        if isinstance(value, bool) or value is None:
            return self.take("true" if value else "null")
        if isinstance(value, (list, tuple, set, frozenset, range)):
            return self.items(value, depth)
        if isinstance(value, dict):
            return self.members(value, depth)
        if isinstance(value, os.PathLike):
            return self.text(os.fsdecode(os.fspath(value)))
        if isinstance(value, (bytes, bytearray)):
            return self.text(f"<{len(value)} bytes>")
        if type(value).__module__.partition(".")[0] in _ARRAYS:
            return self.array(value, depth)
        if isinstance(value, int):
            return self.take(_integer(value))
        if isinstance(value, float):
            return self.take(_real(value))
        return self.text(_type_name(value))

    def items(self, values: Any, depth: int) -> str:
        self.left -= 2 + _MORE
        parts: list[str] = []
        for value in values:
            if depth == 0 or len(parts) == MAX_ITEMS or self.left < 32:
                parts.append(self.take(f'"… {len(values) - len(parts)} more"'.replace("…", "\\u2026")))
                break
            parts.append(self.value(value, depth - 1))
        self.left += _MORE
        return "[" + ",".join(parts) + "]"

    def members(self, values: dict[Any, Any], depth: int) -> str:
        self.left -= 2 + _MORE
        parts: list[str] = []
        for name, value in values.items():
            key = _key(name if isinstance(name, str) else str(name)[:64])
            if key is None:
                continue
            if depth == 0 or len(parts) == MAX_ITEMS or self.left < 64:
                parts.append(self.take(f'"\\u2026":"{len(values) - len(parts)} more"'))
                break
            if len(key) > self.left - 32:
                key = quote(str(name), max(8, self.left - 32))
            # Most values are simple: this is faster than value().
            simple = _SIMPLE.get(type(value))
            json = self.value(value, depth - 1) if simple is None else self.take(simple(value))
            self.left -= len(key) + 2
            parts.append(f"{key}:{json}")
        self.left += _MORE
        return "{" + ",".join(parts) + "}"

    def array(self, value: Any, depth: int) -> str:
        shape = getattr(value, "shape", None)
        if shape is None:
            return self.text(_type_name(value))
        if not tuple(shape) and type(value).__module__ == "numpy":
            return self.value(value.item(), depth)
        facts: dict[str, object] = {"type": type(value).__qualname__, "shape": [int(length) for length in shape]}
        for name in ("dtype", "device"):
            if hasattr(value, name):
                facts[name] = str(getattr(value, name))
        if isinstance(getattr(value, "nbytes", None), int):
            facts["nbytes"] = value.nbytes
        return self.members(facts, max(depth, 2))
