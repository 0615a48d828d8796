"""Flowcept's names for PyTorch, which `profiler.flowcept` provides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional, TypeVar, Union

from .flowcept import Flowcept, FlowceptLoop
from .torch import _extend, watch

C = TypeVar("C", bound=type)
T = TypeVar("T")


def flowcept_torch(cls: C) -> C:
    """`profiler.torch.module`, with the arguments of constructors that Flowcept reads."""

    def initialize(module: Any, kwargs: dict[str, Any]) -> None:
        # Programs pass these on to loops.
        module.workflow_id = module.parent_workflow_id = Flowcept.current_workflow_id
        if kwargs.get("capture_enabled", True):
            metadata = kwargs.get("custom_metadata")
            attrs = {"custom_metadata": metadata} if metadata else {}
            watch(module, profile=kwargs.get("get_profile", False), **attrs)

    return _extend(cls, initialize)


class FlowceptEpochLoop(FlowceptLoop[T]):
    """Epochs, with the name `epochs_loop_iteration`."""

    _kind = "epoch"

    def __init__(
        self,
        items: Union[Iterable[T], int],
        model: Any = None,
        parent_task_id: Any = None,
        workflow_id: Any = None,
        capture_enabled: bool = True,
    ) -> None:
        super().__init__(items, "epochs_loop", "epoch", capture_enabled=capture_enabled)


class FlowceptBatchLoop(FlowceptLoop[T]):
    """Batches of captured epochs, with the name `<step>_batch_iteration`."""

    _kind = "batch"

    def __init__(
        self,
        items: Union[Iterable[T], int],
        epochs_loop: Optional[FlowceptEpochLoop[Any]] = None,
        parent_task_id: Any = None,
        workflow_id: Any = None,
        step: str = "train",
        items_length: int = 0,
        capture_enabled: bool = True,
    ) -> None:
        is_captured = capture_enabled and epochs_loop is not None and epochs_loop.enabled
        super().__init__(items, f"{step}_batch", "batch", capture_enabled=is_captured)
