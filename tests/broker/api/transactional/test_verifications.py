"""Verification of the first batch of a transaction: which batches need it, and how long it is valid."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parley.broker.api.transactional.verifications import Verification, Verifications
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.api.bench import OTHER, Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.create("t")
    yield bench
    await bench.tasks.close()


@pytest.fixture
def partition(bench: Bench) -> Partition:
    return bench.partition("t")


@pytest.fixture
def verifications() -> Verifications:
    return Verifications()


def begin(
    verifications: Verifications, partition: Partition, epoch: int = 0, sequence: int = 0, *, adds: bool = False
) -> Verification:
    verification = verifications.begin(partition, 7, epoch, sequence, adds=adds)
    assert verification is not None
    verifications.finished(verification)
    return verification


def refusal(
    verifications: Verifications,
    partition: Partition,
    verification: Verification | None,
    *,
    epoch: int = 0,
    sequence: int = 0,
    is_required: bool = True,
) -> ErrorCode:
    try:
        verifications.check(partition, 7, epoch, sequence, verification, is_required=is_required)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def test_the_first_batch_of_a_transaction_is_verified_and_the_later_ones_are_not(
    bench: Bench, partition: Partition, verifications: Verifications
) -> None:
    assert refusal(verifications, partition, None) is ErrorCode.INVALID_TXN_STATE
    verification = begin(verifications, partition)
    assert refusal(verifications, partition, None) is ErrorCode.INVALID_TXN_STATE, "another request's"
    assert refusal(verifications, partition, verification) is ErrorCode.NONE
    bench.write_in_transaction("t")
    verifications.settle(partition, 7)
    assert len(verifications) == 0
    assert verifications.begin(partition, 7, 0, 1, adds=False) is None
    assert refusal(verifications, partition, None, sequence=1) is ErrorCode.NONE
    assert refusal(verifications, partition, None, epoch=1) is ErrorCode.INVALID_TXN_STATE, "another epoch's"
    bench.end_transaction("t")
    assert refusal(verifications, partition, None, sequence=1) is ErrorCode.INVALID_TXN_STATE


async def test_a_marker_ends_a_verification_so_that_no_late_batch_opens_a_transaction_for_ever(
    bench: Bench, partition: Partition, verifications: Verifications
) -> None:
    late = begin(verifications, partition)
    bench.end_transaction("t", committed=False)
    verifications.settle(partition, 7)
    assert refusal(verifications, partition, late) is ErrorCode.NOT_ENOUGH_REPLICAS
    begin(verifications, partition)
    assert refusal(verifications, partition, late) is ErrorCode.NOT_ENOUGH_REPLICAS, "the next transaction's is another"


async def test_a_verification_counts_for_one_leader_epoch(
    bench: Bench, partition: Partition, verifications: Verifications
) -> None:
    verification = begin(verifications, partition)
    bench.alter("t", leader=OTHER)
    with pytest.raises(KafkaError) as caught:
        verifications.begin(partition, 7, 0, 0, adds=False)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.alter("t", leader=1)
    assert refusal(verifications, partition, verification) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert begin(verifications, partition) is not verification


async def test_no_verification_is_required_if_the_operator_says_so(
    partition: Partition, verifications: Verifications
) -> None:
    assert refusal(verifications, partition, None, is_required=False) is ErrorCode.NONE


async def test_a_batch_does_not_overtake_another_that_is_verified(
    partition: Partition, verifications: Verifications
) -> None:
    begin(verifications, partition, sequence=5)
    second = begin(verifications, partition, sequence=8)
    assert refusal(verifications, partition, second, sequence=8) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(verifications, partition, second, sequence=5) is ErrorCode.NONE
    begin(verifications, partition, sequence=3)
    assert refusal(verifications, partition, second, sequence=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    begin(verifications, partition, epoch=1, sequence=9)
    assert refusal(verifications, partition, second, epoch=1, sequence=9) is ErrorCode.NONE, "it begins again"


async def test_with_an_epoch_for_each_transaction_an_unknown_producer_begins_at_sequence_0(
    bench: Bench, partition: Partition, verifications: Verifications
) -> None:
    verification = begin(verifications, partition, sequence=5, adds=True)
    assert refusal(verifications, partition, verification, sequence=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    bench.write_in_transaction("t")
    bench.end_transaction("t")
    assert refusal(verifications, partition, verification, sequence=5) is ErrorCode.NONE, "the log judges it"


async def test_offset_commits_have_no_sequence(partition: Partition, verifications: Verifications) -> None:
    verification = begin(verifications, partition, sequence=-1, adds=True)
    assert refusal(verifications, partition, verification, sequence=-1) is ErrorCode.NONE


async def test_the_open_transactions_of_a_partition_are_bounded(
    bench: Bench, partition: Partition, verifications: Verifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.broker.api.transactional.verifications.OPEN_TRANSACTIONS_MAX", 2)
    for producer in (1, 2):
        bench.write_in_transaction("t", producer)
    verification = begin(verifications, partition)
    assert refusal(verifications, partition, verification) is ErrorCode.NOT_ENOUGH_REPLICAS
    bench.end_transaction("t", 1)
    assert refusal(verifications, partition, verification) is ErrorCode.NONE


async def test_the_verifications_of_a_broker_are_bounded(
    partition: Partition, verifications: Verifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.broker.api.transactional.verifications.VERIFICATIONS_MAX", 3)
    in_progress = verifications.begin(partition, 0, 0, 0, adds=False)
    for producer in range(1, 100):
        verification = verifications.begin(partition, producer, 0, 0, adds=False)
        assert verification is not None
        verifications.finished(verification)
    assert len(verifications) == 3
    verifications.check(partition, 0, 0, 0, in_progress, is_required=True)
