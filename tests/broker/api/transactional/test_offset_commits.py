"""TxnOffsetCommit: verification of the group's offsets partition, and the errors of each partition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

import pytest

from parley.broker.api.transactional.coordinator_requests import CoordinatorRequests, Errors
from parley.broker.api.transactional.offset_commits import TransactionalOffsetsApi
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.api.transactional.verifying import Verifying
from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import TxnOffsetCommitRequest
from parley.protocol.topic_partition import TopicPartition
from tests.broker.api.bench import NOW_MS, Bench, context

Codes = dict[tuple[str, int], ErrorCode]
PLACE = (OFFSETS_TOPIC, 0)


class CommitsBench(Bench):
    """The handler, with this object as the coordinator of groups and as the way to coordinators of transactions."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.runtime = self
        self.settings: dict[str, str] = {}
        self.refusals: list[Errors] = []
        self.asked: list[tuple[list[tuple[str, int]], bool]] = []
        self.stored: list[tuple[Committer, ProducerIdentity, dict[TopicPartition, int]]] = []
        self.before_check: Callable[[], None] = lambda: None
        self.fails: KafkaError | None = None
        self.verifications = Verifications()
        self.api = TransactionalOffsetsApi(
            cast("GroupCoordinator", self),
            self.partitions,
            Verifying(self.verifications, cast("CoordinatorRequests", self), self.config),
            self.metadata,
            self.config,
            lambda: NOW_MS,
        )

    def config(self) -> BrokerConfig:
        return BrokerConfig.from_properties(self.settings)

    # The transaction coordinator

    async def ask(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[tuple[str, int]], *, adds: bool
    ) -> Errors:
        self.asked.append((list(partitions), adds))
        return self.refusals.pop(0) if self.refusals else {}

    # The group coordinator

    async def until_loaded(self, timeout_s: float, key: str) -> None:
        pass

    def shard_of(self, key: str) -> int:
        return 0

    def check_owned(self, group_id: str) -> None:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)

    async def commit_transactional(
        self,
        committer: Committer,
        producer: ProducerIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        check_verified: Callable[[], None],
    ) -> None:
        self.before_check()
        check_verified()
        if self.fails is not None:
            raise self.fails
        self.stored.append((committer, producer, {place: each.offset for place, each in offsets.items()}))

    # The client

    async def commit(
        self, *places: TopicPartition, version: int = 3, group_id: str = "g", metadata: str | None = ""
    ) -> Codes:
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group_id,
            producer_id=7,
            producer_epoch=2,
            generation_id=4,
            member_id="m",
            group_instance_id="i",
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=10 + index, committed_metadata=metadata
                        )
                    ],
                )
                for name, index in places
            ],
        )
        response = await self.api.commit(context(version, api_key=28), request)
        return {
            (topic.name, each.partition_index): ErrorCode(each.error_code)
            for topic in response.topics
            for each in topic.partitions
        }


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CommitsBench]:
    bench = CommitsBench(tmp_path)
    await bench.create(OFFSETS_TOPIC)
    await bench.create("t", 2)
    yield bench
    await bench.tasks.close()


async def test_offsets_are_verified_and_stored_in_the_transaction(bench: CommitsBench) -> None:
    assert await bench.commit(("t", 0), ("t", 1)) == {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NONE}
    assert bench.asked == [([PLACE], False)]
    assert bench.stored == [
        (Committer("g", "m", "i", 4), ProducerIdentity(7, 2), {("t", 0): 10, ("t", 1): 11}),
    ]
    await bench.commit(("t", 0), version=5)
    assert bench.asked[1:] == [([PLACE], True)], "this version lets the broker add the partition"
    bench.write_in_transaction(OFFSETS_TOPIC, 7, epoch=2)
    await bench.commit(("t", 0), version=5)
    assert len(bench.asked) == 2, "the log knows the transaction"
    assert len(bench.stored) == 3


async def test_a_partition_with_an_error_is_left_out(bench: CommitsBench) -> None:
    assert await bench.commit(("t", 0), ("t", 5), ("nothing", 0)) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nothing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    ((_, _, offsets),) = bench.stored
    assert offsets == {("t", 0): 10}
    bench.settings = {"offset.metadata.max.bytes": "3"}
    assert await bench.commit(("t", 0), metadata="long") == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    refused = await bench.commit(("t", 0), group_id="", metadata="long")
    assert refused == {("t", 0): ErrorCode.INVALID_GROUP_ID}, "errors of the group come first"
    assert await bench.commit(("t", 0), metadata=None) == {("t", 0): ErrorCode.NONE}
    assert await bench.commit(("t", 0), group_id="") == {("t", 0): ErrorCode.INVALID_GROUP_ID}


@pytest.mark.parametrize(
    ("version", "refusal", "error"),
    [
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (5, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (1, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (3, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
async def test_a_refusal_by_the_transaction_coordinator_becomes_an_error_of_the_version(
    bench: CommitsBench, version: int, refusal: ErrorCode, error: ErrorCode
) -> None:
    bench.refusals = [{PLACE: refusal}]
    assert await bench.commit(("t", 0), version=version) == {("t", 0): error}
    assert bench.stored == []


async def test_a_commit_that_was_verified_before_a_marker_is_retried(bench: CommitsBench) -> None:
    bench.before_check = lambda: bench.verifications.settle(bench.partition(OFFSETS_TOPIC), 7)
    assert await bench.commit(("t", 0), version=5) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert bench.stored == []


async def test_verification_can_be_switched_off(bench: CommitsBench) -> None:
    bench.settings = {"transaction.partition.verification.enable": "false"}
    assert await bench.commit(("t", 0)) == {("t", 0): ErrorCode.NONE}
    assert bench.asked == []


async def test_an_error_of_the_group_is_that_of_its_partitions(bench: CommitsBench) -> None:
    for raised, code in (
        (ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
        (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ):
        bench.fails = KafkaError(raised)
        assert await bench.commit(("t", 0)) == {("t", 0): code}
    bench.delete(OFFSETS_TOPIC)
    assert await bench.commit(("t", 0)) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
