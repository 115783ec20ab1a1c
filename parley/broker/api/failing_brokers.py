"""Metadata responses while a broker fails. The reasons are in docs/architecture.md, "Metadata while a broker fails".

1. If a broker has just closed its connection to this broker, Metadata requests wait until the controller has decided on
   its partitions, for at most ``HOLD_S``.
2. A fenced broker stays in the response for ``LISTED_S``.
3. While this broker has no contact with the controller, the error for an unknown topic is LEADER_NOT_AVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.broker.metadata.changes import BrokerRegistered, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.errors import ErrorCode

HOLD_S = 0.5
"""The maximum time, in seconds, that requests wait for the controller's decision after a lost connection."""
LISTED_S = 5.0
"""How long, in seconds, a fenced broker stays in responses. By then, its clients have refreshed their metadata."""


class FailingBrokers:
    """The brokers that have just failed or may have failed, and their effect on Metadata responses."""

    def __init__(
        self, metadata: Metadata, lost_at: Callable[[int], float | None], is_in_touch: Callable[[], bool]
    ) -> None:
        """``lost_at(broker_id)`` returns the loop time at which a connection to that broker was lost, or None.

        ``is_in_touch()`` returns True if this broker is the controller, or receives the changes to the metadata.
        """
        self._metadata = metadata
        self._is_in_touch = is_in_touch
        self._lost_at = lost_at
        self._fenced_at: dict[int, float] = {}

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Record the times when brokers are fenced. ``Metadata`` calls this for each change."""
        for change in delta.changes:
            if isinstance(change, BrokerRegistered):
                if change.registration.fenced:
                    self._fenced_at.setdefault(change.registration.broker_id, asyncio.get_running_loop().time())
                else:
                    self._fenced_at.pop(change.registration.broker_id, None)

    @property
    def absent(self) -> ErrorCode:
        """The error for a topic that is not in the metadata: UNKNOWN_TOPIC_OR_PARTITION or, while this broker has no
        contact with the controller, LEADER_NOT_AVAILABLE, which clients retry."""
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self._is_in_touch() else ErrorCode.LEADER_NOT_AVAILABLE

    def listed(self, image: MetadataImage) -> list[BrokerRegistration]:
        """Return the brokers to list in a response, sorted by id: live brokers, and brokers that were fenced within the
        last ``LISTED_S`` seconds."""
        if self._fenced_at:
            since = asyncio.get_running_loop().time() - LISTED_S
            self._fenced_at = {broker: at for broker, at in self._fenced_at.items() if at >= since}
        return [
            broker
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced or broker_id in self._fenced_at
        ]

    @property
    def may_be_unsettled(self) -> bool:
        """True if the metadata contains other brokers, even fenced brokers. ``settled`` must then be awaited."""
        return len(self._metadata.image.brokers) > 1

    async def settled(self) -> None:
        """Wait until the controller has decided on the partitions of brokers that have just failed, for at most
        ``HOLD_S``."""
        # One iteration lets the event loop notice connections that ended together with the client's.
        await asyncio.sleep(0)
        since = asyncio.get_running_loop().time() - HOLD_S
        suspects = [
            broker
            for broker in self._metadata.image.live_brokers()
            if (lost_at := self._lost_at(broker.broker_id)) is not None and lost_at > since
        ]
        if suspects:
            await self._metadata.until(lambda image: not any(_is_still_live(image, each) for each in suspects), HOLD_S)


def _is_still_live(image: MetadataImage, broker: BrokerRegistration) -> bool:
    """Return True if the broker still counts as alive under the same registration."""
    known = image.brokers.get(broker.broker_id)
    return known is not None and not known.fenced and known.epoch == broker.epoch
