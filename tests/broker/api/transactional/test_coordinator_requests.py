"""AddPartitionsToTxn from leaders to coordinators: the destination, batching, and the meaning of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from parley.broker.api.transactional.coordinator_requests import REQUESTS_IN_FLIGHT, CoordinatorRequests, Errors
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.metadata.topic_names import TRANSACTIONS_TOPIC
from parley.broker.network.peers import Peers
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tests.broker.api.bench import BROKER, OTHER, Bench

PLACE = ("t", 0)


class Coordinator:
    """Responds as the test specifies, and counts requests."""

    def __init__(self) -> None:
        self.errors: Mapping[tuple[str, int], int] = {}
        self.top_error: int = ErrorCode.NONE
        self.fails: Exception | None = None
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.verified_at_once: list[tuple[str, ProducerIdentity, frozenset[tuple[str, int]]]] = []
        self.waits = False
        """True if the coordinator cannot verify at once."""
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    def verify_at_once(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[tuple[str, int]]
    ) -> dict[tuple[str, int], ErrorCode] | None:
        self.verified_at_once.append((transactional_id, producer, partitions))
        if self.waits:
            return None
        return {each: ErrorCode(self.errors.get(each, ErrorCode.NONE)) for each in partitions}

    async def add_for_brokers(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return await self.respond(request)

    async def respond(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.requests.append(request)
        await self.may_respond.wait()
        if self.fails is not None:
            raise self.fails
        return AddPartitionsToTxnResponse(
            error_code=self.top_error,
            results_by_transaction=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                                    partition_index=index,
                                    partition_error_code=self.errors.get((topic.name, index), ErrorCode.NONE),
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.transactions
            ],
        )

    async def ask(self, broker_id: int, request: Any, *, version: int, purpose: str) -> Any:
        assert (broker_id, version) == (OTHER, 5)
        return await self.respond(request)

    def ids(self) -> list[list[str]]:
        return [[each.transactional_id for each in request.transactions] for request in self.requests]


class RequestsBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.here, self.there = Coordinator(), Coordinator()
        self.requests = CoordinatorRequests(BROKER, self.metadata, cast("Peers", self.there), self.here, self.tasks)

    def ask(self, transactional_id: str = "x") -> asyncio.Task[Errors]:
        asking = self.requests.ask(transactional_id, 7, 0, [PLACE, ("t", 1), ("u", 0)], adds=False)
        return self.tasks.start(asking, name="ask", expected=(KafkaError,))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[RequestsBench]:
    bench = RequestsBench(tmp_path)
    yield bench
    await bench.tasks.close()


async def test_a_coordinator_here_is_asked_directly(bench: RequestsBench) -> None:
    await bench.create(TRANSACTIONS_TOPIC)
    bench.here.errors = {PLACE: ErrorCode.TRANSACTION_ABORTABLE}
    assert await bench.ask() == {PLACE: ErrorCode.TRANSACTION_ABORTABLE}
    (request,) = bench.here.requests
    (transaction,) = request.transactions
    assert (transaction.producer_id, transaction.producer_epoch, transaction.verify_only) == (7, 0, True)
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", [0, 1]), ("u", [0])]
    bench.here.fails = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert set((await bench.ask()).values()) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert not bench.there.requests


async def test_a_coordinator_here_verifies_at_once_unless_it_has_to_wait(bench: RequestsBench) -> None:
    await bench.create(TRANSACTIONS_TOPIC)
    bench.here.errors = {PLACE: ErrorCode.TRANSACTION_ABORTABLE}
    places = [PLACE, ("t", 1)]
    assert bench.requests.verify_at_once("x", 7, 3, places) == {PLACE: ErrorCode.TRANSACTION_ABORTABLE}
    assert bench.here.verified_at_once == [("x", ProducerIdentity(7, 3), frozenset(places))]
    bench.here.waits = True
    assert bench.requests.verify_at_once("x", 7, 3, places) is None
    assert not bench.here.requests


@pytest.mark.parametrize("leader", [OTHER, -1])
async def test_only_a_coordinator_here_verifies_at_once(bench: RequestsBench, leader: int) -> None:
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=leader)
    assert bench.requests.verify_at_once("x", 7, 3, [PLACE]) is None
    assert not bench.here.verified_at_once


async def test_without_a_coordinator_every_partition_is_refused(bench: RequestsBench) -> None:
    assert set((await bench.ask()).values()) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    await bench.create(TRANSACTIONS_TOPIC, leader=-1)
    assert await bench.ask() == dict.fromkeys([PLACE, ("t", 1), ("u", 0)], ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def test_verifications_that_arrive_during_a_request_share_the_next_one(
    bench: RequestsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.broker.api.transactional.coordinator_requests.REQUESTS_IN_FLIGHT", 1)
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=OTHER)
    bench.there.may_respond.clear()
    asking = [bench.ask("a")]
    while not bench.there.requests:
        await bench.idle()
    asking += [bench.ask(each) for each in "bcbd"]
    await bench.idle()
    bench.there.may_respond.set()
    assert await asyncio.gather(*asking) == [{}] * 5
    assert bench.there.ids() == [["a"], ["b", "c", "d"], ["b"]], "a request names each id once"


async def test_a_request_that_the_coordinator_holds_back_does_not_hold_up_others(bench: RequestsBench) -> None:
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=OTHER)
    bench.there.may_respond.clear()
    asking = [bench.ask(each) for each in "abcdefg"]
    while len(bench.there.requests) < 5:
        await bench.idle()
    await bench.idle()
    assert bench.there.ids() == [["a"], ["b"], ["c"], ["d"], ["e"]]
    bench.there.may_respond.set()
    assert await asyncio.gather(*asking) == [{}] * 7
    assert bench.there.ids()[5:] == [["f", "g"]]


async def test_a_client_that_disconnects_does_not_hold_up_the_others(bench: RequestsBench) -> None:
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=OTHER)
    gone, asking = bench.ask("a"), bench.ask("b")
    await bench.idle()
    gone.cancel()
    assert await asking == {}


async def test_a_large_request_leaves_partitions_to_the_next_one(
    bench: RequestsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.broker.api.transactional.coordinator_requests.PARTITIONS_MAX", 4)
    monkeypatch.setattr("parley.broker.api.transactional.coordinator_requests.REQUESTS_IN_FLIGHT", 1)
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=OTHER)
    assert await asyncio.gather(*(bench.ask(each) for each in "abcd")) == [{}] * 4
    assert bench.there.ids() == [["a"], ["b", "c"], ["d"]]


async def test_a_coordinator_that_cannot_be_reached_refuses_every_partition(bench: RequestsBench) -> None:
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=OTHER)
    bench.there.fails = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    assert set((await bench.ask()).values()) == {ErrorCode.NETWORK_EXCEPTION}
    bench.there.fails = None
    for top, meaning in (
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
    ):
        bench.there.top_error = top
        assert set((await bench.ask()).values()) == {meaning}
    bench.there.top_error = ErrorCode.NONE
    assert await bench.ask() == {}


async def test_an_error_code_of_a_newer_broker_does_not_leave_a_client_waiting(bench: RequestsBench) -> None:
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=OTHER)
    bench.there.errors = {PLACE: 9_999}
    for _ in range(REQUESTS_IN_FLIGHT + 1):
        assert await bench.ask() == {PLACE: ErrorCode.UNKNOWN_SERVER_ERROR}
    bench.there.top_error = 9_999
    assert set((await bench.ask()).values()) == {ErrorCode.UNKNOWN_SERVER_ERROR}


async def test_a_partition_that_the_response_does_not_name_is_refused(
    bench: RequestsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create(TRANSACTIONS_TOPIC)

    async def nothing(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse()

    monkeypatch.setattr(bench.here, "respond", nothing)
    assert set((await bench.ask()).values()) == {ErrorCode.UNKNOWN_SERVER_ERROR}


async def test_an_unexpected_failure_does_not_leave_a_client_waiting(bench: RequestsBench) -> None:
    await bench.create(TRANSACTIONS_TOPIC, replicas=(OTHER,), leader=OTHER)
    bench.there.fails = ZeroDivisionError()
    assert set((await bench.ask()).values()) == {ErrorCode.NETWORK_EXCEPTION}
    bench.there.fails = None
    assert await bench.ask() == {}
