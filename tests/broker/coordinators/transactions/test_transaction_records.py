"""The records of ``__transaction_state``: Kafka's formats, and what is rejected."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.coordinators.transactions.transaction import EPOCH_MAX, Transaction, TransactionState
from parley.broker.coordinators.transactions.transaction_records import (
    STATUS,
    read_key,
    read_value,
    transaction_record,
    transaction_tombstone,
)
from parley.protocol.codec import encode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.stored import TransactionLogValue

LONGS = st.integers(0, (1 << 63) - 1)
PARTITIONS = st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 1000)), max_size=10)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(list(STATUS)))
    has_partitions = state.value in ("Ongoing", "PrepareCommit", "PrepareAbort")
    return Transaction(
        producer_id=draw(LONGS),
        producer_epoch=draw(st.integers(0, EPOCH_MAX)),
        state=state,
        timeout_ms=draw(st.integers(0, (1 << 31) - 1)),
        updated_ms=draw(LONGS),
        started_ms=draw(st.integers(-1, 1 << 60)),
        partitions=draw(PARTITIONS) if has_partitions else frozenset(),
        last_epoch=draw(st.integers(-1, EPOCH_MAX)),
        previous_producer_id=draw(st.integers(-1, 1 << 60)),
        next_producer_id=draw(st.integers(-1, 1 << 60)),
        version=draw(st.integers(0, 2)),
    )


@given(st.text(), transactions())
def test_a_record_is_read_as_it_was_written(transactional_id: str, transaction: Transaction) -> None:
    key, value = transaction_record(transactional_id, transaction)
    assert read_key(key) == transactional_id
    assert read_value(value) == transaction
    assert transaction_tombstone(transactional_id) == (key, None)


def value_of(version: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "producer_id": 1,
        "producer_epoch": 2,
        "transaction_timeout_ms": 3,
        "transaction_status": 1,
        "transaction_partitions": [TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[4])],
        "transaction_last_update_timestamp_ms": 5,
        "transaction_start_timestamp_ms": 6,
    }
    return encode_stored(TransactionLogValue(**{**fields, **changes}), version)


def test_values_of_older_brokers_are_read() -> None:
    transaction = read_value(value_of())
    assert transaction.state is TransactionState.ONGOING
    assert transaction.partitions == {("t", 4)}
    assert (transaction.last_epoch, transaction.previous_producer_id, transaction.version) == (-1, -1, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"\x00\x09",
        value_of()[:-1],
        value_of(transaction_status=9),
        value_of(transaction_status=6),
        value_of(transaction_status=4),
        value_of(producer_id=-1),
        value_of(producer_epoch=-1),
    ],
)
def test_a_value_that_no_coordinator_writes_is_malformed(value: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_value(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    for read in (read_key, read_value):
        with suppress(MalformedMessage):
            read(data)


def test_a_record_without_a_key_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="no key"):
        read_key(None)
