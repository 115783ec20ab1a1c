"""Writing markers: to which leaders, how often, how long; and the completion afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.transactions.marker_sender import (
    PARTITIONS_PER_REQUEST,
    REQUESTS_IN_FLIGHT,
    MarkerSender,
)
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import TransactionState
from parley.broker.metadata.changes import Delta, PartitionChanged, TopicCreated, TopicDeleted
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState, TopicImage
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from tests.broker.coordinators.transactions.driven_shard import ID, DrivenShard
from tests.support.virtual_time import run

Sent = tuple[int, TopicPartition]

UNKNOWN_CODE = 9_999
"""An error code that a newer broker may have."""


class Brokers:
    """A sender, the shard it works for, and brokers that respond as the test says."""

    def __init__(self) -> None:
        self.metadata = Metadata(MetadataImage("c"))
        self.tasks = TaskSet()
        self.sender = MarkerSender(1, self.metadata, self.respond, self.tasks)
        self.sender.serve(self)
        self.shard = DrivenShard()
        self.shard.markers.enqueue = self.sender.enqueue  # type: ignore[method-assign]
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.outcomes: dict[Sent, list[int | Exception]] = {}
        """What a broker responds for a partition, the first time, the second time...; then NONE."""
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.refusals: list[KafkaError] = []
        self.completed = asyncio.Event()

    def apply(self, change: TopicCreated | TopicDeleted | PartitionChanged) -> None:
        self.metadata.apply(Delta(0, self.metadata.image.version + 1, (change,)))

    def create(self, name: str, *leaders: int) -> None:
        partitions = tuple(PartitionState((1, 2), (1, 2), leader) for leader in leaders)
        self.apply(TopicCreated(TopicImage(name, UUID(int=len(self.metadata.image.topics) + 1), partitions)))

    def lead(self, name: str, index: int, leader: int) -> None:
        state = self.metadata.image.partition(name, index)
        assert state is not None
        self.apply(PartitionChanged(name, index, replace(state, leader=leader)))

    def submit(
        self, key: int, decide: Callable[[TransactionShard, int], Decision[None]], *, at_once: bool
    ) -> asyncio.Future[None]:
        if self.refusals:
            raise self.refusals.pop(0)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(self.shard.submit(decide))
        self.completed.set()
        return future

    async def respond(self, broker: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.requests.append((broker, request))
        await self.may_respond.wait()
        return WriteTxnMarkersResponse(
            markers=[
                WriteTxnMarkersResponse.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=self._outcome(broker, (topic.name, index))
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _outcome(self, broker: int, partition: TopicPartition) -> int:
        planned = self.outcomes.get((broker, partition))
        outcome = planned.pop(0) if planned else ErrorCode.NONE
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def commit(self, *partitions: TopicPartition, name: str = ID) -> ProducerIdentity:
        producer = self.shard.initialize(transactional_id=name)
        self.shard.add(producer, *partitions, transactional_id=name)
        return self.shard.end(producer, committed=True, transactional_id=name)

    @property
    def written(self) -> list[tuple[int, set[TopicPartition]]]:
        return [
            (
                broker,
                {
                    (topic.name, i)
                    for marker in request.markers
                    for topic in marker.topics
                    for i in topic.partition_indexes
                },
            )
            for broker, request in self.requests
        ]


def test_each_leader_gets_its_partitions_and_the_transaction_completes() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1, 2, 1)
        identity = brokers.commit(("t", 0), ("t", 1), ("t", 2))
        await brokers.completed.wait()
        assert sorted(brokers.written, key=lambda each: each[0]) == [(1, {("t", 0), ("t", 2)}), (2, {("t", 1)})]
        (marker,) = brokers.requests[0][1].markers
        assert (marker.producer_id, marker.producer_epoch) == identity
        assert marker.transaction_result
        assert (marker.coordinator_epoch, marker.transaction_version) == (7, 2)
        assert brokers.shard.transaction.state is TransactionState.COMPLETE_COMMIT
        await asyncio.sleep(1)
        assert len(brokers.sender) == 0

    run(scenario())


@pytest.mark.parametrize(
    "outcome",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        UNKNOWN_CODE,
        KafkaError(ErrorCode.NETWORK_EXCEPTION),
        ZeroDivisionError(),
    ],
)
def test_a_partition_that_cannot_take_its_marker_now_is_tried_again(outcome: int | Exception) -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1, 2)
        brokers.outcomes[1, ("t", 0)] = [outcome] * 10
        brokers.commit(("t", 0), ("t", 1))
        await brokers.completed.wait()
        assert [each for each in brokers.written if each[0] == 1] == [(1, {("t", 0)})] * 11
        assert [each for each in brokers.written if each[0] == 2] == [(2, {("t", 1)})], "it has its marker"

    run(scenario())


def test_markers_follow_the_leader() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", NO_LEADER)
        brokers.commit(("t", 0))
        await asyncio.sleep(5)
        assert not brokers.requests
        assert brokers.sender.leaderless > 3
        brokers.lead("t", 0, 2)
        await brokers.completed.wait()
        assert brokers.written == [(2, {("t", 0)})]

    run(scenario())


def test_the_partitions_of_a_deleted_topic_need_no_marker() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1)
        brokers.create("u", NO_LEADER)
        brokers.commit(("t", 0), ("u", 0))
        await asyncio.sleep(5)
        assert not brokers.completed.is_set()
        brokers.apply(TopicDeleted("u", brokers.metadata.image.topics["u"].topic_id))
        await brokers.completed.wait()
        brokers.completed.clear()
        brokers.commit(("u", 0), name="of deleted topics only")
        await brokers.completed.wait()

    run(scenario())


@pytest.mark.parametrize("outcome", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT])
def test_a_partition_that_needs_no_marker_does_not_hold_up_the_transaction(outcome: ErrorCode) -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1)
        brokers.outcomes[1, ("t", 0)] = [outcome]
        brokers.commit(("t", 0))
        await brokers.completed.wait()
        assert len(brokers.requests) == 1

    run(scenario())


def test_a_replaced_coordinator_stops() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1, NO_LEADER)
        brokers.outcomes[1, ("t", 0)] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        brokers.commit(("t", 0), ("t", 1))
        await asyncio.sleep(60)
        assert len(brokers.requests) == 1
        assert len(brokers.sender) == 0
        assert not brokers.completed.is_set()

    run(scenario())


def test_nothing_is_written_for_a_shard_that_is_unloaded() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1, NO_LEADER)
        brokers.may_respond.clear()
        brokers.commit(("t", 0), ("t", 1))
        await asyncio.sleep(1)
        brokers.sender.stop(brokers.shard.state)
        brokers.may_respond.set()
        brokers.lead("t", 1, 1)
        await asyncio.sleep(60)
        assert brokers.written == [(1, {("t", 0)})]
        assert not brokers.completed.is_set()

    run(scenario())


def test_markers_that_are_being_written_are_not_written_twice() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1)
        brokers.may_respond.clear()
        brokers.commit(("t", 0))
        prepared = brokers.shard.transaction
        await asyncio.sleep(1)
        brokers.shard.run_timers()
        await asyncio.sleep(1)
        brokers.may_respond.set()
        await brokers.completed.wait()
        brokers.sender.enqueue(brokers.shard.state, ID, prepared)
        await asyncio.sleep(1)
        assert len(brokers.requests) == 1

    run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_completion_that_cannot_be_stored_now_is_tried_again(code: ErrorCode) -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", 1)
        brokers.refusals = [KafkaError(code)] * 5
        brokers.commit(("t", 0))
        await brokers.completed.wait()
        assert len(brokers.requests) == 1
        brokers.completed.clear()
        brokers.refusals = [KafkaError(ErrorCode.NOT_COORDINATOR)]
        brokers.commit(("t", 0), name="of another coordinator now")
        await asyncio.sleep(60)
        assert not brokers.completed.is_set()
        assert len(brokers.sender) == 0

    run(scenario())


def test_markers_share_requests_and_requests_are_bounded() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.create("t", *[1] * 1000)
        brokers.may_respond.clear()
        everything = [("t", index) for index in range(1000)]
        for number in range(7):
            brokers.commit(*everything, name=f"first {number}")
        await asyncio.sleep(1)
        assert [len(request.markers) for _, request in brokers.requests] == [PARTITIONS_PER_REQUEST // 1000, 2]
        for number in range(REQUESTS_IN_FLIGHT + 5):
            brokers.commit(("t", 0), name=f"later {number}")
            await asyncio.sleep(1)
        assert len(brokers.requests) == REQUESTS_IN_FLIGHT
        brokers.may_respond.set()
        await asyncio.sleep(1)
        assert len(brokers.requests[-1][1].markers) > 1, "those that waited share a request"
        assert len(brokers.sender) == 0

    run(scenario())
