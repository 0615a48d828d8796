"""The decorator `task`: a region for each call, with arguments and result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar, Union, overload

from . import _channel, _marks
from ._json import is_secret
from ._marks import Region

F = TypeVar("F", bound=Callable[..., Any])

_Make = Callable[[tuple[Any, ...], dict[str, Any]], Region]
_Result = Optional[Callable[[Any], Any]]


def decorate(function: F, make: _Make, result: _Result = None) -> F:
    """Wrap a function such that a region surrounds each call.

    `make` makes the region from the arguments, `result` the value of `generated` from the result.
    Generators are open from their first to their last item; the regions of their caller are not
    inside them.
    """
    wrapper: Any
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            region = Region("") if _channel.active is None else make(args, kwargs)
            generator = function(*args, **kwargs)
            outer = _marks._current.get()
            count = 0
            with region:
                inside = _Inside(outer)
                step, value = generator.asend, None
                while True:
                    try:
                        with inside:
                            item = await step(value)
                    except StopAsyncIteration:
                        if result is not None:
                            region.generated = {"items": count}
                        return
                    count += 1
                    try:
                        value = yield item
                        step = generator.asend
                    except GeneratorExit:
                        if result is not None:
                            region.generated = {"items": count}
                        with inside:
                            await generator.aclose()
                        raise
                    except BaseException as error:
                        step, value = generator.athrow, error

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if _channel.active is None:
                return (yield from function(*args, **kwargs))
            return (yield from _items(function(*args, **kwargs), make(args, kwargs), result is not None))

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            if _channel.active is None:
                return await function(*args, **kwargs)
            with make(args, kwargs) as region:
                value = await function(*args, **kwargs)
                if result is not None:
                    region.generated = result(value)
                return value

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if _channel.active is None:
                return function(*args, **kwargs)
            with make(args, kwargs) as region:
                value = function(*args, **kwargs)
                if result is not None:
                    region.generated = result(value)
                return value

    return wrapper  # type: ignore[no-any-return]


class _Inside:
    """Makes a region the current one while its generator runs, not while its caller does."""

    __slots__ = ("_outer", "_region")

    def __init__(self, outer: Optional[int]) -> None:
        self._region = _marks._current.get()
        _marks._current.set(outer)

    def __enter__(self) -> None:
        self._outer = _marks._current.get()
        _marks._current.set(self._region)

    def __exit__(self, *_: object) -> None:
        self._region = _marks._current.get()
        _marks._current.set(self._outer)


def _items(items: Iterator[Any], region: Region, counted: bool) -> Any:
    """`yield from items`, in a region."""
    outer = _marks._current.get()
    count = 0
    generator: Any = items
    with region:
        inside = _Inside(outer)
        step, value = generator.send, None
        while True:
            try:
                with inside:
                    item = step(value)
            except StopIteration as stop:
                if counted:
                    region.generated = {"items": count, "result": stop.value}
                return stop.value
            count += 1
            try:
                value = yield item
                step = generator.send
            except GeneratorExit:
                if counted:
                    region.generated = {"items": count}
                with inside:
                    generator.close()
                raise
            except BaseException as error:
                step, value = generator.throw, error


def _arguments(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """A function that names the arguments of a call: faster than `Signature.bind`, never fails."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty and not is_secret(p.name)}
    receiver = 1 if names[:1] in (["self"], ["cls"]) else 0
    own = names[receiver:]
    count = len(names)

    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        used = {**defaults, **dict(zip(own, args[receiver:] if receiver else args)), **kwargs}
        if len(args) > count:
            used[rest] = args[count:]
        return used or None

    return arguments


def _outputs(names: Union[str, list[str], tuple[str, ...], None]) -> Callable[[Any], Any]:
    def outputs(result: Any) -> Any:
        if isinstance(names, str):
            return {names: result}
        if names and isinstance(result, tuple) and len(names) == len(result):
            return dict(zip(names, result))
        return result

    return outputs


@overload
def task(function: F) -> F: ...


@overload
def task(
    function: None = None,
    *,
    name: Optional[str] = None,
    kind: Optional[str] = None,
    group: Optional[str] = None,
    tags: Optional[list[str]] = None,
    output_names: Union[str, list[str], tuple[str, ...], None] = None,
    used: bool = True,
    generated: bool = True,
    **attrs: Any,
) -> Callable[[F], F]: ...


def task(
    function: Optional[F] = None,
    *,
    name: Optional[str] = None,
    kind: Optional[str] = None,
    group: Optional[str] = None,
    tags: Optional[list[str]] = None,
    output_names: Union[str, list[str], tuple[str, ...], None] = None,
    used: bool = True,
    generated: bool = True,
    **attrs: Any,
) -> Union[F, Callable[[F], F]]:
    """A region for each call of a function, with its arguments as `used` and its result as `generated`.

        @profiler.task
        def fit(epochs): ...

        @profiler.task(kind="training", output_names="loss")
        async def fit(epochs): ...

    Functions, coroutines, generators and asynchronous generators are supported. The result of a
    generator is its number of items. An exception sets the status `error` and the attributes
    `exception` and `message`. `used=False` and `generated=False` leave out values.
    """

    def decorator(function: F) -> F:
        label = name or str(getattr(function, "__name__", type(function).__name__))
        given = {"kind": kind, "group": group, "tags": tags, **attrs}
        fields: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        arguments = _arguments(function) if used else lambda args, kwargs: None

        def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Region:
            return Region(label, used=arguments(args, kwargs), **fields)

        return decorate(function, make, _outputs(output_names) if generated else None)

    return decorator if function is None else decorator(function)
