"""The controller's responses to FetchMetadata from the other brokers: the latest deltas, or a whole image.

Each delta of the controller's metadata is encoded once and kept until newer deltas displace it. A broker that is too
far behind, or has the image of another controller's term, gets the whole image. Each fetch of a broker is also a sign
of life, and states which version the broker has applied.
"""

from __future__ import annotations

import asyncio
from collections import deque

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import changes_to_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import Term
from parley.broker.runtime.purgatory import Purgatory
from parley.light_dataclasses import dataclass

DELTAS_KEPT = 1000
BYTES_KEPT = 16 * 1024 * 1024
"""The maximum number of deltas to keep, and of their encoded bytes. Beyond either limit, the oldest deltas are dropped.
A broker that needs them gets a whole image."""


@dataclass(frozen=True, slots=True)
class EncodedDelta:
    """The encoded changes that lead to the image of ``version``."""

    version: int
    changes: bytes


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """The deltas that a broker lacks, or one delta that is a whole image."""

    is_snapshot: bool
    steps: tuple[EncodedDelta, ...]
    earlier_terms: tuple[Term, ...] = ()
    """With a whole image: the earlier controllers' terms that the store still listed when this term started."""


@dataclass(slots=True)
class MetadataProgress:
    """The latest fetch of a broker: its epoch, the time (monotonic seconds), and the image that it has applied."""

    broker_epoch: int
    fetched_s: float
    controller_epoch: int
    version: int


class MetadataPublisher:
    """Keeps the deltas of this broker's term as controller for the other brokers, and records their progress."""

    def __init__(self, metadata: Metadata, waiting: Purgatory) -> None:
        """``waiting`` holds the fetches that wait for a change; this object is their key."""
        self.followers: dict[int, MetadataProgress] = {}
        self._metadata = metadata
        self._waiting = waiting
        self._steps: deque[EncodedDelta] = deque()
        self._bytes = 0
        self._is_open = False
        self._earlier_terms: tuple[Term, ...] = ()
        self._whole: tuple[MetadataImage, EncodedDelta] | None = None
        self._applied = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True during this broker's term as controller."""
        return self._is_open

    def open(self, earlier_terms: tuple[Term, ...]) -> None:
        """Start a term with this controller's image, which no broker has fetched yet.

        ``earlier_terms`` are the terms that the store listed when this term started.
        """
        self._forget()
        self._earlier_terms = earlier_terms
        self._is_open = True

    def close(self) -> None:
        """End the term, and complete the waiting fetches."""
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
        """Keep a change for the other brokers while this broker is the controller (a subscriber of the metadata)."""
        if not self._is_open:
            return
        self._whole = None
        if self.followers:  # otherwise the first fetch of a broker gets the whole image
            self._keep(delta)
        self._applied.set()  # a broker that has not applied it may be fenced now
        self._waiting.notify(self)  # even without followers: a broker that is not registered yet may wait

    def _keep(self, delta: Delta) -> None:
        self._steps.append(EncodedDelta(delta.version, changes_to_bytes(delta.changes)))
        self._bytes += len(self._steps[-1].changes)
        while self._steps and (len(self._steps) > DELTAS_KEPT or self._bytes > BYTES_KEPT):
            self._bytes -= len(self._steps.popleft().changes)

    def note_fetch(self, broker_id: int, progress: MetadataProgress) -> None:
        """Record the latest fetch of a broker."""
        self.followers[broker_id] = progress
        self._applied.set()

    def has_update_since(self, controller_epoch: int, version: int) -> bool:
        """Return True if a broker with this image lacks a change."""
        image = self._metadata.image
        return (controller_epoch, version) != (image.controller_epoch, image.version)

    def update_since(self, controller_epoch: int, version: int) -> MetadataUpdate:
        """Return the update that leads from this image to the newest one."""
        image = self._metadata.image
        behind = image.version - version
        if controller_epoch == image.controller_epoch and 0 <= behind <= len(self._steps):
            return MetadataUpdate(False, tuple(self._steps)[len(self._steps) - behind :])
        if self._whole is None or self._whole[0] is not image:
            whole = image.changes_since(MetadataImage(image.cluster_id))
            self._whole = (image, EncodedDelta(image.version, changes_to_bytes(whole)))
        return MetadataUpdate(True, (self._whole[1],), self._earlier_terms)

    async def until_applied(self, timeout_s: float) -> bool:
        """Wait until every live broker has applied the image that is currently the newest. Returns False on timeout.

        Brokers that have not fetched in this term do not count.
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
        progress, broker = self.followers[broker_id], self._metadata.image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.epoch != progress.broker_epoch:
            return False
        return (progress.controller_epoch, progress.version) < (image.controller_epoch, image.version)
