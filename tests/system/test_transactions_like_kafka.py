"""Parley's transaction coordinator and Apache Kafka's respond alike to any order of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
)
from parley.protocol.schema import Request
from tests.support.kafka import Kafka4

pytestmark = [pytest.mark.slow, pytest.mark.system]

STEPS = 25
EARLY = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors with which a client tries again. How often they come depends on the time that markers take."""

Identity = tuple[int, int]


class Script:
    """A random order of requests about one transactional id; the same seed gives the same requests."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client = client
        self.rng = Random(seed)
        self.name = f"id-{seed}"
        self.seen: list[int] = []
        """Producer ids, in the order in which they appeared. The transcript has their places."""
        self.given: list[Identity] = []

    async def transcript(self) -> list[object]:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name])
        await self._send(find, 4, lambda response: response.coordinators[0].error_code)
        steps = (self.initialize, self.add, self.add, self.add_as_broker, self.end, self.end)
        return [[await self.rng.choice(steps)(), await self.state()] for _ in range(STEPS)]

    def _place(self, producer_id: int) -> int:
        if producer_id in (-1, 0):
            return producer_id
        if producer_id not in self.seen:
            self.seen.append(producer_id)
        return 1 + self.seen.index(producer_id)

    def _somebody(self) -> Identity:
        """The current producer most often, else one that was fenced, or one that does not exist."""
        if not self.given or self.rng.random() < 0.05:
            return 987_654_321, self.rng.randrange(3)
        return self.given[-1] if self.rng.random() < 0.8 else self.rng.choice(self.given)

    async def _send(self, request: Request, version: int, code: Callable[[Any], int]) -> Any:
        while code(response := await self.client.send(request, version=version)) in EARLY:
            pass
        return response

    async def state(self) -> object:
        """The state once no markers are being written."""
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        response: Any = None
        while response is None or response.transaction_states[0].transaction_state.startswith("Prepare"):
            response = await self.client.send(request)
        (state,) = response.transaction_states
        return (
            ErrorCode(state.error_code).name,
            state.transaction_state,
            self._place(state.producer_id),
            state.producer_epoch,
            [(topic.topic, sorted(topic.partitions)) for topic in state.topics],
            state.transaction_timeout_ms,
            state.transaction_start_time_ms > 0,
        )

    async def initialize(self) -> object:
        expected = self._somebody() if self.rng.random() < 0.5 else (-1, -1)
        timeout_ms = self.rng.choice([900_001, 900_000, 800_000])
        if expected != (-1, -1) and await self._is_open_under_another_identity(expected):
            return "Parley fences an outdated producer here; Kafka aborts the transaction of the current one"
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        response = await self._send(request, 5, lambda response: response.error_code)
        return self._identified(response)

    async def _is_open_under_another_identity(self, identity: Identity) -> bool:
        response: Any = await self.client.send(DescribeTransactionsRequest(transactional_ids=[self.name]))
        (state,) = response.transaction_states
        return state.transaction_state == "Ongoing" and identity != (state.producer_id, state.producer_epoch)

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


async def transcripts(bootstrap_servers: str, seeds: range) -> list[list[object]]:
    async with Client(bootstrap_servers) as client:
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=4, replication_factor=1, assignments=[], configs=[]
        )
        await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        return [await Script(client, seed).transcript() for seed in seeds]


def compare(folder: Path, seeds: range) -> None:
    async def ours() -> list[list[object]]:
        async with Broker(transaction_state_log_num_partitions=1) as broker:
            return await transcripts(broker.bootstrap_servers, seeds)

    kafka = Kafka4(folder)
    try:
        theirs = asyncio.run(transcripts(kafka.bootstrap_servers, seeds))
    finally:
        kafka.close()
    for seed, mine, wanted in zip(seeds, asyncio.run(ours()), theirs, strict=True):
        assert mine == wanted, seed


def test_any_order_of_requests_has_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(20))


@pytest.mark.soak
def test_many_orders_of_requests_have_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(20, 320))
