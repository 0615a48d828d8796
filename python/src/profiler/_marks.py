"""Regions, events, phases and gauges. The grammar of marks is that of docs/regions.md."""

from __future__ import annotations

import contextvars
import functools
import itertools
import math
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Callable, Generic, Optional, TypeVar

from . import _channel
from ._json import encode, quote

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Number of the region that the program was started in.
VARIABLE = "PROFILER_REGION"


def _outer() -> Optional[int]:
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() else None


_program = _outer()
# The innermost open region of this thread or asyncio task.
_current: contextvars.ContextVar[Optional[int]] = contextvars.ContextVar("profiler_region", default=_program)

_ids: Iterator[int]


def _new_ids() -> None:
    # Unique on the node, because a worker can name a region of the process that started it.
    global _ids
    _ids = itertools.count(os.getpid() * 1_000_000 + 1)


os.register_at_fork(after_in_child=_new_ids)
_new_ids()


def _texts(**fields: Optional[str]) -> str:
    return "".join(f',"{name}":{quote(str(text), 256)}' for name, text in fields.items() if text is not None)


class _Mark:
    """The JSON of a mark. Its fields share the space of a datagram."""

    __slots__ = ("json",)

    def __init__(self, json: str) -> None:
        self.json = json

    def add(self, name: str, value: object, limit: int) -> None:
        left = _channel.MAX_BYTES - 64 - len(self.json)
        if left > 128:
            self.json += f',"{name}":{encode(value, min(limit, left))}'

    def fields(self, attrs: Optional[dict[str, Any]], tags: Any, used: Any, generated: Any) -> _Mark:
        if attrs:
            self.add("attrs", attrs, 2048)
        if tags:
            self.add("tags", [tags] if isinstance(tags, str) else list(tags), 512)
        if used is not None:
            self.add("used", used, 4096)
        if generated is not None:
            self.add("generated", generated, 4096)
        return self


# Fields of a region that are not attributes.
_OWN = frozenset({"kind", "group", "tags", "used"})
_USED = {"used"}


class Region:
    """A region of the program, as a context manager or decorator.

        with profiler.region("fit", epoch=3) as r:
            r.generated = {"loss": fit()}

    `kind`, `group`, `tags` and `used` are fields of the region; other keywords are its attributes.
    Everything that the process and its descendants use in the region is in table `region_usage`.
    """

    __slots__ = ("_after", "_channel", "_fields", "_id", "_name", "_previous", "generated", "status")

    #: Outputs, stored when the region ends.
    generated: Any
    #: Outcome, if it is neither `finished` nor `error`.
    status: Optional[str]
    _after: Optional[dict[str, Any]]
    _channel: Optional[_channel.Channel]

    # Keywords are not named here, because that would cost 0.1 µs while no profiler runs.
    def __init__(self, name: str, **fields: Any) -> None:
        self._name = name
        self._fields = fields

    def __enter__(self) -> Region:
        channel = self._channel = _channel.active
        if channel is None:
            return self
        self.generated = self.status = self._after = None
        self._id = number = next(_ids)
        self._previous = parent = _current.get()
        fields = self._fields
        texts = prefix(self._name, fields.get("kind"), fields.get("group")) if fields else prefix(self._name)
        json = f'{{"op":"start","id":{number}{texts}'
        if parent is not None:
            json += f',"parent":{parent}'
        if fields:
            if fields.keys() == _USED:
                # Of most tasks. Alone, it has space.
                if fields["used"] is not None:
                    json += f',"used":{encode(fields["used"], 4096)}'
            else:
                attrs = {name: value for name, value in fields.items() if name not in _OWN}
                json = _Mark(json).fields(attrs, fields.get("tags"), fields.get("used"), None).json
        channel.send(json)
        _current.set(number)
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        channel = self._channel
        if channel is None:
            return
        _current.set(self._previous)
        if channel is not _channel.active:
            # A child that was forked in the region leaves it, or the run has ended.
            return
        json = f'{{"op":"end","id":{self._id}'
        attrs = self._after
        status = self.status
        if kind is not None and not issubclass(kind, GeneratorExit):
            status = status or "error"
            try:
                message = str(error)
            except Exception:
                message = "<unrepresentable>"
            attrs = {**(attrs or {}), "exception": kind.__qualname__, "message": message}
        if status is not None:
            json += _texts(status=status)
        if attrs:
            json = _Mark(json).fields(attrs, None, None, self.generated).json
        elif self.generated is not None:
            json += f',"generated":{encode(self.generated, 4096)}'
        channel.send(json)

    def leave_context(self) -> None:
        """Keep the region open, but do not make it the parent of what follows."""
        if self._channel is not None:
            _current.set(self._previous)

    def update(self, **attrs: Any) -> None:
        """Add attributes, stored when the region ends."""
        if self._channel is not None:
            self._after = {**(self._after or {}), **attrs}

    def __call__(self, function: F) -> F:
        from ._task import decorate

        def make(args: Any, kwargs: Any) -> Region:
            return Region(self._name, **self._fields)

        return decorate(function, make)


region = Region


@functools.lru_cache(maxsize=1024)
def prefix(
    name: str, kind: Optional[str] = None, group: Optional[str] = None, unit: Optional[str] = None
) -> str:
    return _texts(name=name or "?", kind=kind, group=group, unit=unit)


class loop(Generic[T]):
    """Iterates, with a region for each iteration.

        for batch in profiler.loop(batches, name="batch"):
            ...

    The regions have the number of the iteration and the item as `used`, and one `group`. Use it
    for iterations of 5 ms or more: shorter ones have no usage.
    """

    def __init__(self, iterable: Iterable[T], name: str = "iteration", *, item: str = "item", **attrs: Any) -> None:
        self._iterable = iterable
        self._name = name
        self._item = item
        self._attrs = attrs
        self._region: Optional[Region] = None

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        return iter(self._iterable) if _channel.active is None else self._marked()

    def _marked(self) -> Iterator[T]:
        group = f"{self._name}-{next(_ids)}"
        for number, item in enumerate(self._iterable):
            used = {"i": number, self._item: item}
            with Region(self._name, group=group, used=used, **self._attrs) as self._region:
                yield item
            self._region = None

    def update(self, generated: Any = None, **attrs: Any) -> None:
        """Add outputs and attributes to the current iteration."""
        if self._region is not None:
            if generated is not None:
                self._region.generated = generated
            self._region.update(**attrs)


def _send(op: str, fields: str, attrs: dict[str, Any], tags: Any, used: Any = None, generated: Any = None) -> None:
    channel = _channel.active
    if channel is None:
        return
    parent = _current.get()
    json = f'{{"op":"{op}"{fields}'
    if parent is not None:
        json += f',"parent":{parent}'
    if attrs or tags or used is not None or generated is not None:
        json = _Mark(json).fields(attrs, tags, used, generated).json
    channel.send(json)


def event(
    name: str,
    *,
    kind: Optional[str] = None,
    group: Optional[str] = None,
    tags: Optional[Iterable[str]] = None,
    **attrs: Any,
) -> None:
    """Mark a moment."""
    if _channel.active is not None:
        _send("event", prefix(name, kind, group), attrs, tags)


def phase(
    name: str,
    seconds: float,
    *,
    status: Optional[str] = None,
    kind: Optional[str] = None,
    group: Optional[str] = None,
    tags: Optional[Iterable[str]] = None,
    used: Any = None,
    generated: Any = None,
    **attrs: Any,
) -> None:
    """Mark a region that took `seconds` and ends now."""
    if _channel.active is not None and math.isfinite(seconds):
        fields = f'{prefix(name, kind, group)}{_texts(status=status)},"seconds":{max(0.0, float(seconds))!r}'
        _send("phase", fields, attrs, tags, used, generated)


def gauge(
    name: str,
    value: float,
    unit: Optional[str] = None,
    *,
    kind: Optional[str] = None,
    group: Optional[str] = None,
    tags: Optional[Iterable[str]] = None,
    **attrs: Any,
) -> None:
    """Report the current value of a quantity, which table `region_gauge` stores. NaN and infinity are not sent."""
    if _channel.active is not None and math.isfinite(value):
        _send("gauge", f'{prefix(name, kind, group, unit)},"value":{float(value)!r}', attrs, tags)
