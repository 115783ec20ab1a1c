"""Keeps Python's garbage collector from repeatedly scanning the objects of thousands of partitions.

A full collection scans every object. With 50,000 partitions it stops the event loop for a tenth of a second, and it
finds nothing, because a partition's objects live until the partition is deleted, and are then freed immediately.
Therefore, when many partitions have been created or have changed, all existing objects become permanent
(``gc.freeze``): they are still freed when nothing refers to them, but no collection scans them.

The cost: a cycle of objects that exists at that moment and becomes garbage later stays in memory. There are few
such moments, and few such objects: young garbage is collected first.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.image import MetadataImage

PARTITIONS_MIN: Final = 2000
"""The number of created or changed partitions after which objects become permanent. With fewer partitions, the garbage
collector is left alone: a full collection takes a few milliseconds."""
PAUSE_S: Final = 0.2
"""How long, in seconds, to wait until the objects of the partitions have been created."""
_YOUNG: Final = 1


class LongLivedObjects:
    """Makes the objects of this process permanent whenever many partitions have been created or have changed."""

    def __init__(self, *, owns_process: bool) -> None:
        """If ``owns_process``, the process ends with the broker, so the objects stay permanent."""
        self._owns_process = owns_process
        self._partitions = 0  # changed since the last freeze
        self._timer: asyncio.TimerHandle | None = None
        self._has_frozen = False

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Count the partitions that ``delta`` changes. Once there are ``PARTITIONS_MIN``, all objects become permanent
        after ``PAUSE_S``. Subscribe this to the metadata."""
        self._partitions += delta.partitions
        if self._partitions >= PARTITIONS_MIN and self._timer is None and gc.isenabled():
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._freeze)

    def _freeze(self) -> None:
        self._timer = None
        self._partitions = 0
        self._has_frozen = True
        gc.collect(_YOUNG)
        gc.freeze()

    def close(self) -> None:
        """If the process continues after the broker, let the garbage collector free the broker's objects."""
        if self._timer is not None:
            self._timer.cancel()
        if self._has_frozen and not self._owns_process:
            gc.unfreeze()
