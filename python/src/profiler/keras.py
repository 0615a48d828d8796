"""Keras 3: regions of training, and its metrics as gauges.

    model.fit(x, y, callbacks=[profiler.keras.Regions()])
"""

from __future__ import annotations

from typing import Any, Optional

from keras.callbacks import Callback

from ._marks import gauge
from ._stages import Stages


class Regions(Callback):  # type: ignore[misc]
    """Regions `fit`, `epoch`, `batch`, `validation` and `predict`, which are also their kinds.

    Metrics are gauges after each epoch and evaluation. `batches=False` leaves out batches, which
    is for those of less than 5 ms. If `fit` fails, its regions end when it is called again.
    """

    def __init__(self, batches: bool = True) -> None:
        super().__init__()
        self._batches = batches
        self._stages = Stages()
        self._epoch: Optional[int] = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._stages.start("fit", model=self.model.name)

    def on_train_end(self, logs: Any = None) -> None:
        self._stages.end("fit")
        self._epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._stages.start("epoch", used={"epoch": epoch})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._metrics(logs)
        self._stages.end("epoch")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._batches:
            self._stages.start("batch", used={"batch": batch})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._stages.end("batch")

    def on_test_begin(self, logs: Any = None) -> None:
        self._stages.start("validation")

    def on_test_end(self, logs: Any = None) -> None:
        if self._epoch is None:
            # In `fit`, the metrics of the epoch contain these.
            self._metrics(logs)
        self._stages.end("validation")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._stages.start("predict", model=self.model.name)

    def on_predict_end(self, logs: Any = None) -> None:
        self._stages.end("predict")

    def _metrics(self, logs: Any) -> None:
        attrs: dict[str, Any] = {} if self._epoch is None else {"epoch": self._epoch}
        for name, value in (logs or {}).items():
            gauge(name, float(value), kind="metric", **attrs)
