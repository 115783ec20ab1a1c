"""How long the controller has been silent for a broker, and whether it is for most of them.

A controller whose process stands still accepts connections (its machine does), and may keep its session with the store
for long: some stores take twice their shortest TTL to end one, and that is 20 s. Brokers cannot tell it from one that
only they do not reach, so none deposes it on its own. They ask each other, and depose it where more than half of all
brokers, itself included, have not heard of it for as long as a session may be silent. All that are registered count,
the fenced too, here as where a controller judges the brokers that it does not hear (``members``). So of two parts that
do not reach each other, but both the store, the smaller one gives way, has fenced nobody, and nothing goes to and fro.

Safe it is anyway: a deposed controller cannot write any more, whether it knows it or not.
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
"""How long another broker may take to say what it has heard."""


class Silence:
    """Since when this broker has heard nothing of the controller that it follows."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since_s = 0.0
        self._asked_s = self._told_s = -math.inf
        self.epoch = NO_EPOCH
        """Of the controller; -1 where none is followed."""
        self.is_in_touch = False
        """Whether the controller told what is new when it was last asked."""

    def begin(self, epoch: int) -> None:
        """A controller of this epoch is followed from now on; -1 for none."""
        self.epoch = epoch
        self.answered(news=False)

    def asking(self) -> None:
        """The controller is about to be asked what is new."""
        self._asked_s = self._monotonic()

    def answered(self, *, news: bool) -> None:
        """The controller has answered: with what is new, or that it does not say."""
        self._since_s = self._monotonic()
        if news:
            self._told_s = self._asked_s
        self.is_in_touch = news

    def unanswered(self) -> None:
        """It was asked, and cannot be heard."""
        self.is_in_touch = False

    @property
    def lasts_s(self) -> float:
        """How long it has lasted, in seconds."""
        return self._monotonic() - self._since_s

    @property
    def untold_s(self) -> float:
        """How old the question is that a controller last answered with what is new, this one or one before it, in
        seconds. An answer says nothing of the time it lay here, unread by a process that stood still."""
        return self._monotonic() - self._told_s


async def is_silent_for_most(
    peers: Peers, image: MetadataImage, own_id: int, controller_id: int, epoch: int, silence_s: float
) -> bool:
    """Whether more than half of the brokers have not heard of the controller for so long. It was for this one.

    A broker that has not joined yet knows nothing of the others, and has no say.

    :param controller_id: the controller's, which the image may not name yet.
    :param epoch: its epoch.
    """
    if own_id not in image.brokers:
        return False
    others = [each for each in image.brokers if each not in (own_id, controller_id)]
    question = FetchMetadataRequest(
        broker_id=own_id, controller_epoch=image.controller_epoch, version=image.version, max_wait_ms=0
    )
    answers = await asyncio.gather(*(_ask(peers, each, question) for each in others))
    agreeing = [
        answer
        for answer in answers
        if answer is not None and answer.controller_epoch == epoch and answer.silent_ms >= silence_s * 1000
    ]
    return 2 * (1 + len(agreeing)) > len(image.brokers)


async def _ask(peers: Peers, broker_id: int, question: FetchMetadataRequest) -> FetchMetadataResponse | None:
    try:
        answer: FetchMetadataResponse = await peers.ask(broker_id, question, purpose="silence", timeout_s=ASK_S)
    except KafkaError:
        return None
    return answer
