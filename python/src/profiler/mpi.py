"""mpi4py: rank, size and host of a process. Never initializes MPI.

    profiler.mpi.mark_rank()
    with profiler.region("solve", **profiler.mpi.attributes()): ...
"""

from __future__ import annotations

import sys
from typing import Any, Optional

from . import _channel
from ._marks import event


def attributes(communicator: Optional[Any] = None) -> dict[str, Any]:
    """`rank`, `size` and `host` in a communicator, by default the world.

    Empty while MPI is not initialized, and without a profiler.
    """
    # Importing it would initialize MPI.
    mpi = sys.modules.get("mpi4py.MPI")
    if _channel.active is None or mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return {}
    communicator = communicator or mpi.COMM_WORLD
    return {"rank": communicator.Get_rank(), "size": communicator.Get_size(), "host": mpi.Get_processor_name()}


def mark_rank(communicator: Optional[Any] = None) -> None:
    """Mark an event `MPI_rank` with these attributes."""
    found = attributes(communicator)
    if found:
        event("MPI_rank", kind="mpi", **found)
