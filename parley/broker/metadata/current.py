"""The broker's current metadata image, and the components that follow its changes.

Request handlers read the attribute ``metadata.image``; an image never changes while they use it. Components that must
act on changes (partitions, groups, configuration) subscribe. They are called in the order of subscription,
synchronously, after ``image`` has been replaced. If a subscriber fails, the failure is logged, the other subscribers
are still called, and the controller keeps its role.
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
    """Holds the newest image that this broker has applied."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(delta, image)`` after every subsequent change. The subscriber must neither
        block nor raise."""
        self._subscribers.append(subscriber)

    async def until(self, holds: Callable[[MetadataImage], bool], timeout_s: float | None) -> bool:
        """Wait until ``holds(image)`` is true. Returns False on timeout; a ``timeout_s`` of None waits indefinitely."""
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
        """Replace the image with the result of applying ``delta``, and call the subscribers. Raises KeyError or
        IndexError if ``delta`` does not fit the image."""
        self.replace(self.image.apply(delta), delta)

    def replace(self, image: MetadataImage, delta: Delta) -> None:
        """Replace the image with another one, and call the subscribers with ``delta``, the difference between the
        two."""
        self.image = image
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(delta, image)
            except Exception:
                _log.exception("a subscriber failed to apply a metadata change")
