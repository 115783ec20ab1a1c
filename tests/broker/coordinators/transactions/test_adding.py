"""AddPartitionsToTxn: adding partitions, and verifying them for other brokers."""

from __future__ import annotations

import pytest

from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.transactions.transaction import TransactionState
from parley.protocol.errors import ErrorCode
from tests.broker.coordinators.transactions.driven_shard import P0, P1, DrivenShard, refusal


def test_the_first_partition_opens_the_transaction_and_known_ones_store_nothing() -> None:
    shard = DrivenShard()
    producer = shard.initialize()
    shard.now_ms += 5
    shard.add(producer, P0)
    assert shard.transaction.state is TransactionState.ONGOING
    assert shard.transaction.started_ms == shard.now_ms
    written = len(shard.log)
    shard.add(producer, P0)
    assert len(shard.log) == written
    opened_ms, shard.now_ms = shard.now_ms, shard.now_ms + 5
    shard.add(producer, P1)
    assert shard.transaction.partitions == {P0, P1}
    assert shard.transaction.started_ms == opened_ms
    assert shard.transaction.updated_ms == shard.now_ms


@pytest.mark.parametrize("verifies", [False, True])
def test_only_the_current_producer_has_the_transaction(verifies: bool) -> None:
    shard = DrivenShard()
    call = shard.verify if verifies else shard.add
    assert refusal(lambda: call(ProducerIdentity(1, 0), P0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = shard.initialize()
    shard.add(producer, P0)
    other_id = ProducerIdentity(producer.producer_id + 1, 0)
    assert refusal(lambda: call(other_id, P0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    later = ProducerIdentity(producer.producer_id, 1)
    assert refusal(lambda: call(later, P0)) is ErrorCode.PRODUCER_FENCED
    following = shard.end(producer, committed=True)
    assert refusal(lambda: call(following, P0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: call(producer, P0)) is ErrorCode.PRODUCER_FENCED


def test_verification_tells_partitions_apart() -> None:
    shard = DrivenShard()
    producer = shard.initialize()
    assert shard.verify(producer, P0) == {P0: ErrorCode.TRANSACTION_ABORTABLE}
    shard.add(producer, P0)
    assert shard.verify(producer, P0, P1) == {P0: ErrorCode.NONE, P1: ErrorCode.TRANSACTION_ABORTABLE}
    following = shard.end(producer, committed=True)
    shard.complete()
    assert shard.verify(following, P0) == {P0: ErrorCode.TRANSACTION_ABORTABLE}


@pytest.mark.slow
def test_a_transaction_that_could_not_be_stored_when_it_ends_is_not_opened() -> None:
    shard = DrivenShard()
    producer = shard.initialize()
    shard.batch_bytes_max = 4096
    added = 0
    while not (code := refusal(lambda: shard.add(producer, ("t", added)))):  # noqa: B023
        added += 1
    assert code is ErrorCode.POLICY_VIOLATION
    shard.end(producer, committed=True)
    key, value = shard.log[-1]
    assert len(key) + len(value or b"") < 4096 - 100
