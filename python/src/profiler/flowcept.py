"""Flowcept's names for regions: `from profiler.flowcept import Flowcept, flowcept_task`.

Arguments that concern Flowcept's own services are accepted and have no effect.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Callable, Generic, Optional, TypeVar, Union

from . import _channel
from ._marks import Region, loop
from ._task import task

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

__all__ = ["Flowcept", "FlowceptLightweightLoop", "FlowceptLoop", "FlowceptTask", "flowcept", "flowcept_task"]
__all__ += ["lightweight_flowcept_task", "telemetry_flowcept_task"]


def __getattr__(name: str) -> Any:
    if name in ("flowcept_torch", "FlowceptBatchLoop", "FlowceptEpochLoop"):
        # They import torch.
        from . import _flowcept_torch

        return getattr(_flowcept_torch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def flowcept_task(
    func: Optional[Callable[..., Any]] = None,
    *,
    output_names: Union[str, list[str], tuple[str, ...], None] = None,
    tags: Optional[list[str]] = None,
    subtype: Optional[str] = None,
    custom_metadata: Optional[dict[str, Any]] = None,
    capture_telemetry: bool = True,
    **ignored: Any,
) -> Any:
    """`profiler.task`, with `subtype` as kind and `custom_metadata` as attributes."""
    attrs = _attributes(custom_metadata)
    decorator = task(kind=subtype, tags=tags, output_names=output_names, **attrs)
    return decorator if func is None else decorator(func)


def _attributes(custom_metadata: Optional[dict[str, Any]]) -> dict[str, Any]:
    return {"custom_metadata": custom_metadata} if custom_metadata else {}


lightweight_flowcept_task = flowcept_task
telemetry_flowcept_task = flowcept_task


class Flowcept:
    """A workflow: a region, and a run if this process is not profiled yet.

    `start_run=False` does not start one.
    """

    #: As in Flowcept: the workflow that runs, or has run last.
    current_workflow_id: Optional[str] = None
    #: Directory of the run that this object has started.
    path: Optional[str] = None

    def __init__(
        self,
        *args: Any,
        workflow_name: Optional[str] = None,
        workflow_id: Optional[str] = None,
        campaign_id: Optional[str] = None,
        workflow_subtype: Optional[str] = None,
        workflow_args: Optional[dict[str, Any]] = None,
        start_run: bool = True,
        **ignored: Any,
    ) -> None:
        self.workflow_name = workflow_name or "workflow"
        self.workflow_id = workflow_id
        self._labels = {"workflow_name": self.workflow_name}
        if campaign_id:
            self._labels["campaign"] = campaign_id
        self._region = Region(
            self.workflow_name, kind=workflow_subtype or "workflow", group=campaign_id, used=workflow_args
        )
        self._start_run = start_run
        self._session: Any = None

    def start(self) -> Flowcept:
        if self._start_run and not _channel.is_active():
            from ._session import run

            self._session = run(label=self._labels).start()
            self.path = self._session.path
        Flowcept.current_workflow_id = self.workflow_id or self._name_of_run()
        self._region.__enter__()
        return self

    def _name_of_run(self) -> str:
        return self._session.path.rpartition("/")[2] if self._session else self.workflow_name

    def stop(self) -> None:
        self.__exit__(None, None, None)

    def __enter__(self) -> Flowcept:
        return self.start()

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._region.__exit__(kind, error, trace)
        if self._session is not None:
            self._session.__exit__(kind, error, trace)
            self._session = None


def flowcept(func: F) -> F:
    """The function is a workflow."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with Flowcept(workflow_name=func.__name__):
            return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


class FlowceptTask:
    """A task as a context manager; `end()` has its outputs."""

    def __init__(
        self,
        activity_id: Optional[str] = None,
        used: Optional[dict[str, Any]] = None,
        generated: Optional[dict[str, Any]] = None,
        subtype: Optional[str] = None,
        tags: Optional[list[str]] = None,
        custom_metadata: Optional[dict[str, Any]] = None,
        **ignored: Any,
    ) -> None:
        if activity_id is None:
            frame = inspect.currentframe()
            activity_id = frame.f_back.f_code.co_name if frame and frame.f_back else "task"
        attrs = _attributes(custom_metadata)
        self._region = Region(activity_id, kind=subtype, tags=tags, used=used, **attrs)
        self._generated = generated
        # Flowcept's tasks run from their construction.
        self._region.__enter__()
        self._open = True

    def __enter__(self) -> FlowceptTask:
        return self

    def end(self, generated: Optional[dict[str, Any]] = None, status: Any = None, **ignored: Any) -> None:
        if self._open:
            self._region.status = str(getattr(status, "value", status)).lower() if status else None
            self._finish(None, None, None, generated)

    def _finish(self, kind: Any, error: Any, trace: Any, generated: Any) -> None:
        self._open = False
        self._region.generated = generated if generated is not None else self._generated
        self._region.__exit__(kind, error, trace)

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._open:
            self._finish(kind, error, trace, None)


class FlowceptLoop(Generic[T]):
    """`profiler.loop` with Flowcept's arguments. The regions are called `<loop_name>_iteration`."""

    _kind: Optional[str] = None

    def __init__(
        self,
        items: Union[Iterable[T], int],
        loop_name: str = "loop",
        item_name: str = "item",
        parent_task_id: Any = None,
        workflow_id: Any = None,
        items_length: int = 0,
        capture_enabled: bool = True,
    ) -> None:
        iterable: Any = range(items) if isinstance(items, int) else items
        self._items: Iterable[T] = iterable
        self._loop: loop[T] = loop(iterable, f"{loop_name}_iteration", item=item_name, kind=self._kind)
        self.enabled = capture_enabled

    def __iter__(self) -> Iterator[T]:
        return iter(self._loop if self.enabled else self._items)

    def __len__(self) -> int:
        return len(self._loop)

    def end_iter(self, generated: dict[str, Any]) -> None:
        """Outputs of the current iteration."""
        self._loop.update(generated)


FlowceptLightweightLoop = FlowceptLoop
