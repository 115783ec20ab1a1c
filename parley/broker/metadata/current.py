"""The broker's current view of the cluster, and who wants to hear of its changes.

Request handlers read ``metadata.image`` (one attribute; an image never changes under them). The rooms that must act on
a change (partitions, groups, configuration) subscribe: they are called in the order of subscription, synchronously,
after ``image`` has moved on. One that fails is told of in the log, and keeps neither the others from hearing of the
change nor the controller from its office.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.image import MetadataImage

Subscriber = Callable[[Delta, MetadataImage], None]

_log = logging.getLogger(__name__)


class Metadata:
    """Holds the newest image a broker has applied."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(delta, image)`` after every change from now on. It must neither block nor raise."""
        self._subscribers.append(subscriber)

    async def until(self, holds: Callable[[MetadataImage], bool], timeout_s: float | None) -> bool:
        """Wait until ``holds(image)``; False where it does not in time (None: however long it takes)."""
        changed = asyncio.Event()

        def note(delta: Delta, image: MetadataImage) -> None:
            changed.set()

        self._subscribers.append(note)
        try:
            async with asyncio.timeout(timeout_s):
                while not holds(self.image):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            self._subscribers.remove(note)
        return True

    def apply(self, delta: Delta) -> None:
        """Move on to the image after ``delta`` and tell the subscribers."""
        self.replace(self.image.apply(delta), delta)

    def replace(self, image: MetadataImage, delta: Delta) -> None:
        """Take over a whole image (the first one, or a snapshot after a gap) whose difference is ``delta``."""
        self.image = image
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(delta, image)
            except Exception:
                _log.exception("a change of the metadata was not taken over")
