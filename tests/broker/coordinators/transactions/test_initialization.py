"""InitProducerId: new producers fence older ones, a producer may continue, exhausted ids are replaced."""

from __future__ import annotations

import pytest

from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.transactions.transaction import EPOCH_MAX, TransactionState
from parley.protocol.errors import ErrorCode
from tests.broker.coordinators.transactions.driven_shard import P0, DrivenShard, refusal


def test_each_new_producer_gets_the_next_epoch_of_the_same_id() -> None:
    shard = DrivenShard()
    first = shard.initialize()
    assert first.producer_epoch == 0
    assert shard.initialize() == (first.producer_id, 1)
    assert shard.transaction.state is TransactionState.EMPTY
    assert refusal(lambda: shard.add(first, P0)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_continues_with_the_identity_it_names_and_may_retry() -> None:
    shard = DrivenShard()
    mine = shard.initialize()
    continued = shard.initialize(mine)
    assert continued == (mine.producer_id, 1)
    assert shard.initialize(mine) == continued, "the response was lost"
    assert shard.initialize(mine) == continued, "and that to the retry"
    shard.state = shard.read_back()
    assert shard.initialize(mine) == continued, "the response was lost with the coordinator"
    shard.initialize()
    for old in (mine, continued, ProducerIdentity(mine.producer_id + 1, 2)):
        assert refusal(lambda old=old: shard.initialize(old)) is ErrorCode.PRODUCER_FENCED  # type: ignore[misc]


def test_an_open_transaction_is_aborted_and_the_producer_must_retry() -> None:
    shard = DrivenShard()
    old = shard.initialize()
    shard.add(old, P0)
    assert refusal(shard.initialize) is ErrorCode.CONCURRENT_TRANSACTIONS
    aborted = shard.transaction
    assert (aborted.state, aborted.identity) == (TransactionState.PREPARE_ABORT, (old.producer_id, 1))
    assert [each for each, _ in shard.markers.sent] == ["payments"]
    assert refusal(shard.initialize) is ErrorCode.CONCURRENT_TRANSACTIONS, "markers are being written"
    shard.complete()
    assert shard.initialize() == (old.producer_id, 2)
    assert refusal(lambda: shard.end(old, committed=True)) is ErrorCode.PRODUCER_FENCED


def test_a_request_that_was_overtaken_does_not_abort_the_transaction_opened_since() -> None:
    shard = DrivenShard()
    first = shard.initialize()
    second = shard.initialize(first)
    shard.add(second, P0)
    assert refusal(lambda: shard.initialize(first)) is ErrorCode.PRODUCER_FENCED
    assert shard.transaction.state is TransactionState.ONGOING
    assert refusal(lambda: shard.initialize(second)) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("names_itself", [False, True])
def test_an_exhausted_id_is_replaced(names_itself: bool) -> None:
    shard = DrivenShard()
    old = shard.initialize()
    shard.set(producer_epoch=EPOCH_MAX - 1)
    old = shard.transaction.identity
    new = shard.initialize(old if names_itself else None)
    assert new.producer_id != old.producer_id
    assert new.producer_epoch == 0
    if names_itself:
        assert shard.initialize(old) == new, "a retry"
        assert refusal(lambda: shard.initialize(old)) is ErrorCode.PRODUCER_FENCED, "as in Kafka: only one"
    else:
        assert refusal(lambda: shard.initialize(old)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_was_fenced_at_its_last_epoch_gets_a_new_id() -> None:
    shard = DrivenShard()
    old = shard.initialize()
    shard.set(producer_epoch=EPOCH_MAX - 1)
    old = shard.transaction.identity
    shard.add(old, P0)
    shard.now_ms += 60_001
    shard.run_timers()
    assert shard.transaction.producer_epoch == EPOCH_MAX
    shard.complete()
    new = shard.initialize(old)
    assert new.producer_id != old.producer_id
    assert new.producer_epoch == 0


def test_a_producer_that_aborts_its_transaction_at_its_last_epoch_gets_a_new_id_once() -> None:
    """As in Kafka: the coordinator has taken the request that returns the new id for a retry."""
    shard = DrivenShard()
    shard.initialize()
    shard.set(producer_epoch=EPOCH_MAX - 1)
    old = shard.transaction.identity
    shard.add(old, P0)
    assert refusal(lambda: shard.initialize(old)) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    new = shard.initialize(old)
    assert new.producer_id != old.producer_id
    assert new.producer_epoch == 0
    shard.state = shard.read_back()
    assert refusal(lambda: shard.initialize(old)) is ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: shard.end(old, committed=False)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.initialize(new) == (new.producer_id, 1)


def test_the_number_of_transactional_ids_is_limited() -> None:
    shard = DrivenShard(**{"transactional.ids.max.per.partition": 2})
    shard.initialize(transactional_id="a")
    shard.initialize(transactional_id="b")
    assert refusal(lambda: shard.initialize(transactional_id="c")) is ErrorCode.POLICY_VIOLATION
    shard.initialize(transactional_id="a")
