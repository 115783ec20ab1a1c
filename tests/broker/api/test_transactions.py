"""The requests of transactional producers and of tools, in every version, on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley import Broker
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.metrics.broker_metrics import marker_metrics, transaction_metrics
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
)


class Transactions:
    """Requests of a client about transactions. The topic ``t`` has two partitions."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self.client = client

    async def find(self, name: str = "mine") -> ErrorCode:
        (found,) = (await self.client.send(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]))).coordinators
        return ErrorCode(found.error_code)

    async def initialize(
        self, expected: tuple[int, int] = (-1, -1), name: str | None = "mine", *, version: int = 5, **more: Any
    ) -> ProducerIdentity | ErrorCode:
        fields = {"transaction_timeout_ms": 60_000, **more}
        if version >= 3:
            fields |= {"producer_id": expected[0], "producer_epoch": expected[1]}
        response: Any = await self.client.send(InitProducerIdRequest(transactional_id=name, **fields), version=version)
        code = ErrorCode(response.error_code)
        return code or ProducerIdentity(response.producer_id, response.producer_epoch)

    async def add(
        self, producer: ProducerIdentity, *partitions: int, topic: str = "t", name: str = "mine", version: int = 3
    ) -> dict[int, ErrorCode]:
        """AddPartitionsToTxn as clients send it."""
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=topics,
        )
        response: Any = await self.client.send(request, version=version)
        (result,) = response.results_by_topic_v3_and_below
        return {each.partition_index: ErrorCode(each.partition_error_code) for each in result.results_by_partition}

    async def end(
        self, producer: ProducerIdentity, name: str = "mine", *, committed: bool = True, version: int = 5
    ) -> ProducerIdentity | ErrorCode:
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
        response: Any = await self.client.send(request, version=version)
        return ErrorCode(response.error_code) or ProducerIdentity(response.producer_id, response.producer_epoch)

    async def completed(self, name: str = "mine") -> str:
        """Return the state when the markers are written."""
        while (state := (await self.described(name)).transaction_state).startswith("Prepare"):
            pass
        return str(state)

    async def described(self, name: str = "mine") -> Any:
        response: Any = await self.client.send(DescribeTransactionsRequest(transactional_ids=[name]))
        (state,) = response.transaction_states
        return state

    async def listed(self, *states: str, producers: tuple[int, ...] = (), **more: Any) -> dict[str, str]:
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producers), **more)
        response: Any = await self.client.send(request)
        assert response.error_code == ErrorCode.NONE
        return {each.transactional_id: each.transaction_state for each in response.transaction_states}


@pytest.fixture
async def transactions() -> AsyncIterator[Transactions]:
    async with (
        Broker(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=2) as broker,
        Client(broker.bootstrap_servers) as client,
    ):
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[]
        )
        await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        asked = Transactions(broker, client)
        assert await asked.find() == ErrorCode.NONE
        yield asked


async def begun(transactions: Transactions, name: str = "mine") -> ProducerIdentity:
    producer = await transactions.initialize(name=name)
    assert isinstance(producer, ProducerIdentity)
    return producer


async def test_a_transaction_from_its_beginning_to_its_end(transactions: Transactions) -> None:
    producer = await begun(transactions)
    assert await transactions.add(producer, 0, 1) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    open_one = await transactions.described()
    assert (open_one.transaction_state, open_one.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert [(topic.topic, topic.partitions) for topic in open_one.topics] == [("t", [0, 1])]
    assert open_one.transaction_start_time_ms > 0
    assert await transactions.end(producer) == (producer.producer_id, 1)
    assert await transactions.completed() == "CompleteCommit"
    log = transactions.broker.server.parts.partitions.find("t", 1).log
    assert log.log_end_offset == 1, "the marker"


@pytest.mark.parametrize("version", range(7))
async def test_every_version_of_init_producer_id(transactions: Transactions, version: int) -> None:
    first = await transactions.initialize(version=version)
    assert isinstance(first, ProducerIdentity)
    assert await transactions.initialize(version=version) == (first.producer_id, 1)
    if version >= 3:
        fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert await transactions.initialize(first, version=version) == fenced
        for half in ((first.producer_id, -1), (-1, 3)):
            assert await transactions.initialize(half, version=version) == ErrorCode.INVALID_REQUEST
        assert await transactions.initialize((-7, -7), version=version) == fenced, "as in Kafka"
    for timeout_ms in (0, -1, 900_001):
        refused = await transactions.initialize(version=version, transaction_timeout_ms=timeout_ms)
        assert refused == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert await transactions.initialize(name="", version=version) == ErrorCode.INVALID_REQUEST


async def test_two_phase_commit_is_for_clusters_that_enable_it(transactions: Transactions) -> None:
    refused = await transactions.initialize(version=6, enable2_pc=True)
    assert refused == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await transactions.initialize(version=6, keep_prepared_txn=True) == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", range(4))
async def test_every_version_of_adding_partitions(transactions: Transactions, version: int) -> None:
    producer = await begun(transactions)
    later = ProducerIdentity(producer.producer_id, 7)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await transactions.add(later, 0, version=version) == {0: fenced}
    assert await transactions.add(producer, 0, 9, version=version) == {
        0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        internal = await transactions.add(producer, 0, topic=topic, version=version)
        assert internal == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert await transactions.add(producer, 0, name="", version=version) == {0: ErrorCode.INVALID_REQUEST}
    assert (await transactions.described()).transaction_state == "Empty"
    assert await transactions.add(producer, 0, version=version) == {0: ErrorCode.NONE}


@pytest.mark.parametrize("version", [4, 5])
async def test_brokers_add_and_verify_for_several_transactions(transactions: Transactions, version: int) -> None:
    mine, other = await begun(transactions), await begun(transactions, "other")
    await begun(transactions, "third")

    def asked(
        name: str, producer: ProducerIdentity, index: int, *, verifies: bool
    ) -> AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            verify_only=verifies,
            topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[index])],
        )

    request = AddPartitionsToTxnRequest(
        transactions=[
            asked("mine", mine, 0, verifies=False),
            asked("other", other, 0, verifies=True),
            asked("third", mine, 0, verifies=True),
            asked("", other, 0, verifies=True),
            asked("absent", other, 5, verifies=True),
        ]
    )
    response: Any = await transactions.client.send(request, version=version)
    codes = {
        each.transactional_id: ErrorCode(each.topic_results[0].results_by_partition[0].partition_error_code)
        for each in response.results_by_transaction
    }
    assert codes == {
        "mine": ErrorCode.NONE,
        "other": ErrorCode.TRANSACTION_ABORTABLE,
        "third": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        "": ErrorCode.INVALID_REQUEST,
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [topic.partitions for topic in (await transactions.described()).topics] == [[0]]


@pytest.mark.parametrize("version", range(5))
async def test_every_version_of_adding_offsets(transactions: Transactions, version: int) -> None:
    producer = await begun(transactions)

    async def add(epoch: int) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id="mine", producer_id=producer.producer_id, producer_epoch=epoch, group_id="g"
        )
        return ErrorCode((await transactions.client.send(request, version=version)).error_code)

    # No group has committed offsets yet, or looked for its coordinator.
    assert await add(7) == (ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH)
    assert await add(0) == ErrorCode.NONE
    assert [topic.topic for topic in (await transactions.described()).topics] == ["__consumer_offsets"]


@pytest.mark.parametrize("version", range(6))
async def test_every_version_of_ending(transactions: Transactions, version: int) -> None:
    producer = await begun(transactions)
    await transactions.add(producer, 0)
    later = ProducerIdentity(producer.producer_id, 7)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await transactions.end(later, version=version) == fenced
    following = await transactions.end(producer, version=version)
    assert following == ((producer.producer_id, 1) if version >= 5 else (-1, -1))
    assert await transactions.completed() == "CompleteCommit"
    assert (await transactions.described()).producer_epoch == (1 if version >= 5 else 0)


async def test_transactional_ids_are_listed_by_filters(transactions: Transactions) -> None:
    assert await transactions.listed() == {}
    mine, other = await begun(transactions), await begun(transactions, "other")
    await transactions.add(mine, 0)
    assert await transactions.listed() == {"mine": "Ongoing", "other": "Empty"}
    assert await transactions.listed("Ongoing") == {"mine": "Ongoing"}
    assert await transactions.listed("Dead", "PrepareEpochFence") == {}
    assert await transactions.listed("Nonsense") == {}
    assert await transactions.listed(producers=(other.producer_id,)) == {"other": "Empty"}
    assert "mine" not in await transactions.listed("Ongoing", duration_filter=3_600_000)
    assert await transactions.listed(transactional_id_pattern="m.*|unknown") == {"mine": "Ongoing"}
    assert await transactions.listed(transactional_id_pattern="(?i)M\\pL+") == {"mine": "Ongoing"}
    assert await transactions.listed(transactional_id_pattern="in") == {}, "the whole id must match"
    assert await transactions.listed(transactional_id_pattern="") == {"mine": "Ongoing", "other": "Empty"}
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern="(")
    assert (await transactions.client.send(request)).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    request = ListTransactionsRequest(state_filters=["Ongoing", "Nonsense", "Nonsense"], producer_id_filters=[])
    response: Any = await transactions.client.send(request)
    assert response.unknown_state_filters == ["Nonsense"]


async def test_transactions_are_counted_by_state(transactions: Transactions) -> None:
    mine = await begun(transactions)
    await begun(transactions, "other")
    await transactions.add(mine, 0)
    coordinator = transactions.broker.server.parts.transactions

    def counts() -> dict[str, int]:
        numbers: Any = dict(transaction_metrics(coordinator))
        return {state: each.transactional_ids for (state,), each in numbers.items() if each.transactional_ids}

    assert counts() == {"Ongoing": 1, "Empty": 1}
    await transactions.end(mine)
    await transactions.completed()
    assert counts() == {"CompleteCommit": 1, "Empty": 1}
    assert (marker_metrics(coordinator).transactions, marker_metrics(coordinator).leaderless) == (0, 0)


async def test_ids_without_a_state_are_not_found(transactions: Transactions) -> None:
    assert (await transactions.described("unknown")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (await transactions.described("")).error_code == ErrorCode.INVALID_REQUEST


async def test_clients_learn_that_each_transaction_has_its_own_epoch(transactions: Transactions) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    known = {"group.version": 1, "share.version": 1, "streams.version": 1, "transaction.version": 2}
    features = [(name, 0, level) for name, level in known.items()]
    for version, supported in ((3, []), (4, features)):
        response: Any = await transactions.client.send(request, version=version)
        assert {each.name: each.max_version_level for each in response.finalized_features} == known
        assert response.finalized_features_epoch >= 0
        assert [(each.name, each.min_version, each.max_version) for each in response.supported_features] == supported


async def test_a_topic_deleted_under_a_coordinator_ends_its_transactions(transactions: Transactions) -> None:
    producer = await begun(transactions)
    await transactions.client.send(DeleteTopicsRequest(topic_names=[TRANSACTIONS_TOPIC], timeout_ms=5000), version=5)
    assert await transactions.initialize() == ErrorCode.NOT_COORDINATOR
    assert await transactions.find() == ErrorCode.NONE
    assert await transactions.end(producer) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert isinstance(await transactions.initialize(), ProducerIdentity)
