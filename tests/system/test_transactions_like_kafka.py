"""Parley's transaction coordinator and Apache Kafka's respond alike to any order of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley import Broker
from parley.broker.coordinators.transactions import transaction, transaction_records
from parley.broker.coordinators.transactions.transaction import EPOCH_MAX, Transaction, TransactionState
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
)
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.schema import Request
from tests.support.kafka import Kafka4
from tests.support.kafka_answers import compare_with_kafka
from tests.system.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.system]

STEPS = 25
EARLY = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors after which a client retries. How often they occur depends on how long markers take."""

Identity = tuple[int, int]


class Script:
    """A random order of requests about one transactional id; the same seed gives the same requests."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client = client
        self.rng = Random(seed)
        self.name = f"id-{seed}"
        self.seen: list[int] = []
        """Producer ids in order of appearance. The transcript contains their positions instead."""
        self.given: list[Identity] = []

    async def find(self) -> None:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name])
        await self._send(request, 4, lambda response: response.coordinators[0].error_code)

    async def transcript(self) -> list[object]:
        await self.find()
        steps = (self.initialize, self.add, self.add, self.add_as_broker, self.end, self.end)
        return [[await self.rng.choice(steps)(), await self.state()] for _ in range(STEPS)]

    async def age(self) -> Record:
        """Begin, and return the record by which the producer has used almost all epochs of its id."""
        await self.find()
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=900_000)
        response = await self._send(request, 5, lambda response: response.error_code)
        epoch = EPOCH_MAX - self.rng.randrange(1, 6)
        self.given = [(response.producer_id, epoch)]
        self._place(response.producer_id)
        now_ms = int(time.time() * 1000)
        begun = Transaction(response.producer_id, epoch, TransactionState.EMPTY, 900_000, now_ms)
        return Record(0, now_ms, *transaction_record(self.name, begun))

    def _place(self, producer_id: int) -> int:
        if producer_id in (-1, 0):
            return producer_id
        if producer_id not in self.seen:
            self.seen.append(producer_id)
        return 1 + self.seen.index(producer_id)

    def _somebody(self) -> Identity:
        """Return the current producer most often, otherwise a fenced or nonexistent one."""
        if not self.given or self.rng.random() < 0.05:
            return 987_654_321, self.rng.randrange(3)
        return self.given[-1] if self.rng.random() < 0.8 else self.rng.choice(self.given)

    async def _send(self, request: Request, version: int, code: Callable[[Any], int]) -> Any:
        return await until(
            lambda response: code(response) not in EARLY,
            lambda: self.client.send(request, version=version),
            who=f"{self.name}: {request}",
        )

    async def state(self) -> object:
        """Return the state once no markers are being written."""
        state = await until(
            lambda state: not state.transaction_state.startswith("Prepare"),
            self._described,
            who=f"{self.name}: the markers of its transaction",
        )
        return (
            ErrorCode(state.error_code).name,
            state.transaction_state,
            self._place(state.producer_id),
            state.producer_epoch,
            [(topic.topic, sorted(topic.partitions)) for topic in state.topics],
            state.transaction_timeout_ms,
            state.transaction_start_time_ms > 0,
        )

    async def _described(self) -> Any:
        # A new coordinator reads the topic, while it already refuses to add a partition that does not exist.
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        response = await self._send(request, 0, lambda response: response.transaction_states[0].error_code)
        return response.transaction_states[0]

    async def initialize(self) -> object:
        expected = self._somebody() if self.rng.random() < 0.5 else (-1, -1)
        timeout_ms = self.rng.choice([900_001, 900_000, 800_000])
        if expected != (-1, -1) and await self._is_open_under_another_identity(expected):
            return "Parley fences an outdated producer here; Kafka aborts the transaction of the current one"
        if await self._repeats_the_last_usable_epoch(expected):
            return "Parley responds with the last usable epoch; Kafka with UNKNOWN_SERVER_ERROR"
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        response = await self._send(request, 5, lambda response: response.error_code)
        return self._identified(response)

    async def _is_open_under_another_identity(self, identity: Identity) -> bool:
        state = await self._described()
        return state.transaction_state == "Ongoing" and identity != (state.producer_id, state.producer_epoch)

    async def _repeats_the_last_usable_epoch(self, expected: Identity) -> bool:
        """Return True if the producer has, or gets, the last epoch that it may use, and repeats the request for it."""
        state = await self._described()
        epoch = state.producer_epoch + (state.transaction_state == "Ongoing")
        return epoch == EPOCH_MAX - 1 and expected == (state.producer_id, EPOCH_MAX - 2)

    def _identified(self, response: Any) -> object:
        if response.error_code == ErrorCode.NONE:
            self.given.append((response.producer_id, response.producer_epoch))
        code = ErrorCode(response.error_code).name
        return code, self._place(response.producer_id), response.producer_epoch

    def _topics(self) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
        partitions = self.rng.sample(range(5), self.rng.randrange(1, 3))  # partition 4 does not exist
        return [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=partitions)]

    async def add(self) -> object:
        producer_id, epoch = self._somebody()
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=self._topics(),
        )
        response = await self._send(
            request, self.rng.randrange(4), lambda response: _first(response.results_by_topic_v3_and_below)
        )
        return _codes(response.results_by_topic_v3_and_below)

    async def add_as_broker(self) -> object:
        producer_id, epoch = self._somebody()
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=self.rng.random() < 0.5,
            topics=self._topics(),
        )
        response = await self._send(
            AddPartitionsToTxnRequest(transactions=[transaction]),
            5,
            lambda response: _first(response.results_by_transaction[0].topic_results),
        )
        return _codes(response.results_by_transaction[0].topic_results)

    async def end(self) -> object:
        producer_id, epoch = self._somebody()
        version = self.rng.choice([5, 5, 5, 4, 3, 2, 1, 0])
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=self.rng.random() < 0.5,
        )
        response = await self._send(request, version, lambda response: response.error_code)
        return self._identified(response) if version == 5 else ErrorCode(response.error_code).name


def _first(topics: Any) -> int:
    return int(topics[0].results_by_partition[0].partition_error_code)


def _codes(topics: Any) -> list[tuple[str, int, str]]:
    return sorted(
        (topic.name, result.partition_index, ErrorCode(result.partition_error_code).name)
        for topic in topics
        for result in topic.results_by_partition
    )


async def create_topic(client: Client) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=4, replication_factor=1, assignments=[], configs=[]
    )
    await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))


async def transcripts(bootstrap_servers: str, seeds: range) -> list[list[object]]:
    async with Client(bootstrap_servers) as client:
        await create_topic(client)
        return [await Script(client, seed).transcript() for seed in seeds]


async def age(bootstrap_servers: str, seeds: range) -> list[Script]:
    """Let the producer of each script use almost all epochs of its id. The coordinator reads that when it restarts."""
    async with Client(bootstrap_servers, client_id="__admin_client") as client:  # it may write internal topics
        await create_topic(client)
        scripts = [Script(client, seed) for seed in seeds]
        records = build([await each.age() for each in scripts])
        data = ProduceRequest.PartitionProduceData(index=0, records=bytes(records))
        topic = ProduceRequest.TopicProduceData(name="__transaction_state", partition_data=[data])
        response: Any = await client.send(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), version=9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        return scripts


async def continued(bootstrap_servers: str, scripts: list[Script]) -> list[list[object]]:
    async with Client(bootstrap_servers) as client:
        for each in scripts:
            each.client = client
        return [await each.transcript() for each in scripts]


def compare(folder: Path, seeds: range) -> None:
    async def ours() -> list[list[object]]:
        async with Broker(transaction_state_log_num_partitions=1) as broker:
            return await transcripts(broker.bootstrap_servers, seeds)

    def theirs() -> list[list[object]]:
        kafka = Kafka4(folder)
        try:
            return asyncio.run(transcripts(kafka.bootstrap_servers, seeds))
        finally:
            kafka.close()

    compare_in_order(seeds, asyncio.run(ours()), theirs, "in any order")


def compare_at_the_end_of_the_epochs(folder: Path, seeds: range) -> None:
    async def ours() -> list[list[object]]:
        settings = {"transaction.state.log.num.partitions": 1}
        async with Broker(settings, data_dir=folder / "parley") as broker:
            scripts = await age(broker.bootstrap_servers, seeds)
        async with Broker(settings, data_dir=folder / "parley") as broker:
            return await continued(broker.bootstrap_servers, scripts)

    def theirs() -> list[list[object]]:
        kafka = Kafka4(folder)
        try:
            scripts = asyncio.run(age(kafka.bootstrap_servers, seeds))
            kafka.stop()
            kafka.start()
            return asyncio.run(continued(kafka.bootstrap_servers, scripts))
        finally:
            kafka.close()

    compare_in_order(seeds, asyncio.run(ours()), theirs, "at the end of the epochs")


def compare_in_order(
    seeds: range, ours: list[list[object]], theirs: Callable[[], list[list[object]]], what: str
) -> None:
    def check(answers: list[list[object]]) -> None:
        for seed, mine, wanted in zip(seeds, ours, answers, strict=True):
            assert [*map(unless_kafka_failed, mine, wanted)] == wanted, seed

    # The oldest epochs are written as transaction records.
    script = [Path(__file__), Path(transaction.__file__), Path(transaction_records.__file__)]
    compare_with_kafka(theirs, check, script=script, label=f"{what} {seeds}")


def unless_kafka_failed(mine: Any, theirs: Any) -> object:
    """Return our step with Kafka's response if Kafka itself failed: then only the states afterwards must be equal."""
    if isinstance(theirs, list) and isinstance(theirs[0], tuple) and theirs[0][0] == "UNKNOWN_SERVER_ERROR":
        assert mine[0][0] != "UNKNOWN_SERVER_ERROR"
        return [theirs[0], *mine[1:]]
    return mine


def test_any_order_of_requests_has_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(10))


def test_producers_continue_alike_when_the_epochs_of_their_ids_are_used_up(tmp_path: Path) -> None:
    compare_at_the_end_of_the_epochs(tmp_path, range(8))


@pytest.mark.soak
def test_many_orders_of_requests_have_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(10, 320))


@pytest.mark.soak
def test_many_producers_continue_alike_when_the_epochs_of_their_ids_are_used_up(tmp_path: Path) -> None:
    compare_at_the_end_of_the_epochs(tmp_path, range(8, 320))
