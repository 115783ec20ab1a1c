"""Transactional ids expire after they have been inactive for long enough."""

from __future__ import annotations

import pytest

from parley.broker.coordinators.shard import RECORD_BYTES
from parley.broker.coordinators.transactions.transaction_records import transaction_tombstone
from parley.protocol.errors import ErrorCode
from parley.protocol.records.batch_header import HEADER_SIZE
from tests.broker.coordinators.transactions.driven_shard import ID, P0, DrivenShard, refusal

WEEK_MS = 7 * 24 * 3_600_000


def test_an_unused_id_expires_and_an_open_transaction_does_not() -> None:
    shard = DrivenShard()
    producer = shard.initialize()
    shard.add(shard.initialize(transactional_id="open"), P0, transactional_id="open")
    shard.now_ms += WEEK_MS - 1
    shard.expire()
    assert set(shard.state.transactions) == {ID, "open"}
    shard.now_ms += 1
    shard.expire()
    assert set(shard.state.transactions) == {"open"}
    assert refusal(lambda: shard.add(producer, P0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert set(shard.read_back().transactions) == {"open"}
    assert shard.initialize().producer_id != producer.producer_id


def test_many_ids_expire_in_batches() -> None:
    shard = DrivenShard()
    for number in range(2000):
        shard.initialize(transactional_id=f"{number}-{'x' * 200}")
    shard.now_ms += WEEK_MS
    shard.expire()
    assert 0 < len(shard.state.transactions) < 2000
    shard.expire()
    assert not shard.state.transactions


def test_ids_expire_in_batches_that_a_small_limit_of_the_topic_allows() -> None:
    shard = DrivenShard()
    shard.batch_bytes_max = 5_000
    for number in range(100):
        shard.initialize(transactional_id=f"{number}-{'x' * 100}")
    shard.now_ms += WEEK_MS
    while shard.state.transactions:
        before = len(shard.log)
        shard.expire()
        assert 0 < sum(len(key) for key, _ in shard.log[before:]) < 5_000


@pytest.mark.parametrize(("spare_bytes", "left"), [(0, 1), (-1, 2)])
def test_a_batch_of_expired_ids_is_as_large_as_the_topic_allows(spare_bytes: int, left: int) -> None:
    shard = DrivenShard()
    for number in range(3):
        shard.initialize(transactional_id=f"id{number}")
    key, _ = transaction_tombstone("id0")
    shard.batch_bytes_max = HEADER_SIZE + 2 * (len(key) + RECORD_BYTES) + spare_bytes
    shard.now_ms += WEEK_MS
    shard.expire()
    assert len(shard.state.transactions) == left
