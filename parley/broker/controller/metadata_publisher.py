"""The controller's responses to FetchMetadata from the other brokers: the latest deltas, or a whole image.

Each delta of the controller's metadata is encoded once and kept until newer deltas displace it. The first one of a
term leads from the image that this broker had before: most brokers have the same image, so an election costs them
little. A broker that is too far behind gets a whole image, which a thread encodes, and the deltas after it. The
whole image is kept as long as these deltas. Each fetch of a broker is also a sign of life, and states which version the
broker has applied.
"""

from __future__ import annotations

import asyncio
from collections import deque

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import changes_to_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import Term, contains
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
    """The deltas that a broker lacks. With ``is_whole``, the first of ``steps`` contains a whole image."""

    is_whole: bool
    steps: tuple[EncodedDelta, ...]
    earlier_terms: tuple[Term, ...] = ()
    """The earlier controllers' terms that the store listed when this term started. Empty if the broker's image is of
    this term."""


@dataclass(frozen=True, slots=True)
class TermStart:
    """The step from this broker's last image of an earlier term to the first image of its own term."""

    before: Term
    delta: Delta


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
        self.progress_of: dict[int, MetadataProgress] = {}
        self._metadata = metadata
        self._waiting = waiting
        self._steps: deque[EncodedDelta] = deque()
        self._bytes = 0
        self._is_open = False
        self._earlier_terms: tuple[Term, ...] = ()
        self._start: tuple[Term, EncodedDelta] | None = None
        self._whole: EncodedDelta | None = None
        self._encoding = asyncio.Lock()
        self._keeps_deltas = False
        self._applied = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True during this broker's term as controller."""
        return self._is_open

    def open(self, earlier_terms: tuple[Term, ...], start: TermStart | None = None) -> None:
        """Start a term with this controller's image, which no broker has fetched yet.

        ``earlier_terms`` are the terms that the store listed when this term started. Every broker gets a whole image if
        there is no ``start``, or if these terms do not contain the image from which ``start`` leads.
        """
        self._forget()
        self._earlier_terms = earlier_terms
        if start is not None and contains(earlier_terms, start.before):
            changes = changes_to_bytes(start.delta.changes)
            self._start = (start.before, EncodedDelta(start.delta.version, changes))
            self._keeps_deltas = True
        self._is_open = True

    def close(self) -> None:
        """End the term, and complete the waiting fetches."""
        self._forget()
        self._is_open = False
        self._waiting.notify(self)

    def _forget(self) -> None:
        self._steps.clear()
        self._bytes = 0
        self._start = self._whole = None
        self._keeps_deltas = False
        self.progress_of.clear()
        self._applied.set()

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Keep a change for the other brokers while this broker is the controller, and complete the waiting fetches.

        This broker's metadata calls this for every change.
        """
        if not self._is_open:
            return
        if self._keeps_deltas:
            self._keep(delta)
        if self._start is not None and not self._is_kept_since(self._start[1].version):
            self._start = None
        if self._whole is not None and not self._is_kept_since(self._whole.version):
            self._whole = None
        self._applied.set()  # a broker that has not applied it may be fenced now
        self._waiting.notify(self)  # even without followers: a broker that is not registered yet may wait

    def _keep(self, delta: Delta) -> None:
        self._steps.append(EncodedDelta(delta.version, changes_to_bytes(delta.changes)))
        self._bytes += len(self._steps[-1].changes)
        while self._steps and (len(self._steps) > DELTAS_KEPT or self._bytes > BYTES_KEPT):
            self._bytes -= len(self._steps.popleft().changes)

    def _is_kept_since(self, version: int) -> bool:
        """Return True if the kept deltas lead from this version of this term to the newest image."""
        return 0 <= self._metadata.image.version - version <= len(self._steps)

    def _kept_since(self, version: int) -> tuple[EncodedDelta, ...]:
        """Return the deltas from this version of this term to the newest image. All of them must be kept."""
        return tuple(self._steps)[len(self._steps) - (self._metadata.image.version - version) :]

    def keep_deltas(self) -> None:
        """Keep the deltas from now on, because a broker fetches them."""
        self._keeps_deltas = True

    def note_fetch(self, broker_id: int, progress: MetadataProgress) -> None:
        """Record the latest fetch of a broker."""
        self.progress_of[broker_id] = progress
        self._applied.set()

    def has_update_since(self, controller_epoch: int, version: int) -> bool:
        """Return True if a broker whose image has this controller epoch and version lacks a change."""
        image = self._metadata.image
        return (controller_epoch, version) != (image.controller_epoch, image.version)

    def needs_whole(self, controller_epoch: int, version: int) -> bool:
        """Return True if a broker whose image has this controller epoch and version needs a whole image. In that case,
        call ``encode_whole`` before ``update_since``."""
        return not self._is_of_start(controller_epoch, version) and not self._is_kept(controller_epoch, version)

    def _is_kept(self, controller_epoch: int, version: int) -> bool:
        return controller_epoch == self._metadata.image.controller_epoch and self._is_kept_since(version)

    def _is_of_start(self, controller_epoch: int, version: int) -> bool:
        if self._start is None:
            return False
        before = self._start[0]
        return (controller_epoch, version) == (before.epoch, before.version)

    async def encode_whole(self) -> None:
        """Encode the newest image in a thread, unless an encoded image and all deltas after it are kept."""
        async with self._encoding:
            if self._whole is not None or not self._is_open:
                return
            image = self._metadata.image
            encoded = await asyncio.get_running_loop().run_in_executor(None, _encode_whole, image)
            if self._is_open and self._is_kept(image.controller_epoch, image.version):
                self._whole = encoded

    def update_since(self, controller_epoch: int, version: int) -> MetadataUpdate:
        """Return the update that leads from the image with this controller epoch and version to the newest image.

        The update is empty if the broker needs a whole image and none is encoded, because ``encode_whole`` has not been
        called. The broker then fetches again.
        """
        if self._is_kept(controller_epoch, version):
            return MetadataUpdate(False, self._kept_since(version))
        if self._start is not None and self._is_of_start(controller_epoch, version):
            return MetadataUpdate(False, (self._start[1], *self._steps), self._earlier_terms)
        if self._whole is None:
            return MetadataUpdate(False, ())
        return MetadataUpdate(True, (self._whole, *self._kept_since(self._whole.version)), self._earlier_terms)

    async def until_applied(self, timeout_s: float) -> bool:
        """Wait until every live broker has applied the image that is currently the newest. Returns False on timeout.

        Brokers that have not fetched in this term do not count. Also returns True when the term ends.
        """
        image = self._metadata.image
        try:
            async with asyncio.timeout(timeout_s):
                while self._is_open and any(self._lacks(broker_id, image) for broker_id in self.progress_of):
                    self._applied.clear()
                    await self._applied.wait()
        except TimeoutError:
            return False
        return True

    def _lacks(self, broker_id: int, image: MetadataImage) -> bool:
        progress, broker = self.progress_of[broker_id], self._metadata.image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.epoch != progress.broker_epoch:
            return False
        return (progress.controller_epoch, progress.version) < (image.controller_epoch, image.version)


def _encode_whole(image: MetadataImage) -> EncodedDelta:
    changes = image.changes_since(MetadataImage(image.cluster_id))
    return EncodedDelta(image.version, changes_to_bytes(changes))
