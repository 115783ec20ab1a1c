"""Whether a controller is silent for most brokers, and what brokers of an earlier version understand of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from parley.broker.membership.controller_silence import ControllerSilence, is_silent_for_most
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.codec import decode, encode
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import FetchMetadataResponse

CONTROLLER, OWN, OTHER = 1, 2, 3


class Peers:
    """Brokers that say how long they have not heard of the controller of epoch 7; None does not answer."""

    def __init__(self, silent_ms: int | None) -> None:
        self.silent_ms = silent_ms

    async def ask(self, *_: Any, **__: Any) -> FetchMetadataResponse:
        if self.silent_ms is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return FetchMetadataResponse(controller_epoch=7, silent_ms=self.silent_ms)


async def judged(known: tuple[int, ...], silent_ms: int | None, *, fenced: tuple[int, ...] = ()) -> bool:
    brokers = {n: BrokerRegistration(n, 1, UUID(int=n), (), fenced=n in fenced) for n in known}
    image = MetadataImage("c", controller_id=CONTROLLER, brokers=brokers)
    return await is_silent_for_most(Peers(silent_ms), image, OWN, CONTROLLER, 7, 2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("silent_ms", "silent"), [(2000, True), (1999, False), (-1, False), (None, False)])
async def test_most_must_say_so(silent_ms: int | None, silent: bool) -> None:
    assert await judged((CONTROLLER, OWN, OTHER), silent_ms) is silent


async def test_who_was_fenced_counts() -> None:
    """Else a controller that was cut off, and has fenced the others before it was deposed, would be most by itself."""
    assert await judged((CONTROLLER, OWN, OTHER), None, fenced=(CONTROLLER, OTHER)) is False
    assert await judged((CONTROLLER, OWN, OTHER), 2000, fenced=(OTHER,)) is True


async def test_the_one_that_is_judged_is_not_asked_though_the_image_names_another() -> None:
    brokers = {n: BrokerRegistration(n, 1, UUID(int=n), ()) for n in (CONTROLLER, OWN, OTHER)}
    image = MetadataImage("c", controller_id=OTHER, brokers=brokers)
    assert await is_silent_for_most(Peers(2000), image, OWN, CONTROLLER, 7, 2.0)  # type: ignore[arg-type]


def test_an_answer_is_as_old_as_its_question() -> None:
    """It may have lain unread while the process stood still."""
    now_s = 0.0
    silence = ControllerSilence(lambda: now_s)
    silence.asking()
    now_s = 10.0
    silence.answered(news=True)
    assert (silence.lasts_s, silence.untold_s) == (0.0, 10.0)
    silence.asking()
    silence.answered(news=False)
    assert silence.untold_s == 10.0
    silence.asking()
    silence.answered(news=True)
    assert silence.untold_s == 0.0


async def test_who_has_not_joined_has_no_say() -> None:
    """It knows of nobody, so it would be all of them."""
    assert await judged((), None) is False
    assert await judged((CONTROLLER, OTHER), 2000) is False


def test_an_earlier_version_is_answered_in_its_own() -> None:
    answer = FetchMetadataResponse(controller_id=1, controller_epoch=2, silent_ms=3)
    assert decode(FetchMetadataResponse, 0, encode(answer, 0)).silent_ms == -1
    assert len(encode(answer, 1)) == len(encode(answer, 0)) + 8
