"""AddPartitionsToTxn at the coordinator: which requests wait for the markers of the previous transaction, and what a
leader on the same broker learns without waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from parley.broker.api import transactions
from parley.broker.api.find_coordinator import InternalTopicCreation
from parley.broker.api.transactions import PARTITIONS_PER_TURN, TransactionsApi
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator
from parley.broker.runtime import steps
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tests.broker.api.bench import Bench, context


class Coordinator:
    """Records which of its methods are called."""

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.did_not_wait: list[str] = []
        self.may_reply = asyncio.Event()
        self.may_reply.set()

    async def add_when_ended(self, transactional_id: str, *details: Any) -> None:
        self.waited.append(transactional_id)

    def verify_at_once(self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[Any]) -> Any:
        if transactional_id == "loading":
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return dict.fromkeys(partitions, ErrorCode.NONE)

    async def add(self, transactional_id: str, *details: Any) -> None:
        self.did_not_wait.append(transactional_id)
        await self.may_reply.wait()


def api_of(coordinator: Coordinator, bench: Bench) -> TransactionsApi:
    creation = cast("InternalTopicCreation", None)  # no group's offsets are added here
    return TransactionsApi(cast("TransactionCoordinator", coordinator), bench.metadata, creation)


def adding(*ids: str) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
    transactions = [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=each, producer_id=7, producer_epoch=0, topics=[topic]
        )
        for each in ids
    ]
    return AddPartitionsToTxnRequest(transactions=transactions)


async def test_all_transactions_of_a_request_are_decided_before_it_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t")
    coordinator = Coordinator()
    coordinator.may_reply.clear()
    response = api_of(coordinator, bench).add_partitions(context(5, api_key=24), adding("a", "b"))
    assert not isinstance(response, AddPartitionsToTxnResponse)
    assert coordinator.did_not_wait == ["a", "b"]
    coordinator.may_reply.set()
    results = (await response).results_by_transaction
    codes = [
        place.partition_error_code
        for each in results
        for topic in each.topic_results
        for place in topic.results_by_partition
    ]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    await bench.tasks.close()


async def test_a_request_waits_only_if_no_other_transaction_would_wait_with_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t")

    async def add(*ids: str) -> Coordinator:
        coordinator = Coordinator()
        response = api_of(coordinator, bench).add_partitions(context(5, api_key=24), adding(*ids))
        assert isinstance(response, AddPartitionsToTxnResponse), "nothing has to wait"
        assert [each.transactional_id for each in response.results_by_transaction] == list(ids)
        return coordinator

    assert (await add("a")).waited == ["a"]
    assert (await add("a", "b")).did_not_wait == ["a", "b"]
    await bench.tasks.close()


async def test_a_leader_at_the_same_broker_gets_an_error_for_each_partition(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t")
    api = api_of(Coordinator(), bench)
    producer, places = ProducerIdentity(7, 0), frozenset({("t", 0)})
    assert api.verify_at_once("a", producer, places) == {("t", 0): ErrorCode.NONE}
    assert api.verify_at_once("loading", producer, places) == {("t", 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert api.verify_at_once("a", producer, frozenset({("missing", 0)})) is None, "the request says why"
    await bench.tasks.close()


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("topic", ["t", "missing"])
async def test_very_many_partitions_are_added_in_turns(
    version: int, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    async def turn() -> None:
        events.append("turn")

    def obstacle(*asked: Any) -> ErrorCode:
        events.append("look-up")
        return real_obstacle(*asked)

    real_obstacle = transactions._obstacle
    monkeypatch.setattr(transactions, "_obstacle", obstacle)
    monkeypatch.setattr(steps, "next_turn", turn)
    bench = Bench(tmp_path)
    await bench.create("t", partitions=3)
    many = list(range(3 * PARTITIONS_PER_TURN)) if topic == "missing" else [0, 1, 2] * PARTITIONS_PER_TURN
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=many)]
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="a", v3_and_below_topics=topics)
    if version >= 4:
        (transaction,) = adding("a").transactions
        transaction.topics = topics
        request = AddPartitionsToTxnRequest(transactions=[transaction])
    response: Any = api_of(Coordinator(), bench).add_partitions(context(version, api_key=24), request)
    results = response.results_by_topic_v3_and_below or response.results_by_transaction[0].topic_results
    assert [(each.name, [one.partition_index for one in each.results_by_partition]) for each in results] == [
        (topic, list(dict.fromkeys(many)))
    ]
    expected = ErrorCode.NONE if topic == "t" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {one.partition_error_code for one in results[0].results_by_partition} == {expected}
    turns = "".join("." if each == "look-up" else "|" for each in events).split("|")
    assert max(map(len, turns)) == PARTITIONS_PER_TURN, "partitions looked up in one turn"
    assert len(turns) > 3 + (3 if topic == "missing" else 0), "the results are made in turns, too"
    await bench.tasks.close()


async def test_offsets_cannot_be_added_while_their_topic_cannot_be_created(tmp_path: Path) -> None:
    class Creation:
        async def create_internal_topic(self, name: str) -> None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no {name} now")

    bench = Bench(tmp_path)
    coordinator = Coordinator()
    api = TransactionsApi(cast("TransactionCoordinator", coordinator), bench.metadata, Creation())
    request = AddOffsetsToTxnRequest(transactional_id="a", producer_id=7, producer_epoch=0, group_id="g")
    response = api.add_offsets(context(3, api_key=25), request)
    assert not isinstance(response, AddOffsetsToTxnResponse), "a creation needs a task"
    assert (await response).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await bench.create("__consumer_offsets")
    response = api.add_offsets(context(3, api_key=25), request)
    assert isinstance(response, AddOffsetsToTxnResponse)
    assert (response.error_code, coordinator.waited) == (ErrorCode.NONE, ["a"])
    await bench.tasks.close()
