"""What clients are told while a broker goes down: as little as possible that they would have to ask again.

A client that loses the leader of a partition asks another broker at once where to go on. An answer that still names the
lost leader costs it dear: it comes back after a time of its own, librdkafka after a second.

1. While a broker has just cut its connection to this one, nobody knows yet what becomes of its partitions; questions
   wait until the controller has decided, but not for longer than :data:`HOLD_S`.
2. A broker that was fenced is still listed for :data:`LISTED_S`. librdkafka forgets a broker that is not in an answer
   and, with it, the new leaders that the same answer names for the partitions it led.
3. As long as this broker is out of touch with the controller it may not have heard of a topic that was just made. That
   a topic does not exist makes a client give up at once (librdkafka drops what it has for it), so that is not said: the
   topic's leader is not known, and the client asks again.
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
"""How long after a lost connection the controller is waited for."""
LISTED_S = 5.0
"""How long a fenced broker is listed: a client has asked by then."""


class Outages:
    """Brokers that have just gone, or may have."""

    def __init__(
        self, metadata: Metadata, lost_at: Callable[[int], float | None], is_in_touch: Callable[[], bool]
    ) -> None:
        """``lost_at`` says when this broker lost its connection to another, in the loop's time; None if it has not.

        ``is_in_touch`` says whether it hears what changes, from the controller or as that.
        """
        self._metadata = metadata
        self._is_in_touch = is_in_touch
        self._lost_at = lost_at
        self._fenced_at: dict[int, float] = {}

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        for change in delta.changes:
            if isinstance(change, BrokerRegistered):
                if change.registration.fenced:
                    self._fenced_at.setdefault(change.registration.broker_id, asyncio.get_running_loop().time())
                else:
                    self._fenced_at.pop(change.registration.broker_id, None)

    @property
    def absent(self) -> ErrorCode:
        """What to say of a topic that is not in the metadata."""
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self._is_in_touch() else ErrorCode.LEADER_NOT_AVAILABLE

    def listed(self, image: MetadataImage) -> list[BrokerRegistration]:
        """The brokers to tell clients of, by id: those alive, and those that were a moment ago."""
        if self._fenced_at:
            since = asyncio.get_running_loop().time() - LISTED_S
            self._fenced_at = {broker: at for broker, at in self._fenced_at.items() if at >= since}
        return [
            broker
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced or broker_id in self._fenced_at
        ]

    async def settled(self) -> None:
        """Wait until it is decided what becomes of the partitions of brokers that have just gone."""
        await asyncio.sleep(0)  # connections that ended together with the client's are noticed in the same round
        since = asyncio.get_running_loop().time() - HOLD_S
        suspects = [
            broker
            for broker in self._metadata.image.live_brokers()
            if (lost_at := self._lost_at(broker.broker_id)) is not None and lost_at > since
        ]
        if suspects:
            await self._metadata.until(lambda image: not any(_stands(image, each) for each in suspects), HOLD_S)


def _stands(image: MetadataImage, broker: BrokerRegistration) -> bool:
    """Whether the broker counts as alive under the registration that it was lost under."""
    known = image.brokers.get(broker.broker_id)
    return known is not None and not known.fenced and known.epoch == broker.epoch
