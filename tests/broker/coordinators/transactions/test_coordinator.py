"""The coordinator on its runtime: responses to clients remain true, and markers are written despite any failure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.transactions.coordinator import HELD_S, TransactionCoordinator, make_shard
from parley.broker.coordinators.transactions.listing import Filter
from parley.broker.coordinators.transactions.marker_sender import MarkerSender
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import EPOCH_MAX, TransactionState
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.broker.metadata.changes import Delta, TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from parley.protocol.uuids import UUID
from tests.broker.coordinators.shards import FakeTopic, now_ms
from tests.broker.coordinators.transactions.driven_shard import ID, P0
from tests.support.virtual_time import run

V2 = 2


class Ids:
    """Producer ids, without a store."""

    def __init__(self) -> None:
        self.taken = 0

    async def take(self) -> int:
        self.taken += 1
        return 100 + self.taken


class Bench:
    """Coordinators that follow each other on one partition of the transactions topic, and the leader of ``t-0``."""

    def __init__(self, *, follows: bool = True, properties: Mapping[str, str] | None = None) -> None:
        self.config = BrokerConfig.from_properties(properties or {})
        self.topic = FakeTopic(name="__transaction_state", follows=follows)
        self.log = self.topic.log(0)
        self.metadata = Metadata(MetadataImage("c"))
        partitions = (PartitionState((1,), (1,), 1),)
        self.metadata.apply(Delta(0, 1, (TopicCreated(TopicImage("t", UUID(int=1), partitions)),)))
        self.ids = Ids()
        self.epoch = 0
        self.markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = []
        self.may_write = asyncio.Event()
        self.may_write.set()

    def elect(self) -> TransactionCoordinator:
        """Return a new coordinator, which reads the log."""
        self.epoch += 1
        config, tasks, ids = self.config, TaskSet(), self.ids
        sender = MarkerSender(1, self.metadata, self._write, tasks)
        epoch = self.epoch
        runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            self.topic,
            lambda partition: make_shard(lambda: config, lambda: self.log.batch_bytes_max, sender, partition, epoch),
            lambda: 1,
            now_ms=now_ms,
            timeout_ms=lambda: 5_000,
            tasks=tasks,
        )
        some_ids: Any = ids
        coordinator = TransactionCoordinator(runtime, sender, some_ids, lambda: config, may_be_superseded=lambda: False)
        runtime.on_elected(0, epoch)
        return coordinator

    async def elected(self) -> TransactionCoordinator:
        coordinator = self.elect()
        await coordinator.runtime.until_loaded(60)
        return coordinator

    async def _write(self, broker: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.markers += request.markers
        await self.may_write.wait()
        return WriteTxnMarkersResponse(
            markers=[
                WriteTxnMarkersResponse.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(partition_index=index)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )


async def opened(coordinator: TransactionCoordinator) -> ProducerIdentity:
    producer = await coordinator.initialize(ID, 60_000, None)
    await coordinator.add(ID, producer, frozenset({P0}), V2)
    return producer


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_coordinator_writes_the_markers_of_a_transaction_whose_outcome_is_stored(committed: bool) -> None:
    async def scenario() -> None:
        bench = Bench()
        first = await bench.elected()
        bench.may_write.clear()
        following = await first.end(ID, await opened(first), V2, committed=committed)
        await asyncio.sleep(1)
        first.runtime.on_resigned(0)
        second = await bench.elected()
        bench.may_write.set()
        await asyncio.sleep(1)
        assert [(marker.coordinator_epoch, marker.transaction_result) for marker in bench.markers] == [
            (1, committed),
            (2, committed),
        ]
        assert (await second.describe(ID)).state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        await second.add(ID, following, frozenset({P0}), V2)
        second.runtime.on_resigned(0)

    run(scenario())


@pytest.mark.parametrize("is_superseded", [False, True])
def test_a_final_error_waits_until_the_replicas_confirm_that_this_broker_coordinates(is_superseded: bool) -> None:
    """Otherwise, a coordinator that has not heard of its successor would answer for the producer's last transaction."""

    async def scenario() -> None:
        bench = Bench()
        coordinator = await bench.elected()
        producer = await coordinator.initialize(ID, 60_000, None)
        await coordinator.add(ID, producer, frozenset({P0}), 0)
        await coordinator.end(ID, producer, 0, committed=False)
        await asyncio.sleep(1)
        before, appends = await coordinator.describe(ID), len(bench.log.batches)
        assert before.state is TransactionState.COMPLETE_ABORT
        bench.log.follows = not is_superseded  # the replicas then follow the next coordinator
        newer = ProducerIdentity(producer.producer_id, producer.producer_epoch + 1)
        final = {
            ErrorCode.INVALID_TXN_STATE: coordinator.end(ID, producer, 0, committed=True),
            ErrorCode.PRODUCER_FENCED: coordinator.add(ID, newer, frozenset({P0}), 0),
            ErrorCode.INVALID_PRODUCER_ID_MAPPING: coordinator.end(ID, ProducerIdentity(9, 0), V2, committed=True),
        }
        tasks = {code: asyncio.ensure_future(asked) for code, asked in final.items()}
        verified = coordinator.verify(ID, producer, frozenset({P0}))
        fenced = coordinator.verify(ID, newer, frozenset({P0}))
        await asyncio.sleep(1)
        assert len(bench.log.batches) > appends
        if is_superseded:
            waiting: list[asyncio.Future[Any]] = [*tasks.values(), verified, fenced]
            assert not any(each.done() for each in waiting)
            coordinator.runtime.on_resigned(0)
            for each in waiting:
                with pytest.raises(KafkaError) as unproven:
                    await each
                assert unproven.value.code is ErrorCode.NOT_COORDINATOR
            return
        assert verified.result() == {P0: ErrorCode.TRANSACTION_ABORTABLE}
        assert fenced.result() == {P0: ErrorCode.PRODUCER_FENCED}
        assert coordinator.verify_at_once(ID, producer, frozenset({P0})) is None, "an append has to wait"
        for code, task in tasks.items():
            with pytest.raises(KafkaError) as refused:
                await task
            assert refused.value.code is code
        assert await coordinator.describe(ID) == before
        coordinator.runtime.on_resigned(0)

    run(scenario())


def test_a_marker_is_written_only_when_the_outcome_is_stored_at_all_replicas() -> None:
    async def scenario() -> None:
        bench = Bench()
        coordinator = await bench.elected()
        producer = await opened(coordinator)
        bench.log.follows = False
        ending = asyncio.ensure_future(coordinator.end(ID, producer, V2, committed=True))
        await asyncio.sleep(20)
        assert not bench.markers
        with pytest.raises(KafkaError) as early:
            await ending
        assert early.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.log.follows = True
        bench.log.moves_to(bench.log.end_offset)
        await asyncio.sleep(1)
        assert len(bench.markers) == 1
        assert await coordinator.end(ID, producer, V2, committed=True) == (producer.producer_id, 1), "the retry"
        coordinator.runtime.on_resigned(0)

    run(scenario())


def test_an_outcome_that_was_never_stored_is_open_at_the_next_coordinator() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = await bench.elected()
        producer = await opened(first)
        bench.log.follows = False
        committed_end = bench.log.end_offset
        ending = asyncio.ensure_future(first.end(ID, producer, V2, committed=True))
        await asyncio.sleep(0.1)
        first.runtime.on_resigned(0)
        with pytest.raises(KafkaError) as lost:
            await ending
        assert lost.value.code is ErrorCode.NOT_COORDINATOR
        del bench.log.batches[-1]
        bench.log.end_offset = committed_end
        bench.log.follows = True
        second = await bench.elected()
        assert not bench.markers
        assert (await second.describe(ID)).state is TransactionState.ONGOING
        await second.end(ID, producer, V2, committed=False)
        await asyncio.sleep(1)
        assert [marker.transaction_result for marker in bench.markers] == [False]
        second.runtime.on_resigned(0)

    run(scenario())


def test_a_transaction_times_out_at_whichever_coordinator_it_then_has() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = await bench.elected()
        producer = await opened(first)
        await asyncio.sleep(40)
        first.runtime.on_resigned(0)
        second = await bench.elected()
        await asyncio.sleep(15)
        assert (await second.describe(ID)).state is TransactionState.ONGOING
        await asyncio.sleep(20)
        assert (await second.describe(ID)).state is TransactionState.COMPLETE_ABORT
        assert [(marker.producer_epoch, marker.transaction_result) for marker in bench.markers] == [(1, False)]
        with pytest.raises(KafkaError) as fenced:
            await second.add(ID, producer, frozenset({P0}), V2)
        assert fenced.value.code is ErrorCode.PRODUCER_FENCED
        second.runtime.on_resigned(0)

    run(scenario())


def test_an_unused_id_expires() -> None:
    async def scenario() -> None:
        bench = Bench(properties={"transactional.id.expiration.ms": "7200000"})
        coordinator = await bench.elected()
        await coordinator.initialize(ID, 60_000, None)
        await asyncio.sleep(3600)
        assert len(await coordinator.select(Filter())) == 1
        await asyncio.sleep(3 * 3600)
        assert await coordinator.select(Filter()) == []
        coordinator.runtime.on_resigned(0)

    run(scenario())


def test_producer_ids_are_taken_only_when_they_are_needed() -> None:
    async def scenario() -> None:
        bench = Bench()
        coordinator = await bench.elected()
        first = await coordinator.initialize(ID, 60_000, None)
        for _ in range(5):
            await coordinator.initialize(ID, 60_000, None)
        assert bench.ids.taken == 1
        known = await coordinator.describe(ID)
        worn = known.entered(TransactionState.EMPTY, 1, producer_epoch=EPOCH_MAX - 1)
        key, value = transaction_record(ID, worn)
        coordinator.runtime.state_of(0).replay(key, value, None, 0)
        await coordinator.add(ID, worn.identity, frozenset({P0}), V2)
        following = await coordinator.end(ID, worn.identity, V2, committed=True)
        assert following == (102, 0)
        assert following.producer_id != first.producer_id
        coordinator.runtime.on_resigned(0)

    run(scenario())


def test_a_broker_that_does_not_coordinate_an_id_says_so() -> None:
    async def scenario() -> None:
        bench = Bench()
        coordinator = bench.elect()
        with pytest.raises(KafkaError) as loading:
            await coordinator.initialize(ID, 60_000, None)
        assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(KafkaError) as listing:
            await coordinator.select(Filter())
        assert listing.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        coordinator.runtime.on_resigned(0)
        with pytest.raises(KafkaError) as resigned:
            await coordinator.initialize(ID, 60_000, None)
        assert resigned.value.code is ErrorCode.NOT_COORDINATOR
        assert await coordinator.select(Filter()) == []

    run(scenario())


def test_a_producer_that_goes_on_at_once_waits_for_its_markers_instead_of_retrying() -> None:
    async def scenario() -> None:
        bench = Bench()
        coordinator = await bench.elected()
        bench.may_write.clear()
        following = await coordinator.end(ID, await opened(coordinator), V2, committed=True)
        with pytest.raises(KafkaError) as at_once:
            await coordinator.add(ID, following, frozenset({P0}), V2)
        assert at_once.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
        adding = asyncio.ensure_future(coordinator.add_when_ended(ID, following, frozenset({P0}), V2))
        await asyncio.sleep(HELD_S / 2)
        assert not adding.done()
        bench.may_write.set()
        await adding
        assert (await coordinator.describe(ID)).state is TransactionState.ONGOING
        coordinator.runtime.on_resigned(0)

    run(scenario())


def test_a_new_producer_waits_until_the_open_transaction_is_aborted() -> None:
    async def scenario() -> None:
        bench = Bench()
        coordinator = await bench.elected()
        old = await opened(coordinator)
        assert await coordinator.initialize(ID, 60_000, None) == (old.producer_id, 2)
        assert [marker.transaction_result for marker in bench.markers] == [False]
        coordinator.runtime.on_resigned(0)

    run(scenario())


def test_no_request_waits_long_for_markers() -> None:
    async def scenario() -> None:
        bench = Bench()
        coordinator = await bench.elected()
        bench.may_write.clear()
        following = await coordinator.end(ID, await opened(coordinator), V2, committed=True)
        began = asyncio.get_running_loop().time()
        with pytest.raises(KafkaError) as late:
            await coordinator.add_when_ended(ID, following, frozenset({P0}), V2)
        assert late.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert asyncio.get_running_loop().time() - began == pytest.approx(HELD_S, abs=0.01)
        waiting = asyncio.ensure_future(coordinator.initialize(ID, 60_000, None))
        await asyncio.sleep(HELD_S / 2)
        coordinator.runtime.on_resigned(0)
        with pytest.raises(KafkaError) as resigned:
            await waiting
        assert resigned.value.code is ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_topic_that_accepts_no_record_of_the_coordinator_is_not_the_clients_fault() -> None:
    """MESSAGE_TOO_LARGE is about the client's own records."""

    async def scenario() -> None:
        bench = Bench()
        coordinator = await bench.elected()
        producer = await coordinator.initialize(ID, 60_000, None)
        bench.log.batch_bytes_max = 100
        for refused in (
            coordinator.initialize(ID, 60_000, None),
            coordinator.add(ID, producer, frozenset({P0}), V2),
            coordinator.end(ID, producer, V2, committed=False),
        ):
            with pytest.raises(KafkaError, match=r"max\.message\.bytes=100") as error:
                await refused
            assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        bench.log.batch_bytes_max = 1 << 20
        await coordinator.add(ID, producer, frozenset({P0}), V2)

    run(scenario())
