"""PyTorch: regions of modules, epochs and batches.

    @profiler.torch.module
    class Net(torch.nn.Module): ...

    for epoch in profiler.torch.epochs(10):
        for batch in profiler.torch.batches(loader):
            loss = step(net, batch)

`watch` does the same for a module that exists. Calls of the module have the kind `parent_forward`,
those of the modules inside it `child_forward`. A call is the time until `forward` returns: kernels
of a GPU can still run. Modules that torch.compile has merged have no regions.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Callable, NamedTuple, Optional, TypeVar, Union, overload

import torch

from . import _channel
from ._marks import Region, event, loop
from ._tensors import describe, model_profile

C = TypeVar("C", bound=type)
M = TypeVar("M", bound="torch.nn.Module")
T = TypeVar("T")

_open = threading.local()


def epochs(items: Union[Iterable[T], int], name: str = "epoch", **attrs: Any) -> loop[T]:
    """`profiler.loop` over epochs, or over the numbers below `items`."""
    return _loop(items, name, "epoch", attrs)


def batches(items: Union[Iterable[T], int], name: str = "batch", **attrs: Any) -> loop[T]:
    """`profiler.loop` over batches. Their loading is not part of their regions."""
    return _loop(items, name, "batch", attrs)


def _loop(items: Any, name: str, kind: str, attrs: dict[str, Any]) -> loop[Any]:
    return loop(range(items) if isinstance(items, int) else items, name, item=kind, kind=kind, **attrs)


def watch(module: M, depth: Optional[int] = 1, tensors: bool = True, profile: bool = True, **attrs: Any) -> M:
    """Mark each call of a module, and of those inside it down to `depth` (None: all).

    `tensors` describes arguments and results, `profile` sends an event with the size
    of the model at the first call. Keywords are attributes of this event.
    """
    if not any(isinstance(hook, _Enter) for hook in module._forward_pre_hooks.values()):
        _add(module, _Enter("parent_forward", "", tensors, depth, attrs if profile else None))
    return module


def _add(module: Any, enter: _Enter) -> None:
    # TorchScript refuses hooks.
    with suppress(RuntimeError):
        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(_leave, with_kwargs=True, always_call=True)


class _Enter:
    """A hook, which is copied and pickled with its module."""

    def __init__(
        self, kind: str, path: str, tensors: bool, depth: Optional[int] = 0, profile: Optional[dict[str, Any]] = None
    ) -> None:
        self.kind = kind
        self.path = path
        self.tensors = tensors
        self.depth = depth
        self.profile = profile

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _channel.active is None or torch.compiler.is_compiling():
            return
        if self.depth != 0:
            # At the first call, when all modules inside this one exist.
            _add_children(module, "", self.depth, self.tensors)
            self.depth = 0
        name = type(module).__name__
        if self.profile is not None:
            attrs, self.profile = self.profile, None
            with suppress(Exception):
                event(name, kind="torch_module", model_profile=model_profile(module), **attrs)
        fields: dict[str, Any] = {"module": self.path} if self.path else {}
        if self.tensors:
            fields["used"] = _inputs(args, kwargs)
        region = Region(name, kind=self.kind, is_training=module.training, **fields)
        region.__enter__()
        _stack().append(_Call(module, region, self.tensors, sys.exc_info()[1]))


def _add_children(module: Any, path: str, depth: Optional[int], tensors: bool) -> None:
    for name, child in module.named_children():
        if not any(isinstance(hook, _Enter) for hook in child._forward_pre_hooks.values()):
            below = f"{path}.{name}" if path else name
            _add(child, _Enter("child_forward", below, tensors))
            if depth != 1:
                _add_children(child, below, None if depth is None else depth - 1, tensors)


class _Call(NamedTuple):
    module: Any
    region: Region
    tensors: bool
    #: The exception that the caller is handling.
    handled: Optional[BaseException]


def _stack() -> list[_Call]:
    """The open calls of this thread."""
    if not hasattr(_open, "calls"):
        _open.calls = []
    calls: list[_Call] = _open.calls
    return calls


def _leave(module: Any, args: Any, kwargs: Any, result: Any) -> None:
    if torch.compiler.is_compiling():
        return
    stack = _stack()
    if not any(call.module is module for call in stack):
        return
    kind, error, trace = sys.exc_info()
    while True:
        # KeyboardInterrupt leaves the modules inside without calling their hooks.
        call = stack.pop()
        if call.module is module and call.tensors and result is not None:
            call.region.generated = {"tensor": describe(result)}
        if error is call.handled:
            call.region.__exit__(None, None, None)
        else:
            call.region.__exit__(kind, error, trace)
        if call.module is module:
            return


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    used = {f"tensor_{number}" if number else "tensor": describe(value) for number, value in enumerate(args)}
    return {**used, **{name: describe(value) for name, value in kwargs.items()}}


@overload
def module(cls: C) -> C: ...


@overload
def module(cls: None = None, *, depth: Optional[int] = 1, tensors: bool = True) -> Callable[[C], C]: ...


def module(cls: Optional[C] = None, *, depth: Optional[int] = 1, tensors: bool = True) -> Union[C, Callable[[C], C]]:
    """Decorator for classes of modules: each object is watched."""

    def decorator(cls: C) -> C:
        return _extend(cls, lambda self, kwargs: watch(self, depth, tensors))

    return decorator if cls is None else decorator(cls)


def _extend(cls: C, then: Callable[[Any, dict[str, Any]], object]) -> C:
    """Call a function after the constructor, with the object and keyword arguments."""
    extended: Any = cls
    original = extended.__init__

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        then(self, kwargs)

    extended.__init__ = initialize
    return cls
