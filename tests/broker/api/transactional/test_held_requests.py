"""AddPartitionsToTxn at the coordinator: which requests wait for the markers of the previous transaction."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from parley.broker.api.transactions import TransactionsApi
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator
from parley.protocol.messages.transactions import AddPartitionsToTxnRequest
from tests.broker.api.bench import Bench, context


class Coordinator:
    """Notes which of its methods are called."""

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.did_not_wait: list[str] = []

    async def add_when_ended(self, transactional_id: str, *details: Any) -> None:
        self.waited.append(transactional_id)

    def add(self, transactional_id: str, *details: Any) -> asyncio.Future[None]:
        self.did_not_wait.append(transactional_id)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def test_a_request_waits_only_if_no_other_transaction_would_wait_with_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t")
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])

    async def add(*ids: str) -> Coordinator:
        coordinator = Coordinator()
        api = TransactionsApi(cast("TransactionCoordinator", coordinator), bench.metadata)
        transactions = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=each, producer_id=7, producer_epoch=0, topics=[topic]
            )
            for each in ids
        ]
        response = await api.add_partitions(
            context(5, api_key=24), AddPartitionsToTxnRequest(transactions=transactions)
        )
        assert [each.transactional_id for each in response.results_by_transaction] == list(ids)
        return coordinator

    assert (await add("a")).waited == ["a"]
    assert (await add("a", "b")).did_not_wait == ["a", "b"]
    await bench.tasks.close()
