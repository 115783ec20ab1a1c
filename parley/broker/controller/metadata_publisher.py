"""What the controller has to tell the other brokers: the latest deltas, and who has heard how far.

The controller's own :class:`~parley.broker.metadata.current.Metadata` is the source. Each delta is kept, encoded
once, until
newer ones push it out; who is further behind than what is kept, or comes from another controller's term, gets the whole
image. Every question is a sign of life of the broker that asks, and says which version it has applied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import changes_to_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.runtime.purgatory import Purgatory

DELTAS_KEPT = 1000
BYTES_KEPT = 16 * 1024 * 1024
"""Of encoded deltas: beyond either bound the oldest go, and who still needs them takes a whole image."""


@dataclass(frozen=True, slots=True)
class EncodedDelta:
    """The encoded changes that lead to the image of ``version``."""

    version: int
    changes: bytes


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """The answer to a question: steps on from what the asker has, or one step that is a whole image."""

    is_snapshot: bool
    steps: tuple[EncodedDelta, ...]


@dataclass(slots=True)
class FollowerProgress:
    """A broker that asks: when it did (monotonic seconds), under which epoch, what it has applied by then."""

    broker_epoch: int
    fetched_s: float
    controller_epoch: int
    version: int


class MetadataPublisher:
    """The deltas of the term this broker is controller in; empty elsewhere."""

    def __init__(self, metadata: Metadata, waiting: Purgatory) -> None:
        """``waiting`` holds the questions that wait for a change, keyed by this object."""
        self.followers: dict[int, FollowerProgress] = {}
        self._metadata = metadata
        self._waiting = waiting
        self._steps: deque[EncodedDelta] = deque()
        self._bytes = 0
        self._is_open = False
        self._whole: tuple[MetadataImage, EncodedDelta] | None = None
        self._applied = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether this broker publishes: from the beginning of its term as controller to the end."""
        return self._is_open

    def open(self) -> None:
        """A term begins: the image is that of this controller. Nobody has heard of it yet."""
        self._forget()
        self._is_open = True

    def close(self) -> None:
        """The term is over: those who wait are told."""
        self._forget()
        self._is_open = False
        self._waiting.notify(self)

    def _forget(self) -> None:
        self._steps.clear()
        self._bytes = 0
        self._whole = None
        self.followers.clear()
        self._applied.set()

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Keep a change for the other brokers while this one is the controller (a subscriber of the metadata)."""
        if not self._is_open:
            return
        self._whole = None
        self._steps.append(EncodedDelta(delta.version, changes_to_bytes(delta.changes)))
        self._bytes += len(self._steps[-1].changes)
        while self._steps and (len(self._steps) > DELTAS_KEPT or self._bytes > BYTES_KEPT):
            self._bytes -= len(self._steps.popleft().changes)
        self._applied.set()  # who was waited for may be fenced now
        self._waiting.notify(self)

    def note_fetch(self, broker_id: int, hearer: FollowerProgress) -> None:
        """A broker has asked."""
        self.followers[broker_id] = hearer
        self._applied.set()

    def has_update_since(self, controller_epoch: int, version: int) -> bool:
        """Whether there is something to tell one who has this image."""
        image = self._metadata.image
        return (controller_epoch, version) != (image.controller_epoch, image.version)

    def update_since(self, controller_epoch: int, version: int) -> MetadataUpdate:
        """What leads from that image to the newest."""
        image = self._metadata.image
        behind = image.version - version
        if controller_epoch == image.controller_epoch and 0 <= behind <= len(self._steps):
            return MetadataUpdate(False, tuple(self._steps)[len(self._steps) - behind :])
        if self._whole is None or self._whole[0] is not image:
            whole = image.changes_since(MetadataImage(image.cluster_id))
            self._whole = (image, EncodedDelta(image.version, changes_to_bytes(whole)))
        return MetadataUpdate(True, (self._whole[1],))

    async def until_applied(self, timeout_s: float) -> bool:
        """Wait until every living broker that asks has applied what is the newest image now; False: not in time.

        Who has never asked in this term is not waited for.
        """
        image = self._metadata.image
        try:
            async with asyncio.timeout(timeout_s):
                while self._is_open and any(self._lacks(broker_id, image) for broker_id in self.followers):
                    self._applied.clear()
                    await self._applied.wait()
        except TimeoutError:
            return False
        return True

    def _lacks(self, broker_id: int, image: MetadataImage) -> bool:
        hearer, broker = self.followers[broker_id], self._metadata.image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.epoch != hearer.broker_epoch:
            return False
        return (hearer.controller_epoch, hearer.version) < (image.controller_epoch, image.version)
