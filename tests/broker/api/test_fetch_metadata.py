"""FetchMetadata: which requests the controller accepts as a sign of life."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from parley.broker.api.fetch_metadata import CHANGES_AFTER_WHOLE, CROSSES_TERMS, FetchMetadataApi
from parley.broker.controller.metadata_publisher import MetadataPublisher, TermStart
from parley.broker.membership.controller_silence import ControllerSilence
from parley.broker.metadata.changes import BrokerRegistered, ControllerElected, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest, FetchMetadataResponse
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID
from tests.broker.api.bench import context
from tests.broker.controller.clusters import epoch_of, image_with


def controller_api() -> FetchMetadataApi:
    """The handler of a controller whose term has begun, and from which no broker has fetched."""
    metadata, waiting = Metadata(image_with()), Purgatory()
    publisher = MetadataPublisher(metadata, waiting)
    metadata.subscribe(publisher.apply)
    publisher.open(())
    return FetchMetadataApi(metadata, publisher, waiting, ControllerSilence(lambda: 0.0))


@pytest.mark.parametrize(
    ("broker_id", "epoch"), [(2, -1), (2, epoch_of(2) - 1), (2, epoch_of(2) + 1), (99, epoch_of(2))]
)
async def test_only_the_registered_epoch_speaks_for_a_broker(broker_id: int, epoch: int) -> None:
    api = controller_api()
    publisher = api.publisher

    async def ask(broker_id: int, epoch: int) -> ErrorCode:
        request = FetchMetadataRequest(broker_id=broker_id, broker_epoch=epoch, max_wait_ms=0)
        answer = api.fetch_metadata(context(0), request)
        response = await answer if isinstance(answer, Awaitable) else answer
        assert isinstance(response, FetchMetadataResponse)
        return ErrorCode(response.error_code)

    assert await ask(2, epoch_of(2)) == ErrorCode.NONE
    heard = dict(publisher.progress_of)
    assert [(who, hearer.broker_epoch) for who, hearer in heard.items()] == [(2, epoch_of(2))]
    is_past = broker_id == 2 and 0 <= epoch < epoch_of(2)
    assert await ask(broker_id, epoch) == (ErrorCode.STALE_BROKER_EPOCH if is_past else ErrorCode.NONE)
    assert publisher.progress_of == heard


async def test_a_broker_that_waits_for_its_registration_learns_of_it_immediately() -> None:
    api = controller_api()
    image = api.metadata.image
    request = FetchMetadataRequest(
        broker_id=99,
        broker_epoch=NO_EPOCH,
        controller_epoch=image.controller_epoch,
        version=image.version,
        max_wait_ms=60_000,
    )
    waiting = api.fetch_metadata(context(0), request)
    assert isinstance(waiting, Delayed)
    registered = BrokerRegistered(BrokerRegistration(99, 1, UUID(int=99), (), fenced=False))
    api.metadata.apply(Delta(image.controller_epoch, image.version + 1, (registered,)))
    assert waiting.done()
    response = waiting.result()
    assert (response.is_whole, len(response.steps)) == (False, 1)


async def test_a_sender_of_an_earlier_version_gets_a_whole_image_in_a_new_term() -> None:
    metadata, waiting = Metadata(image_with()), Purgatory()
    publisher = MetadataPublisher(metadata, waiting)
    before = metadata.image.term
    start = Delta(before.epoch + 1, 0, (ControllerElected(1, before.epoch + 1),))
    metadata.apply(start)
    publisher.open((before,), TermStart(before, start))
    api = FetchMetadataApi(metadata, publisher, waiting, ControllerSilence(lambda: 0.0))
    request = FetchMetadataRequest(
        broker_id=2, broker_epoch=epoch_of(2), controller_epoch=before.epoch, version=before.version, max_wait_ms=0
    )
    now = api.fetch_metadata(context(CROSSES_TERMS), request)
    assert isinstance(now, FetchMetadataResponse)
    assert not now.is_whole
    earlier = api.fetch_metadata(context(CROSSES_TERMS - 1), request)
    assert isinstance(earlier, Awaitable)
    response = await earlier
    assert isinstance(response, FetchMetadataResponse)
    assert response.is_whole


async def test_changes_follow_a_kept_whole_image_for_senders_that_apply_them() -> None:
    api = controller_api()
    request = FetchMetadataRequest(broker_id=3, broker_epoch=NO_EPOCH, max_wait_ms=0)

    async def steps(version: int) -> list[int]:
        waiting = api.fetch_metadata(context(version), request)
        assert isinstance(waiting, Awaitable)
        response = await waiting
        assert isinstance(response, FetchMetadataResponse)
        assert response.is_whole
        return [step.version for step in response.steps]

    whole = api.metadata.image
    assert await steps(CHANGES_AFTER_WHOLE) == [whole.version]
    registered = BrokerRegistered(BrokerRegistration(99, 1, UUID(int=99), (), fenced=False))
    api.metadata.apply(Delta(whole.controller_epoch, whole.version + 1, (registered,)))
    assert await steps(CHANGES_AFTER_WHOLE) == [whole.version, whole.version + 1]
    assert await steps(CHANGES_AFTER_WHOLE - 1) == [whole.version]
