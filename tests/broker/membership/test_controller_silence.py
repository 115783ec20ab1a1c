"""Whether a controller is silent for most brokers, and the response to a broker of an older version."""

from __future__ import annotations

from typing import Any

import pytest

from parley.broker.membership.controller_silence import ControllerSilence, is_silent_for_most
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.codec import decode, encode
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import FetchMetadataResponse
from parley.protocol.uuids import UUID

CONTROLLER, OWN, OTHER = 1, 2, 3


class Peers:
    """Brokers that report how long they have not heard from the controller of epoch 7; None: they do not respond."""

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
async def test_more_than_half_must_not_have_heard_from_it(silent_ms: int | None, silent: bool) -> None:
    assert await judged((CONTROLLER, OWN, OTHER), silent_ms) is silent


async def test_fenced_brokers_count() -> None:
    """Otherwise a controller that was cut off, and has fenced all others, would be more than half by itself."""
    assert await judged((CONTROLLER, OWN, OTHER), None, fenced=(CONTROLLER, OTHER)) is False
    assert await judged((CONTROLLER, OWN, OTHER), 2000, fenced=(OTHER,)) is True


async def test_the_judged_controller_is_not_asked_even_if_the_image_names_another_one() -> None:
    brokers = {n: BrokerRegistration(n, 1, UUID(int=n), ()) for n in (CONTROLLER, OWN, OTHER)}
    image = MetadataImage("c", controller_id=OTHER, brokers=brokers)
    assert await is_silent_for_most(Peers(2000), image, OWN, CONTROLLER, 7, 2.0)  # type: ignore[arg-type]


def test_a_response_is_as_old_as_its_request() -> None:
    """The response may have lain unread while the process stood still."""
    now_s = 0.0
    silence = ControllerSilence(lambda: now_s)
    silence.request_sent()
    now_s = 10.0
    silence.responded(with_metadata=True)
    assert (silence.duration_s, silence.metadata_age_s) == (0.0, 10.0)
    silence.request_sent()
    silence.responded(with_metadata=False)
    assert silence.metadata_age_s == 10.0
    silence.request_sent()
    silence.responded(with_metadata=True)
    assert silence.metadata_age_s == 0.0


async def test_a_broker_that_has_not_joined_deposes_no_controller() -> None:
    """It knows no other broker, so it would be all of them."""
    assert await judged((), None) is False
    assert await judged((CONTROLLER, OTHER), 2000) is False


def test_a_request_of_an_earlier_version_gets_a_response_of_that_version() -> None:
    answer = FetchMetadataResponse(controller_id=1, controller_epoch=2, silent_ms=3)
    assert decode(FetchMetadataResponse, 0, encode(answer, 0)).silent_ms == -1
    assert len(encode(answer, 1)) == len(encode(answer, 0)) + 8
