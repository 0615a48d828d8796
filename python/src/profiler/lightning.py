"""Lightning, and its package pytorch_lightning: regions of training, and its metrics as gauges.

    Trainer(callbacks=[profiler.lightning.Regions()])
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from . import _channel
from ._marks import gauge
from ._stages import Stages

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    """The class of the package that the program uses: each refuses the other's."""
    for name in [name for name in _NAMES if name in sys.modules] or _NAMES:
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("neither lightning nor pytorch_lightning is installed")


class Regions(_callback()):  # type: ignore[misc]
    """Regions `fit`, `epoch`, `batch`, `validation` and `test`, which are also their kinds.

    Metrics are gauges after each epoch, validation and test. `batches=False` leaves out batches, which
    is for those of less than 5 ms.
    """

    def __init__(self, batches: bool = True) -> None:
        super().__init__()
        self._batches = batches
        self._stages = Stages()

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self._stages.start("fit", model=type(module).__name__, rank=trainer.global_rank)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self._stages.end("fit")

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._stages.start("epoch", used={"epoch": trainer.current_epoch})

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._metrics(trainer)
        self._stages.end("epoch")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if self._batches:
            self._stages.start("batch", used={"batch": batch_idx})

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._stages.end("batch")

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._stages.start("validation", sanity_check=bool(trainer.sanity_checking))

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn == "validate":
            # In `fit`, the metrics of the epoch contain these.
            self._metrics(trainer)
        self._stages.end("validation")

    def on_test_start(self, trainer: Any, module: Any) -> None:
        self._stages.start("test")

    def on_test_end(self, trainer: Any, module: Any) -> None:
        self._metrics(trainer)
        self._stages.end("test")

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._stages.fail(exception)

    def _metrics(self, trainer: Any) -> None:
        # Values on a GPU are copied from it, which waits for its kernels.
        if _channel.active is not None:
            for name, value in trainer.callback_metrics.items():
                gauge(name, float(value), kind="metric", epoch=trainer.current_epoch)
