"""The producer state of a log, one rule at a time, and its snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.control_batch import ControlMarker
from parley.storage.producer_row import MAX_SEQUENCE, Duplicate
from parley.storage.producer_snapshots import (
    CorruptSnapshot,
    ProducerEntry,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    snapshot_path,
)
from parley.storage.producer_state import REMEMBERED_MS, CompletedTransaction, ProducerState
from tests.storage.producer_batches import abort, batch, commit

DAY_MS = 86_400_000
NOW = 1_790_000_000_000


@pytest.fixture
def state(tmp_path: Path) -> ProducerState:
    state = ProducerState(tmp_path)
    state.load(0, 0, NOW)
    return state


def write(
    state: ProducerState, *batches: BatchHeader | tuple[BatchHeader, ControlMarker]
) -> list[CompletedTransaction | None]:
    completed = []
    for item in batches:
        header, control = (item, None) if isinstance(item, BatchHeader) else item
        assert check(state, header, control) is None
        completed.append(state.apply(header, now_ms=NOW, control=control))
    return completed


def check(
    state: ProducerState, header: BatchHeader, control: ControlMarker | None, transaction_version: int = 0
) -> Duplicate | None:
    if control is None:
        return state.check_append(header, from_client=True, now_ms=NOW)
    state.check_marker(header, control, now_ms=NOW, transaction_version=transaction_version)
    return None


def refusal(
    state: ProducerState, header: BatchHeader, control: ControlMarker | None = None, transaction_version: int = 0
) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        check(state, header, control, transaction_version)
    assert f"producer {header.producer_id}" in caught.value.message
    assert state.directory.name in caught.value.message
    return caught.value.code


# Sequences and epochs


def test_a_batch_without_a_producer_leaves_no_trace(state: ProducerState) -> None:
    write(state, batch(0, producer=-1, epoch=-1, sequence=-1))
    assert len(state) == 0


def test_sequences_continue(state: ProducerState) -> None:
    write(state, batch(0, sequence=0, records=3), batch(3, sequence=3), batch(4, sequence=4, records=2))
    assert refusal(state, batch(6, sequence=7)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, batch(6, sequence=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(state, batch(6, sequence=6))


def test_an_unknown_producer_may_begin_anywhere(state: ProducerState) -> None:
    write(state, batch(0, sequence=1234))
    assert refusal(state, batch(1, sequence=1236)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap(state: ProducerState) -> None:
    write(state, batch(0, sequence=MAX_SEQUENCE - 1, records=4))
    assert state.entries[0].last_sequence == 1
    again = state.check_append(batch(9, sequence=MAX_SEQUENCE - 1, records=4), from_client=True, now_ms=NOW)
    assert again == Duplicate(0, 3, NOW)
    write(state, batch(4, sequence=2))
    state.take_snapshot(5)
    write(state, batch(5, sequence=3, records=2))
    state.truncate(5)
    assert state.load(0, 5, NOW) == 5
    write(state, batch(5, sequence=3))


def test_the_last_sequence_may_be_the_largest(state: ProducerState) -> None:
    write(state, batch(0, sequence=MAX_SEQUENCE))
    assert refusal(state, batch(1, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(state, batch(1, sequence=0))


def test_the_last_five_batches_are_known_again(state: ProducerState) -> None:
    write(state, *(batch(offset, sequence=offset, timestamp=NOW + offset) for offset in range(7)))
    for offset in range(2, 7):
        duplicate = state.check_append(batch(99, sequence=offset), from_client=True, now_ms=NOW)
        assert duplicate == Duplicate(offset, offset, NOW + offset)
    assert refusal(state, batch(99, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, batch(99, sequence=5, records=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_begins_at_zero_and_fences_the_old(state: ProducerState) -> None:
    write(state, batch(0, epoch=1, sequence=0))
    assert refusal(state, batch(1, epoch=2, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(state, batch(1, epoch=2, sequence=0))
    assert refusal(state, batch(2, epoch=1, sequence=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(state, batch(2, epoch=1, sequence=0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_client_must_send_sequence_and_epoch(state: ProducerState) -> None:
    assert refusal(state, batch(0, sequence=-1)) is ErrorCode.INVALID_RECORD
    assert refusal(state, batch(0, epoch=-1, sequence=0)) is ErrorCode.INVALID_RECORD


def test_a_coordinators_commits_have_no_sequence(state: ProducerState) -> None:
    for offset in range(3):
        header = batch(offset, epoch=4, sequence=-1, records=1, transactional=True)
        assert state.check_append(header, from_client=False, now_ms=NOW) is None
        state.apply(header, now_ms=NOW)
    assert state.entries[0].last_sequence == -1
    with pytest.raises(KafkaError):
        state.check_append(batch(3, epoch=3, sequence=-1, transactional=True), from_client=False, now_ms=NOW)


def test_followers_accept_every_batch_that_the_leader_accepted(state: ProducerState) -> None:
    state.apply(batch(0, epoch=5, sequence=10), now_ms=NOW)
    state.apply(batch(1, epoch=5, sequence=20), now_ms=NOW)
    assert state.entries[0][:5] == (7, 5, 20, 1, 0)


# Transactions


def test_a_transaction_is_open_from_its_first_batch_to_its_marker(state: ProducerState) -> None:
    assert state.first_unstable_offset is None
    write(state, batch(0, sequence=0, transactional=True), batch(1, sequence=1, transactional=True))
    assert state.first_unstable_offset == 0
    assert state.entries[0].transaction_first_offset == 0
    assert refusal(state, batch(2, sequence=2)) is ErrorCode.INVALID_TXN_STATE
    assert write(state, abort(2)) == [CompletedTransaction(7, 0, 2, 3, aborted=True)]
    assert state.first_unstable_offset == 0
    state.on_high_watermark(2)
    assert state.first_unstable_offset == 0
    state.on_high_watermark(3)
    assert state.first_unstable_offset is None
    write(state, batch(3, sequence=2, transactional=True))
    assert write(state, commit(4)) == [CompletedTransaction(7, 3, 4, 5, aborted=False)]


def test_sequence_numbers_of_a_transaction_that_has_ended_are_not_used_again(state: ProducerState) -> None:
    """When an abort purges unsent records, librdkafka gives their sequence numbers to the next
    transaction's records."""
    write(state, batch(0, sequence=0, transactional=True), batch(1, sequence=1, records=2, transactional=True))
    assert check(state, batch(3, sequence=1, records=2, transactional=True), None) == Duplicate(1, 2, NOW)
    write(state, abort(3))
    for sequence, records in ((1, 2), (1, 1), (2, 3)):
        again = batch(4, sequence=sequence, records=records, transactional=True)
        assert refusal(state, again) is ErrorCode.UNKNOWN_PRODUCER_ID
    write(state, batch(4, sequence=3, transactional=True))
    assert refusal(state, batch(5, sequence=2, transactional=True)) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert check(state, batch(5, sequence=3, transactional=True), None) == Duplicate(4, 4, NOW)
    assert refusal(state, batch(5, sequence=5, transactional=True)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_transaction_belongs_to_the_epoch_that_began_it(state: ProducerState) -> None:
    write(state, batch(0, epoch=3, sequence=0, transactional=True), batch(1, producer=8, sequence=0))
    assert [state.has_open_transaction(7, epoch) for epoch in (2, 3, 4)] == [False, True, False]
    assert not state.has_open_transaction(8, 0), "an idempotent producer"
    assert not state.has_open_transaction(9, 0), "unknown"
    assert state.open_transactions == 1
    write(state, commit(2, epoch=3))
    assert not state.has_open_transaction(7, 3)
    assert state.open_transactions == 0


def test_a_late_marker_cannot_end_the_next_transaction(state: ProducerState) -> None:
    """From transaction version 2 on, the epoch of a marker is one higher than that of its records."""
    write(state, batch(0, epoch=1, sequence=0, transactional=True))
    header, marker = commit(1, epoch=1)
    assert refusal(state, header, marker, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    check(state, header, marker, 1)
    ended = commit(1, epoch=2)
    check(state, *ended, 2)
    write(state, ended)
    check(state, *ended, 2)  # the coordinator repeats a marker if the response was lost
    write(state, batch(2, epoch=2, sequence=0, transactional=True))
    assert refusal(state, *ended, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    check(state, *abort(3, epoch=3), 2)


def test_the_stable_offset_at_a_marker_is_the_start_of_the_next_open_transaction(state: ProducerState) -> None:
    for offset, producer in enumerate([1, 2, 3]):
        write(state, batch(offset, producer=producer, sequence=0, transactional=True))
    assert write(state, abort(3, producer=2)) == [CompletedTransaction(2, 1, 3, 0, aborted=True)]
    assert write(state, abort(4, producer=1)) == [CompletedTransaction(1, 0, 4, 2, aborted=True)]
    assert state.first_unstable_offset == 0
    state.on_high_watermark(4)
    assert state.first_unstable_offset == 0
    state.on_high_watermark(5)
    assert state.first_unstable_offset == 2
    assert write(state, commit(5, producer=3)) == [CompletedTransaction(3, 2, 5, 6, aborted=False)]


def test_a_marker_without_a_transaction_completes_nothing_but_fences(state: ProducerState) -> None:
    assert write(state, abort(0, epoch=3)) == [None]
    assert refusal(state, batch(1, epoch=2, sequence=0, transactional=True)) is ErrorCode.INVALID_PRODUCER_EPOCH
    write(state, batch(1, epoch=3, sequence=0, transactional=True))


def test_a_marker_with_a_new_epoch_restarts_the_sequence(state: ProducerState) -> None:
    write(state, batch(0, epoch=1, sequence=0, transactional=True), commit(1, epoch=2))
    assert refusal(state, batch(2, epoch=2, sequence=1, transactional=True)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(state, batch(2, epoch=2, sequence=0, transactional=True))


def test_an_old_coordinator_is_fenced(state: ProducerState) -> None:
    write(state, batch(0, sequence=0, transactional=True), commit(1, coordinator_epoch=5))
    header, marker = abort(2, coordinator_epoch=4)
    assert refusal(state, header, marker) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    header, marker = abort(2, epoch=-1, coordinator_epoch=9)
    assert refusal(state, header, marker) is ErrorCode.INVALID_PRODUCER_EPOCH
    write(state, abort(2, coordinator_epoch=5))


def test_an_emptied_control_batch_is_ignored(state: ProducerState) -> None:
    header, _ = commit(0)
    assert state.apply(header, now_ms=NOW, control=None) is None
    assert len(state) == 0


# Expiry


def test_a_silent_producer_is_forgotten(state: ProducerState) -> None:
    write(state, batch(0, producer=1, sequence=5), batch(1, producer=2, sequence=0, transactional=True))
    assert state.expire(NOW + DAY_MS - 1) == 0
    assert state.expire(NOW + DAY_MS) == 1
    assert [entry.producer_id for entry in state.entries] == [2]
    assert state.check_append(batch(2, producer=1, sequence=77), from_client=True, now_ms=NOW + DAY_MS) is None


def test_it_is_forgotten_to_the_millisecond(state: ProducerState) -> None:
    write(state, batch(0, sequence=5))
    with pytest.raises(KafkaError):
        state.check_append(batch(1, sequence=77), from_client=True, now_ms=NOW + DAY_MS - 1)
    assert state.check_append(batch(1, sequence=77), from_client=True, now_ms=NOW + DAY_MS) is None
    state.apply(batch(1, sequence=77), now_ms=NOW + DAY_MS)
    with pytest.raises(KafkaError):
        state.check_append(batch(2, sequence=5), from_client=True, now_ms=NOW + DAY_MS)


def test_records_of_long_ago_do_not_make_a_producer_silent(state: ProducerState) -> None:
    write(state, batch(0, sequence=0, timestamp=1_000))
    assert state.expire(NOW + 1) == 0


# Snapshots


def test_the_snapshot_is_kafkas_to_the_byte(state: ProducerState, tmp_path: Path) -> None:
    write(state, batch(0, producer=258, epoch=3, sequence=5, records=4, transactional=True, timestamp=NOW))
    state.take_snapshot(4)
    data = (tmp_path / "00000000000000000004.snapshot").read_bytes()
    expected = "0001" + f"{int.from_bytes(data[2:6], 'big'):08x}" + "00000001"
    expected += "0000000000000102000300000008000000000000000300000003" + f"{NOW:016x}"
    expected += "ffffffff0000000000000000"
    assert data.hex() == expected


def test_an_empty_table_is_a_snapshot_too(state: ProducerState, tmp_path: Path) -> None:
    state.take_snapshot(0)
    assert (tmp_path / "00000000000000000000.snapshot").stat().st_size == 10
    again = ProducerState(tmp_path)
    assert again.load(0, 0, NOW) == 0
    assert again.entries == []


def test_the_newest_snapshot_inside_the_log_is_loaded(state: ProducerState, tmp_path: Path) -> None:
    for offset in range(10):
        write(state, batch(offset, sequence=offset))
        state.take_snapshot(offset + 1)
    again = ProducerState(tmp_path)
    assert again.load(2, 6, NOW) == 6
    assert again.snapshots == (2, 3, 4, 5, 6)
    assert again.entries == [ProducerEntry(7, 0, 5, 5, 0, NOW, -1, -1)]
    again.apply(batch(6, sequence=6), now_ms=NOW)
    again.remove_snapshots_before(5)
    assert again.snapshots == (5, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{offset:020d}.snapshot" for offset in (5, 6)]


def test_an_unreadable_snapshot_is_deleted_and_an_older_one_serves(
    state: ProducerState, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(state, batch(0, sequence=0))
    state.take_snapshot(1)
    write(state, batch(1, sequence=1))
    state.take_snapshot(2)
    state.take_snapshot(3)
    newest = snapshot_path(tmp_path, 3)
    newest.write_bytes(newest.read_bytes()[:-1])
    snapshot_path(tmp_path, 2).unlink()
    again = ProducerState(tmp_path)
    assert again.load(0, 3, NOW) == 1
    assert "00000000000000000003.snapshot" in caplog.text
    assert not newest.exists()
    assert again.entries == [ProducerEntry(7, 0, 0, 0, 0, NOW, -1, -1)]


def test_without_a_snapshot_everything_is_read(state: ProducerState) -> None:
    write(state, batch(0, sequence=0))
    again = ProducerState(state.directory)
    assert again.load(0, 1, NOW) == 0
    assert len(again) == 0


def test_nothing_is_read_where_the_table_is_right_already(state: ProducerState) -> None:
    write(state, batch(0, sequence=0), batch(1, producer=-1, epoch=-1, sequence=-1))
    state.truncate(1)
    assert state.load(0, 1, NOW) == 1
    assert len(state) == 1
    state.truncate(0)
    assert len(state) == 0
    assert state.load(0, 0, NOW) == 0


def test_truncating_fully_forgets_everybody(state: ProducerState) -> None:
    write(state, batch(0, sequence=0, transactional=True))
    state.take_snapshot(1)
    state.truncate_fully(50)
    assert (len(state), state.snapshots, state.first_unstable_offset) == (0, (), None)
    assert state.load(50, 50, NOW) == 50


def test_the_start_of_the_log_moves_past_a_completed_transaction(state: ProducerState) -> None:
    write(state, batch(0, sequence=0, transactional=True), abort(1))
    assert state.first_unstable_offset == 0
    state.on_log_start_advanced(2)
    assert state.first_unstable_offset is None
    assert len(state) == 1


def test_open_transactions_are_in_the_snapshot(state: ProducerState, tmp_path: Path) -> None:
    write(state, batch(0, producer=1, sequence=0, transactional=True), commit(1, producer=1))
    write(state, batch(2, producer=2, sequence=0, transactional=True))
    write(state, batch(3, producer=1, sequence=1, transactional=True))
    state.take_snapshot(4)
    again = ProducerState(tmp_path)
    assert again.load(0, 4, NOW + 2 * DAY_MS) == 4
    assert again.first_unstable_offset == 2
    assert sorted(again.entries) == sorted(state.entries)
    header, marker = abort(4, producer=2)
    assert again.apply(header, now_ms=NOW, control=marker) == CompletedTransaction(2, 2, 4, 3, aborted=True)


def test_the_silent_are_not_loaded(state: ProducerState, tmp_path: Path) -> None:
    write(state, batch(0, producer=1, sequence=0), batch(1, producer=2, sequence=0, timestamp=NOW + 10))
    state.take_snapshot(2)
    again = ProducerState(tmp_path)
    again.load(0, 2, NOW + DAY_MS)
    assert [entry.producer_id for entry in again.entries] == [2]


def test_a_snapshot_written_later_has_the_state_of_when_it_was_taken(state: ProducerState, tmp_path: Path) -> None:
    write(state, batch(0, producer=1, sequence=0), batch(1, producer=2, sequence=0))
    then = state.entries
    state.take_snapshot(2, sync=False)
    assert not list(tmp_path.iterdir()), "nothing is written on the event loop"
    write(state, batch(2, producer=1, sequence=1), batch(3, producer=3, sequence=0))
    state.take_snapshot(4, sync=False)
    write(state, batch(4, producer=1, sequence=2))
    state.flush()
    state.flush()
    assert state.snapshots == (2, 4)
    assert read_snapshot(snapshot_path(tmp_path, 2)) == then
    assert [(e.producer_id, e.last_sequence) for e in read_snapshot(snapshot_path(tmp_path, 4))] == [
        (2, 0),
        (1, 1),
        (3, 0),
    ]


def test_a_snapshot_of_truncated_records_is_not_written(state: ProducerState, tmp_path: Path) -> None:
    write(state, batch(0, producer=1, sequence=0), batch(1, producer=1, sequence=1))
    state.take_snapshot(1, sync=False)
    state.take_snapshot(2, sync=False)
    state.truncate(1)
    state.flush()
    assert state.snapshots == (1,)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000001.snapshot"]


def test_snapshots_that_wait_are_bounded(state: ProducerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.storage.producer_snapshots.WAITING_PRODUCERS_MAX", 5)
    for offset in range(4):
        write(state, batch(offset, producer=offset, sequence=0))
        state.take_snapshot(offset + 1, sync=False)
    assert state.snapshots == (4,), "1 + 2 + 3 producers are too many, and 4 are written in any case"


def follow(state: ProducerState, *batches: BatchHeader, now_ms: int = NOW) -> None:
    """Apply batches without a check, as a follower does."""
    for header in batches:
        state.apply(header, now_ms=now_ms)


def test_the_longest_silent_of_too_many_producers_is_forgotten(
    state: ProducerState, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("parley.storage.producer_state.PRODUCERS_MAX", 3)
    follow(state, batch(0, producer=0, sequence=0, transactional=True))
    for offset in range(1, 4):
        follow(state, batch(offset, producer=offset, sequence=0, timestamp=NOW + offset))
    assert sorted(entry.producer_id for entry in state.entries) == [0, 2, 3], "not the one in a transaction"
    follow(state, batch(4, producer=2, sequence=1), batch(5, producer=4, sequence=0))
    assert sorted(entry.producer_id for entry in state.entries) == [0, 2, 4]
    state.take_snapshot(6)
    monkeypatch.setattr("parley.storage.producer_state.PRODUCERS_MAX", 2)
    again = ProducerState(tmp_path)
    again.load(0, 6, NOW)
    assert len(again) == 2


def test_producers_in_transactions_do_not_slow_down_the_search_for_one_to_forget(
    state: ProducerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.storage.producer_state.PRODUCERS_MAX", 4)
    follow(state, *(batch(offset, producer=offset, sequence=0, transactional=True) for offset in range(3)))
    follow(state, *(batch(offset, producer=offset, sequence=0) for offset in range(3, 50)))
    assert sorted(entry.producer_id for entry in state.entries) == [0, 1, 2, 49]
    follow(state, batch(50, producer=50, sequence=0, transactional=True))
    follow(state, batch(51, producer=51, sequence=0))
    assert sorted(entry.producer_id for entry in state.entries) == [0, 1, 2, 50, 51], "none can be forgotten"


@pytest.mark.parametrize("expiration_ms", [DAY_MS, 1000])
def test_unknown_producer_ids_do_not_evict_a_producer_that_may_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expiration_ms: int
) -> None:
    monkeypatch.setattr("parley.storage.producer_state.PRODUCERS_MAX", 4)
    state = ProducerState(tmp_path, expiration_ms=expiration_ms)
    state.load(0, 0, NOW)
    follow(state, batch(0, producer=0, sequence=0, transactional=True))
    retry = batch(1, producer=1, sequence=0)
    write(state, retry, *(batch(offset, producer=offset, sequence=0) for offset in range(2, 4)))
    for producer in range(10, 20):
        assert refusal(state, batch(4, producer=producer, sequence=0)) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert check(state, retry, None) == Duplicate(1, 1, retry.max_timestamp)
    assert check(state, batch(4, producer=2, sequence=1), None) is None, "known ones go on"
    follow(state, batch(4, producer=2, sequence=1))
    assert [record.message for record in caplog.records] == ["new producers are refused"], "said once"

    later = NOW + min(REMEMBERED_MS, expiration_ms)
    for header in (batch(5, producer=2, sequence=2), batch(6, producer=10, sequence=0)):
        assert state.check_append(header, from_client=True, now_ms=later) is None
        follow(state, header, now_ms=later)
    assert sorted(entry.producer_id for entry in state.entries) == [0, 2, 3, 10], "1 was silent for longest"


def test_a_coordinator_is_not_refused_for_the_number_of_producers(
    state: ProducerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.storage.producer_state.PRODUCERS_MAX", 1)
    follow(state, batch(0, producer=0, sequence=0))
    assert state.check_append(batch(1, producer=1, sequence=-1), from_client=False, now_ms=NOW) is None


entries = st.builds(
    ProducerEntry,
    *(st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (64, 16, 32, 64, 32, 64, 32, 64)),
)


@given(st.lists(entries, max_size=20))
def test_snapshots_round_trip(entries: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries)) == entries


@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_every_damaged_byte_is_noticed(entries: list[ProducerEntry], data: st.DataObject) -> None:
    whole = bytearray(encode_snapshot(entries))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(whole))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(encode_snapshot(entries)[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(data)


@given(entries)
def test_any_complete_snapshot_can_be_loaded(tmp_path_factory: pytest.TempPathFactory, entry: ProducerEntry) -> None:
    directory = tmp_path_factory.getbasetemp()
    snapshot_path(directory, 9).write_bytes(encode_snapshot([entry]))
    state = ProducerState(directory)
    assert state.load(0, 9, NOW) == 9
    header, marker = abort(9, producer=entry.producer_id)
    state.apply(header, now_ms=NOW, control=marker)
    state.apply(batch(10, producer=entry.producer_id, sequence=0, transactional=True), now_ms=NOW)
    state.expire(NOW + 2 * DAY_MS)


def test_a_transaction_is_late_if_its_producer_has_not_written_for_too_long(state: ProducerState) -> None:
    assert not state.has_late_transaction(NOW + DAY_MS, 1000), "there is none"
    write(state, batch(0, producer=1, sequence=0, transactional=True))
    write(state, batch(1, producer=2, sequence=0))
    assert not state.has_late_transaction(NOW + 1000, 1000)
    assert state.has_late_transaction(NOW + 1001, 1000)
    write(state, commit(2, producer=1))
    assert not state.has_late_transaction(NOW + 1001, 1000)
