"""Control batches: transaction markers and other control records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.records.batch import build, records, validate
from parley.protocol.records.batch_header import read_header
from parley.protocol.records.control_batch import (
    ControlMarker,
    ControlType,
    build_marker,
    control_type,
    marker_of,
    read_marker,
)
from parley.protocol.records.errors import CorruptRecord, InvalidRecord
from parley.protocol.records.record import Record


@given(
    st.sampled_from([ControlType.ABORT, ControlType.COMMIT]),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, (1 << 62)),
    st.integers(0, (1 << 15) - 1),
)
def test_a_marker_is_read_as_written(kind: ControlType, epoch: int, producer_id: int, producer_epoch: int) -> None:
    marker = ControlMarker(kind, epoch)
    data = build_marker(
        marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=1_700_000_000_000, base_offset=9
    )
    header = read_header(data)
    validate(data, 0, header, consecutive=True)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, producer_epoch, -1)
    assert (header.base_offset, header.record_count) == (9, 1)
    assert read_marker(b"before" + data, 6) == marker


def test_the_bytes_of_a_marker() -> None:
    """The key contains version 0 and type 1; the value contains version 0 and the coordinator's epoch."""
    marker = build_marker(ControlMarker(ControlType.COMMIT, 7), producer_id=1, producer_epoch=0, timestamp=5)
    record = next(records(marker))
    assert (record.key, record.value) == (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x07")


def test_longer_keys_and_values_of_later_versions_are_read() -> None:
    record = Record(0, 0, b"\x00\x01\x00\x00more", b"\x00\x03\x00\x00\x00\x09more")
    assert marker_of(record) == ControlMarker(ControlType.ABORT, 9)


def test_a_control_record_that_ends_no_transaction_is_no_marker() -> None:
    leader_change = Record(0, 0, b"\x00\x00\x00\x02", b"")
    of_a_later_time = Record(0, 0, b"\x00\x00\x00\x63", None)
    assert control_type(leader_change) is ControlType.LEADER_CHANGE
    assert control_type(of_a_later_time) is None
    assert marker_of(leader_change) is None
    assert marker_of(of_a_later_time) is None


def test_a_batch_that_compaction_emptied_has_no_marker() -> None:
    assert read_marker(build([], control=True)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\x00\x00\x00", b"\x00\x00\x00\x00\x00\x07"),
        (b"\xff\xff\x00\x01", b"\x00\x00\x00\x00\x00\x07"),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x07"),
    ],
)
def test_a_marker_that_cannot_be_is_invalid(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord):
        read_marker(build([Record(0, 0, key, value)], control=True))


def test_a_marker_behind_other_bytes_is_read_and_a_cut_one_is_corrupt() -> None:
    batch = build_marker(ControlMarker(ControlType.ABORT, 5), producer_id=7, producer_epoch=0, timestamp=9)
    assert read_marker(b"before" + bytes(batch) + b"after", 6) == ControlMarker(ControlType.ABORT, 5)
    for missing in (1, 10, 20):
        with pytest.raises(CorruptRecord):
            read_marker(batch[:-missing])
