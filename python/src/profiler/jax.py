"""JAX: peak memory of devices."""

from __future__ import annotations

from typing import Any

import jax

from . import _channel
from ._marks import gauge


def peak_memory(**attrs: Any) -> None:
    """Report gauge `jax_peak_bytes` of each local device: the maximum since the program started.

    Devices whose allocator has no statistics, such as the CPU, are left out.
    """
    if _channel.active is None:
        return
    for device in jax.local_devices():
        peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
        if peak is not None:
            gauge("jax_peak_bytes", peak, "bytes", kind="jax", device=f"{device.platform}:{device.id}", **attrs)
