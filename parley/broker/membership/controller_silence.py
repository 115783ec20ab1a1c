"""Measures how long the controller has been silent, and decides whether it is silent for most brokers.

A single broker cannot distinguish a controller whose process has stalled from a controller that only this broker cannot
reach. So no broker deposes a controller alone. The brokers ask each other, and depose the controller if more than half
of all registered brokers (including fenced brokers and the controller itself) have not heard from it for the TTL of a
session. Deposing is always safe, because a deposed controller cannot write. docs/architecture.md ("Fencing silent
brokers") gives the reasons.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from parley.broker.metadata.image import MetadataImage
from parley.broker.network.peers import Peers
from parley.protocol.errors import KafkaError
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest, FetchMetadataResponse
from parley.protocol.sentinels import NO_EPOCH

ASK_S = 1.0
"""How long another broker may take to respond, in seconds."""


class ControllerSilence:
    """Measures how long this broker has not heard from the controller that it follows."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since_s = 0.0
        self._requested_s = self._metadata_s = -math.inf
        self.epoch = NO_EPOCH
        """The controller's epoch; ``NO_EPOCH`` if this broker follows no controller."""
        self.is_in_touch = False
        """True if the controller responded with metadata to the latest request."""

    def begin(self, epoch: int) -> None:
        """Start measuring the controller with this epoch; ``NO_EPOCH`` means that there is none."""
        self.epoch = epoch
        self.responded(with_metadata=False)

    def request_sent(self) -> None:
        """Record that a metadata request is about to be sent to the controller."""
        self._requested_s = self._monotonic()

    def responded(self, *, with_metadata: bool) -> None:
        """Record that the controller has responded, either with metadata or with an error."""
        self._since_s = self._monotonic()
        if with_metadata:
            self._metadata_s = self._requested_s
        self.is_in_touch = with_metadata

    def did_not_respond(self) -> None:
        """Record that the controller did not respond."""
        self.is_in_touch = False

    @property
    def duration_s(self) -> float:
        """Seconds since the controller last responded, or since ``begin`` if it has not responded yet."""
        return self._monotonic() - self._since_s

    @property
    def metadata_age_s(self) -> float:
        """Seconds since this broker sent the latest request to which the current controller, or an earlier one, has
        responded with metadata.

        The time of the request counts, not the time of the response: a response may have waited unread while this
        process was stalled.
        """
        return self._monotonic() - self._metadata_s


async def is_silent_for_most(
    peers: Peers, image: MetadataImage, own_id: int, controller_id: int, epoch: int, silence_s: float
) -> bool:
    """Return True if more than half of the brokers, including this one, have not heard from the controller for
    ``silence_s``.

    ``controller_id`` and ``epoch`` identify the controller, which the image may not name yet. Returns False if this
    broker has not joined yet, because it does not know the other brokers.
    """
    if own_id not in image.brokers:
        return False
    others = [each for each in image.brokers if each not in (own_id, controller_id)]
    request = FetchMetadataRequest(
        broker_id=own_id, controller_epoch=image.controller_epoch, version=image.version, max_wait_ms=0
    )
    responses = await asyncio.gather(*(_ask(peers, each, request) for each in others))
    agreeing = [
        each
        for each in responses
        if each is not None and each.controller_epoch == epoch and each.silent_ms >= silence_s * 1000
    ]
    return 2 * (1 + len(agreeing)) > len(image.brokers)


async def _ask(peers: Peers, broker_id: int, request: FetchMetadataRequest) -> FetchMetadataResponse | None:
    try:
        response: FetchMetadataResponse = await peers.ask(broker_id, request, purpose="silence", timeout_s=ASK_S)
    except KafkaError:
        return None
    return response
