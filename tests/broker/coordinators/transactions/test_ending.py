"""EndTxn in both protocols, completion, timeouts."""

from __future__ import annotations

import pytest

from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.transactions.transaction import EPOCH_MAX, NO_TIMEOUT_MS, TransactionState
from parley.protocol.errors import ErrorCode
from tests.broker.coordinators.transactions.driven_shard import ID, P0, P1, DrivenShard, refusal

COMMIT, ABORT = True, False


def open_transaction(shard: DrivenShard, version: int = 2) -> ProducerIdentity:
    producer = shard.initialize()
    shard.add(producer, P0, P1, version=version)
    return producer


@pytest.mark.parametrize("committed", [True, False])
def test_with_version_2_each_transaction_has_an_epoch_of_its_own(committed: bool) -> None:
    shard = DrivenShard()
    producer = open_transaction(shard)
    following = shard.end(producer, committed=committed)
    assert following == (producer.producer_id, producer.producer_epoch + 1)
    ((_, prepared),) = shard.markers.sent
    assert prepared.partitions == {P0, P1}
    assert prepared.identity == following, "markers have the new epoch: they keep late writes of the old one out"
    assert prepared.is_committing is committed
    assert refusal(lambda: shard.add(following, P0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: shard.end(producer, committed=committed)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: shard.end(producer, committed=not committed)) is ErrorCode.INVALID_TXN_STATE
    for outcome in (COMMIT, ABORT):
        code = refusal(lambda: shard.end(following, committed=outcome))  # noqa: B023
        assert code is ErrorCode.CONCURRENT_TRANSACTIONS, "the producer ends its next transaction already"
    shard.complete()
    assert shard.end(producer, committed=committed) == following, "a retry"
    assert refusal(lambda: shard.end(producer, committed=not committed)) is ErrorCode.INVALID_TXN_STATE
    shard.add(following, P0)
    assert refusal(lambda: shard.end(producer, committed=committed)) is ErrorCode.PRODUCER_FENCED


def test_with_version_2_responses_follow_kafkas_table() -> None:
    # state, outcome, retry or current -> the response; None: aborted under the next epoch
    table = {
        ("Empty", ABORT, "retry"): ErrorCode.PRODUCER_FENCED,
        ("Empty", ABORT, "current"): None,
        ("Empty", COMMIT, "retry"): ErrorCode.PRODUCER_FENCED,
        ("Empty", COMMIT, "current"): ErrorCode.INVALID_TXN_STATE,
        ("CompleteAbort", ABORT, "retry"): ErrorCode.NONE,
        ("CompleteAbort", ABORT, "current"): None,
        ("CompleteAbort", COMMIT, "retry"): ErrorCode.INVALID_TXN_STATE,
        ("CompleteAbort", COMMIT, "current"): ErrorCode.INVALID_TXN_STATE,
        ("CompleteCommit", ABORT, "retry"): ErrorCode.INVALID_TXN_STATE,
        ("CompleteCommit", ABORT, "current"): None,
        ("CompleteCommit", COMMIT, "retry"): ErrorCode.NONE,
        ("CompleteCommit", COMMIT, "current"): ErrorCode.INVALID_TXN_STATE,
    }
    for (state, committed, which), expected in table.items():
        shard = DrivenShard()
        if state == "Empty":
            shard.initialize(shard.initialize())
        else:
            shard.end(open_transaction(shard), committed=state == "CompleteCommit")
            shard.complete()
        before = shard.transaction
        assert before.state.value == state
        producer_id, epoch = before.identity
        producer = ProducerIdentity(producer_id, epoch - (which == "retry"))
        if expected is None:
            assert shard.end(producer, committed=committed) == (producer_id, epoch + 1)
            assert shard.transaction.state is TransactionState.COMPLETE_ABORT, "no partition needs a marker"
            assert len(shard.markers.sent) == (state != "Empty")
        else:
            assert refusal(lambda: shard.end(producer, committed=committed)) is expected, (state, committed, which)  # noqa: B023
            assert shard.transaction == before


def test_before_version_2_the_epoch_stays() -> None:
    shard = DrivenShard()
    producer = open_transaction(shard, version=0)
    assert shard.end(producer, committed=True, version=0) == producer
    assert shard.transaction.identity == producer
    assert refusal(lambda: shard.end(producer, committed=True, version=0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: shard.end(producer, committed=False, version=0)) is ErrorCode.INVALID_TXN_STATE
    shard.complete()
    written = len(shard.log)
    assert shard.end(producer, committed=True, version=0) == producer, "a retry"
    assert len(shard.log) == written + 1, "only a coordinator that can append may say so"
    assert refusal(lambda: shard.end(producer, committed=False, version=0)) is ErrorCode.INVALID_TXN_STATE
    shard.initialize()
    newer = shard.transaction.identity
    assert refusal(lambda: shard.end(producer, committed=True, version=0)) is ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: shard.end(newer, committed=False, version=0)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [0, 2])
def test_other_producers_are_refused(version: int) -> None:
    shard = DrivenShard()
    producer = open_transaction(shard)
    other_id = ProducerIdentity(producer.producer_id + 1, 0)
    later = ProducerIdentity(producer.producer_id, 1)
    assert (
        refusal(lambda: shard.end(other_id, committed=True, version=version)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    assert refusal(lambda: shard.end(later, committed=True, version=version)) is ErrorCode.PRODUCER_FENCED
    unknown = refusal(lambda: shard.end(producer, committed=True, version=version, transactional_id="unknown"))
    assert unknown is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_last_epoch_of_an_id_is_for_its_marker_and_the_producer_goes_on_with_another_id() -> None:
    shard = DrivenShard()
    shard.initialize()
    shard.set(producer_epoch=EPOCH_MAX - 1)
    old = shard.transaction.identity
    shard.add(old, P0)
    new = shard.end(old, committed=True)
    assert shard.transaction.identity == (old.producer_id, EPOCH_MAX)
    for early in (
        lambda: shard.add(new, P0),
        lambda: shard.verify(new, P0),
        lambda: shard.end(new, committed=False),
        lambda: shard.initialize(new),
    ):
        assert refusal(early) is ErrorCode.CONCURRENT_TRANSACTIONS, "the markers are still being written"
    shard.complete()
    assert shard.transaction.identity == new
    assert new.producer_id != old.producer_id
    assert new.producer_epoch == 0
    assert shard.end(old, committed=True) == new, "a retry"
    assert shard.initialize(old) == new, "a producer that has not seen the response"
    shard.add(new, P0)
    assert refusal(lambda: shard.end(old, committed=True)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_completion_is_repeated_without_effect() -> None:
    shard = DrivenShard()
    shard.end(open_transaction(shard), committed=True)
    shard.complete()
    written = list(shard.log)
    shard.complete()
    assert shard.log == written


def test_a_transaction_that_timed_out_is_aborted_and_its_producer_fenced() -> None:
    shard = DrivenShard()
    producer = open_transaction(shard)
    shard.now_ms += 60_000
    shard.run_timers()
    assert shard.transaction.state is TransactionState.ONGOING
    shard.now_ms += 1
    shard.run_timers()
    assert shard.transaction.state is TransactionState.PREPARE_ABORT
    assert shard.transaction.identity == (producer.producer_id, 1)
    assert [each for each, _ in shard.markers.sent] == [ID]
    shard.complete()
    assert refusal(lambda: shard.add(producer, P0)) is ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: shard.end(producer, committed=True)) is ErrorCode.INVALID_TXN_STATE
    assert shard.end(producer, committed=False) == (producer.producer_id, 1), "the producer goes on"
    shard.add(shard.transaction.identity, P0)


def test_adding_a_partition_does_not_prolong_a_transaction() -> None:
    shard = DrivenShard()
    producer = open_transaction(shard)
    shard.now_ms += 60_000
    shard.add(producer, ("t", 2))
    shard.now_ms += 1
    shard.run_timers()
    assert shard.transaction.state is TransactionState.PREPARE_ABORT


def test_transactions_of_an_external_coordinator_never_time_out() -> None:
    shard = DrivenShard()
    producer = shard.initialize(timeout_ms=NO_TIMEOUT_MS)
    shard.add(producer, P0)
    shard.now_ms += 2 * NO_TIMEOUT_MS
    shard.run_timers()
    assert shard.transaction.state is TransactionState.ONGOING


def test_markers_of_prepared_transactions_are_written_again_by_the_next_coordinator() -> None:
    shard = DrivenShard()
    shard.end(open_transaction(shard), committed=True)
    prepared = shard.transaction
    shard.markers.sent.clear()
    shard.state = shard.read_back()
    shard.run_timers()
    assert shard.markers.sent == [(ID, prepared)]


@pytest.mark.slow
def test_many_transactions_that_time_out_together_are_aborted_in_batches() -> None:
    shard = DrivenShard()
    topic = "t" * 200
    for number in range(3000):
        name = f"id-{number}"
        shard.add(shard.initialize(transactional_id=name), (topic, 0), transactional_id=name)
    shard.now_ms += 60_001
    shard.run_timers()
    assert 0 < len(shard.state.ongoing) < 3000
    while shard.state.ongoing:
        shard.run_timers()


def test_large_transactions_that_time_out_together_are_aborted_in_batches_that_the_topic_accepts() -> None:
    shard = DrivenShard()
    for name, partitions in (("small", 500), ("large", 4800), ("last", 500)):
        producer = shard.initialize(transactional_id=name)
        shard.add(producer, *((f"{number:0200}", 0) for number in range(partitions)), transactional_id=name)
    shard.now_ms += 60_001
    for aborted in (1, 2, 3):
        before = len(shard.log)
        shard.run_timers()
        assert sum(len(key) + len(value or b"") for key, value in shard.log[before:]) < shard.config.message_max_bytes
        assert len(shard.markers.sent) >= aborted
        assert len(shard.state.ongoing) == 3 - aborted


def test_a_transaction_too_large_for_a_lowered_limit_does_not_keep_others_from_their_timeouts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shard = DrivenShard()
    for name, partitions in (("large", 3000), ("large-too", 3000), ("small", 1), ("small-too", 1)):
        producer = shard.initialize(transactional_id=name)
        shard.add(producer, *((f"{number:0200}", 0) for number in range(partitions)), transactional_id=name)
    shard.now_ms += 60_001
    shard.batch_bytes_max = 500
    shard.run_timers()
    shard.run_timers()
    assert list(shard.state.ongoing) == ["large", "large-too"]
    assert "cannot abort timed-out transactions" in caplog.text
    shard.batch_bytes_max = 1 << 20
    shard.run_timers()
    shard.run_timers()
    assert not shard.state.ongoing


def test_no_producer_gets_the_last_epoch_after_the_coordinator_has_aborted_its_transaction() -> None:
    """A marker of its next transaction could not have a later epoch."""
    shard = DrivenShard()
    shard.initialize()
    shard.set(producer_epoch=EPOCH_MAX - 1)
    producer = shard.transaction.identity
    shard.add(producer, P0)
    shard.now_ms += 60_001
    shard.run_timers()
    shard.complete()
    last = shard.transaction.identity
    assert last == (producer.producer_id, EPOCH_MAX)
    for identity, version in ((last, 2), (last, 0), (producer, 0)):
        assert refusal(lambda: shard.end(identity, committed=False, version=version)) is ErrorCode.PRODUCER_FENCED  # noqa: B023
    assert refusal(lambda: shard.add(last, P0)) is ErrorCode.PRODUCER_FENCED
    assert shard.initialize() == (shard.next_id, 0)
    assert refusal(lambda: shard.end(producer, committed=False)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_aborts_a_transaction_aborted_under_the_last_epoch_and_continues_with_a_new_id() -> None:
    shard = DrivenShard()
    shard.initialize()
    shard.set(producer_epoch=EPOCH_MAX - 1)
    old = shard.transaction.identity
    shard.add(old, P0)
    shard.now_ms += 60_001
    shard.run_timers()
    assert refusal(lambda: shard.end(old, committed=False)) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    assert refusal(lambda: shard.end(old, committed=True)) is ErrorCode.INVALID_TXN_STATE
    new = shard.end(old, committed=False)
    assert new == (shard.next_id, 0)
    assert shard.end(old, committed=False) == new, "a retry"
    shard.add(new, P0)
    assert refusal(lambda: shard.end(old, committed=False)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
