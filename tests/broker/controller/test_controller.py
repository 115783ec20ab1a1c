"""How waiting decisions are batched, and what happens if the store refuses a batch or does not respond."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from parley.broker.controller.controller import ELECTION, STORE_PATIENCE_S, Controller
from parley.broker.controller.decision import Decision
from parley.broker.controller.decision_batch import DecisionRequest, decide_batch, next_batch
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.controller.published_steps import PARTITIONS_PER_STEP
from parley.broker.controller.stored_metadata import REQUIRED, TERMS, TOPICS
from parley.broker.metadata.changes import (
    Change,
    ConfigReplaced,
    ControllerElected,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import terms_from_bytes, terms_to_bytes
from parley.broker.metadata.types import ConfigResource, PartitionState, ResourceType, TopicImage
from parley.broker.runtime.purgatory import Purgatory
from parley.consensus.errors import Fenced
from parley.consensus.memory import CAPABILITIES, MemoryBackend, MemoryStore
from parley.consensus.recipes.elections import Elections
from parley.consensus.recipes.keyvalue import KeyValue
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.support.virtual_time import run

STATE = PartitionState((1,), (1,), 1)


class Lines(logging.Handler):
    """Keeps the lines of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def topic(number: int, name: str = "t", partitions: int = 1) -> TopicImage:
    return TopicImage(name, UUID(int=number), (STATE,) * partitions)


def asking(*changes: Change) -> DecisionRequest:
    return DecisionRequest(lambda image: Decision(changes, len(image.topics)), None)  # type: ignore[arg-type]


def test_a_topic_is_not_created_in_the_batch_that_deletes_one_of_its_name() -> None:
    image = MetadataImage("c").with_changes([TopicCreated(topic(1))])
    requests = [
        asking(TopicCreated(topic(2, "other"))),
        asking(TopicDeleted("t", UUID(int=1))),
        asking(TopicCreated(topic(3))),
        asking(),
    ]
    first, after = decide_batch(image, requests)
    assert [answer for _, answer in first.outcomes] == [1, 2]
    assert sorted(after.topics) == ["other"]
    second, after = decide_batch(after, requests[len(first.outcomes) :])
    assert [answer for _, answer in second.outcomes] == [1, 2]
    assert after.topics["t"] == topic(3)


def batches(*requests: DecisionRequest) -> list[int]:
    """Return the number of requests in each batch, for a cluster with one topic."""
    image, left, sizes = MetadataImage("c").with_changes([TopicCreated(topic(1))]), list(requests), []
    while left:
        batch, image = decide_batch(image, left)
        sizes.append(len(batch.outcomes))
        left = left[sizes[-1] :]
    return sizes


def test_a_topic_grows_once_in_a_batch() -> None:
    more = asking(PartitionsAdded("t", (STATE,)))
    assert batches(more, asking(TopicCreated(topic(2, "other"))), more, asking(), more) == [2, 2, 1]


def test_a_topic_is_not_deleted_in_the_batch_that_changes_it() -> None:
    changes = PartitionsAdded("t", (STATE,)), PartitionChanged("t", 0, STATE)
    gone = asking(TopicDeleted("t", UUID(int=1)))
    for change in changes:
        assert batches(asking(change), asking(TopicCreated(topic(2, "other"))), gone) == [2, 1]
    assert batches(asking(TopicCreated(topic(2, "o"))), asking(TopicDeleted("o", UUID(int=2)))) == [1, 1]
    assert batches(asking(TopicCreated(topic(2, "o"))), gone) == [2]


COUNTED = ConfigResource(ResourceType.TOPIC, "counted")


def count_up(image: MetadataImage) -> Decision[str]:
    number = str(int(image.configs.get(COUNTED, {}).get("count", 0)) + 1)
    return Decision((ConfigReplaced(COUNTED, {"count": number}),), number)


def changing(*changes: Change) -> Any:
    return lambda image: Decision(changes, None)


TOO_LARGE = changing(ConfigReplaced(ConfigResource(ResourceType.TOPIC, "large"), {"large": "x" * 5000}))


@asynccontextmanager
async def elected_controller(
    *, is_store_frozen: Callable[[], bool] = lambda: False
) -> AsyncIterator[tuple[Controller, Metadata, MemoryBackend]]:
    """A controller whose store takes values of 4000 bytes."""
    metadata = Metadata(MetadataImage("c"))
    backend = MemoryBackend(MemoryStore(replace(CAPABILITIES, value_bytes_max=4000)))
    async with backend:
        elections = Elections(backend, await backend.open_session(60_000), Random(1))
        publisher = MetadataPublisher(metadata, Purgatory())
        metadata.subscribe(publisher.apply)
        controller = Controller(1, b"one", Random(1), metadata, publisher, is_store_frozen=is_store_frozen)
        term = asyncio.ensure_future(controller.run(elections, asyncio.Event().wait))  # type: ignore[arg-type]
        assert await metadata.until(lambda image: image.controller_id == 1, None)
        yield controller, metadata, backend
        term.cancel()
        await asyncio.wait({term})


async def test_decisions_are_not_repeated_if_a_later_one_of_the_round_is_too_large() -> None:
    async with elected_controller() as (controller, metadata, _):
        decisions = [count_up, changing(TopicCreated(topic(1))), changing(TopicDeleted("t", UUID(int=1))), TOO_LARGE]
        *done, refused = await asyncio.gather(*map(controller.submit, decisions), return_exceptions=True)
        assert done == ["1", None, None]
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.INVALID_REQUEST
        assert metadata.image.configs[COUNTED] == {"count": "1"}


async def test_every_caller_gets_an_error_if_the_term_ends_while_a_round_is_split() -> None:
    async with elected_controller() as (controller, _, backend):
        leadership = controller._leadership
        assert leadership is not None
        other = Elections(backend, await backend.open_session(10_000), Random(2))
        await other.campaign(ELECTION, b"two", depose=await other.leader(ELECTION))
        await leadership.lost.wait()
        waiting = [DecisionRequest(decide, asyncio.Future()) for decide in (TOO_LARGE, count_up, count_up)]
        for request in waiting[1:]:
            controller._queue.put_nowait(request)
        with pytest.raises(Fenced):
            await controller._round(leadership, waiting[0])
        codes = [request.reply.exception().code for request in waiting if request.reply.done()]  # type: ignore[union-attr]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER]


async def test_a_campaign_goes_on_while_the_controller_is_found_dead_again() -> None:
    """The other brokers look every second, and a store under load may need longer for an election."""
    metadata = Metadata(MetadataImage("c"))
    store = MemoryStore()
    async with MemoryBackend(store) as other, MemoryBackend(store) as backend:
        dead = await Elections(other, await other.open_session(10_000), Random(1)).campaign(ELECTION, b"dead")
        elections = Elections(backend, await backend.open_session(10_000), Random(1))
        leader = await elections.leader(ELECTION)
        assert leader is not None
        assert leader.epoch == dead.epoch
        backend.delay_s = lambda: 0.05
        publisher = MetadataPublisher(metadata, Purgatory())
        metadata.subscribe(publisher.apply)
        controller = Controller(1, b"one", Random(1), metadata, publisher)
        term = asyncio.ensure_future(controller.run(elections, asyncio.Event().wait))  # type: ignore[arg-type]
        for _ in range(100):
            controller.depose(leader)
            if await metadata.until(lambda image: image.controller_id == 1, 0.02):
                break
        assert metadata.image.controller_id == 1
        backend.delay_s = lambda: 0.0
        term.cancel()
        await asyncio.wait({term})


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an async test in virtual time."""

    def wrapped() -> None:
        run(test())

    wrapped.__name__ = test.__name__
    return wrapped


@virtual
async def test_a_change_that_the_store_cannot_take_fails_in_time_and_names_the_store() -> None:
    async with elected_controller() as (controller, metadata, backend):
        backend.disconnect()
        began_s = asyncio.get_running_loop().time()
        refused = await asyncio.gather(
            *(controller.submit(changing(TopicCreated(topic(1)))) for _ in range(2)),
            controller.submit(count_up),
            return_exceptions=True,
        )
        assert 5 <= asyncio.get_running_loop().time() - began_s <= 5.25
        for error in refused:
            assert isinstance(error, KafkaError)
            assert error.code is ErrorCode.REQUEST_TIMED_OUT
            assert error.message.startswith("The coordination store (memory) does not respond: disconnected.")
        assert "t" not in metadata.image.topics


def test_a_change_for_which_the_queue_has_no_room_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.broker.controller.controller.QUEUE_MAX", 1)

    async def story() -> None:
        # While the store is frozen, the first request of the queue keeps the others waiting.
        async with elected_controller(is_store_frozen=lambda: True) as (controller, _, backend):
            backend.disconnect()
            ahead = [asyncio.ensure_future(controller.submit(count_up))]
            await asyncio.sleep(0.5)  # it is being written, and the next one has left the queue
            ahead += [asyncio.ensure_future(controller.submit(count_up)) for _ in range(3)]
            refused, _ = await asyncio.wait(ahead, timeout=STORE_PATIENCE_S + 1)
            errors = [each.exception() for each in refused]
            assert [str(error) for error in errors] == [
                "REQUEST_TIMED_OUT: The controller's request queue is full: retry later."
            ]
            for each in ahead:
                each.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    run(story())


@virtual
async def test_a_request_waits_for_a_store_that_only_holds_writes_because_the_cluster_moves() -> None:
    frozen = True
    async with elected_controller(is_store_frozen=lambda: frozen) as (controller, _, backend):
        backend.disconnect()
        change = asyncio.ensure_future(controller.submit(count_up))
        await asyncio.sleep(15)
        assert not change.done()
        frozen = False
        thawed_s = asyncio.get_running_loop().time()
        with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
            await change
        assert 4.75 <= asyncio.get_running_loop().time() - thawed_s <= 5.25


@virtual
async def test_a_deposed_controller_campaigns_again() -> None:
    async with elected_controller() as (controller, metadata, backend):
        first = metadata.image.controller_epoch
        other = Elections(backend, await backend.open_session(10_000), Random(2))
        replacing = await other.campaign(ELECTION, b"two", depose=await other.leader(ELECTION))
        await asyncio.sleep(1)
        assert not controller.is_active
        with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
            await controller.submit(count_up)
        await replacing.resign()
        assert await metadata.until(lambda image: image.controller_epoch == first + 2, 60)
        assert await controller.submit(count_up) == "1"


@virtual
async def test_a_term_has_a_higher_epoch_than_any_that_this_broker_has_seen() -> None:
    metadata = Metadata(replace(MetadataImage("c"), controller_epoch=7))
    async with MemoryBackend(MemoryStore()) as backend:
        elections = Elections(backend, await backend.open_session(60_000), Random(1))
        controller = Controller(1, b"one", Random(1), metadata, MetadataPublisher(metadata, Purgatory()))
        term = asyncio.ensure_future(controller.run(elections, asyncio.Event().wait))  # type: ignore[arg-type]
        assert await metadata.until(lambda image: image.controller_id == 1, None)
        assert metadata.image.controller_epoch == 8
        term.cancel()
        await asyncio.wait({term})


@virtual
async def test_versions_rise_by_one_in_a_term_and_the_store_has_the_latest() -> None:
    async with elected_controller() as (controller, metadata, backend):
        for version in (0, 1, 2, 3):
            if version:
                await controller.submit(count_up)
            stored = await KeyValue(backend).get(TERMS)
            assert stored is not None
            terms = terms_from_bytes(stored.value)
            assert metadata.image.version == terms[-1].version == version
            assert not version or terms == controller.terms


@virtual
async def test_many_changes_are_published_in_steps_and_the_store_has_the_last_version_before_the_first() -> None:
    async with elected_controller() as (controller, metadata, backend):
        topics = [TopicCreated(topic(number, f"t{number}", partitions=PARTITIONS_PER_STEP)) for number in range(3)]
        versions: list[tuple[int, int]] = []
        metadata.subscribe(lambda delta, image: versions.append((delta.version, len(image.topics))))
        submitted = asyncio.ensure_future(controller.submit(changing(*topics), is_slow=True))
        assert await metadata.until(lambda image: image.version == 1, None)
        stored = await KeyValue(backend).get(TERMS)
        assert stored is not None
        assert terms_from_bytes(stored.value)[-1].version == 3
        await submitted
        assert versions == [(1, 1), (2, 2), (3, 3)]
        await controller.submit(count_up)
        assert metadata.image.version == controller.terms[-1].version == 4


@virtual
async def test_a_controller_publishes_no_more_once_it_has_applied_the_metadata_of_another() -> None:
    async with elected_controller() as (controller, metadata, _):

        def follow(delta: Delta, image: MetadataImage) -> None:
            if delta.version == 1:
                asyncio.get_running_loop().call_soon(metadata.apply, Delta(9, 0, (ControllerElected(2, 9),)))

        metadata.subscribe(follow)
        topics = [TopicCreated(topic(number, f"t{number}", partitions=PARTITIONS_PER_STEP)) for number in range(3)]
        with pytest.raises(KafkaError) as refused:
            await controller.submit(changing(*topics))
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert len(metadata.image.topics) == 1
        assert metadata.image.controller_epoch == 9


async def test_a_slow_decision_is_alone_in_its_batch() -> None:
    slow, quick = DecisionRequest(count_up, asyncio.Future(), is_slow=True), asking()
    assert next_batch([slow, quick]) == [slow]
    assert next_batch([quick, quick, slow, quick]) == [quick, quick]


@virtual
async def test_a_new_controller_knows_whether_the_store_contains_what_it_has_seen() -> None:
    async with elected_controller() as (controller, metadata, backend):
        told: list[Delta] = []
        metadata.subscribe(lambda delta, image: told.append(delta))
        elections, store = Elections(backend, await backend.open_session(600_000), Random(2)), KeyValue(backend)
        for lost in (0, 1):
            await controller.submit(count_up)
            seen = metadata.image.term
            replacing = await elections.campaign(ELECTION, b"two", depose=await elections.leader(ELECTION))
            await store.put(TERMS, terms_to_bytes([seen._replace(version=seen.version - lost)]))
            await replacing.resign()
            assert await metadata.until(lambda image: image.controller_epoch > seen.epoch, 60)  # noqa: B023
            assert told[-1].continues_history is (lost == 0)


@virtual
async def test_a_leadership_that_cannot_be_given_back_is_left_to_the_session_after_two_seconds() -> None:
    metadata = Metadata(MetadataImage("c"))
    async with MemoryBackend(MemoryStore()) as backend:
        elections = Elections(backend, await backend.open_session(60_000), Random(1))
        controller = Controller(1, b"one", Random(1), metadata, MetadataPublisher(metadata, Purgatory()))
        term = asyncio.ensure_future(controller.run(elections, asyncio.Event().wait))  # type: ignore[arg-type]
        assert await metadata.until(lambda image: image.controller_id == 1, None)
        backend.delay_s = lambda: 1e6
        began_s = asyncio.get_running_loop().time()
        term.cancel()
        await asyncio.wait({term})
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(2)
        backend.delay_s = lambda: 0.0


@virtual
async def test_a_decision_whose_caller_gave_up_before_it_was_made_is_never_made() -> None:
    async with elected_controller() as (controller, metadata, backend):
        backend.disconnect()
        first = asyncio.ensure_future(controller.submit(changing(TopicCreated(topic(1)))))
        await asyncio.sleep(0.05)  # the first is being written by now, the second waits behind it
        second = asyncio.ensure_future(controller.submit(count_up))
        await asyncio.wait({first, second})
        backend.reconnect()
        assert await controller.submit(lambda image: Decision((), sorted(image.topics))) == ["t"]
        assert metadata.image.configs == {}
        assert await controller.submit(count_up) == "1"


@virtual
async def test_a_duty_of_the_controller_waits_for_the_store() -> None:
    async with elected_controller() as (controller, _, backend):
        backend.disconnect()
        duty = asyncio.ensure_future(controller.submit(count_up, waits_for_store=True))
        await asyncio.sleep(0.05)
        with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
            await controller.submit(count_up)
        assert not duty.done()
        backend.reconnect()
        assert await duty == "1"


@virtual
async def test_a_broker_that_cannot_read_the_metadata_leaves_the_office_to_another() -> None:
    """It may be too old for the metadata, while another broker is not. One log line says so, without a traceback."""
    lines = Lines()
    logging.getLogger("parley.broker.controller.controller").addHandler(lines)
    async with MemoryBackend(MemoryStore()) as backend:
        await KeyValue(backend).put(f"{REQUIRED}something-new", b"{}")
        await KeyValue(backend).put(f"{TOPICS}t", b'{"partitions": 1')
        elections = Elections(backend, await backend.open_session(60_000), Random(1))
        metadata = Metadata(MetadataImage("c"))
        controller = Controller(1, b"one", Random(1), metadata, MetadataPublisher(metadata, Purgatory()))
        term = asyncio.ensure_future(controller.run(elections, asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(3)
        other = Elections(backend, await backend.open_session(60_000), Random(2))
        async with asyncio.timeout(3):
            await other.campaign(ELECTION, b"two")
        await asyncio.sleep(30)
        assert not controller.is_active
        term.cancel()
        await asyncio.wait({term})
    assert {record.getMessage() for record in lines.records} == {
        "the metadata in the coordination store cannot be read: this broker cannot be the controller"
    }
    assert not any(record.exc_info for record in lines.records)
    assert "in topics/t" in vars(lines.records[0])["reason"]
