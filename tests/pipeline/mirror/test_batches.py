"""Batches of a source's log, prepared for the target's log."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import pytest

from parley.pipeline.client.decode import BadBatch
from parley.pipeline.client.fetching import Fetched, TopicPartition
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.mirror.appending import Batch, Tail, stamped
from parley.pipeline.mirror.batches import SMALL_BYTES, Piece, Span, join, pieces, spans
from parley.pipeline.mirror.translation import Run
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import read_header
from parley.protocol.records.compression import Compression
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.crc import seal
from parley.protocol.records.down_conversion import to_legacy
from parley.protocol.records.record import Record

LARGE = b"x" * SMALL_BYTES


def some(offsets: Iterable[int], value: bytes = LARGE) -> list[Record]:
    return [Record(offset, 1000 + offset, b"k", value, (("h", None),)) for offset in offsets]


def fetched(*batches: bytes | bytearray, aborted: Sequence[tuple[int, int]] = ()) -> Fetched:
    data = b"".join(map(bytes, batches))
    return Fetched(TopicPartition("t", 0), 0, 100, data, tuple(aborted), 0, 100, 100)


def contents(found: Iterable[Piece]) -> list[tuple[int, Record]]:
    """Return the records to be sent, and their offsets in the source."""
    sent = []
    for piece in found:
        data = stamped(piece.batch, ProducerId(7, 0), 0)
        offsets = [offset for span in piece.spans for offset in range(span.first, span.last + 1)]
        sent += list(zip(offsets, records(data), strict=True))
    return sent


def same(found: Iterable[Piece], expected: list[Record]) -> None:
    assert [(offset, one[1:]) for offset, one in contents(found)] == [(one.offset, one[1:]) for one in expected]


@pytest.mark.parametrize("codec", list(Compression))
def test_a_whole_batch_goes_as_it_is(codec: Compression) -> None:
    given = build(some(range(10, 20)), base_offset=10, compression=codec, partition_leader_epoch=3)
    made = list(pieces(fetched(given), 10))
    same(made, some(range(10, 20)))
    if len(given) >= SMALL_BYTES:
        (piece,) = made
        assert bytes(piece.batch.body) == bytes(given[61:])


def test_a_batch_says_which_records_it_holds() -> None:
    header = read_header(given := build(some(range(3)), base_offset=40))
    sent = read_header(stamped(Batch(header, given[61:]), ProducerId(7, 2), (1 << 31) + 5))
    assert (sent.base_offset, sent.producer_id, sent.producer_epoch, sent.base_sequence) == (0, 7, 2, 5)


def test_records_are_counted_by_their_numbers() -> None:
    assert Tail(10, 30, sequence=12, last=29).count_since(2) == 10
    assert Tail(10, 30, sequence=2, last=20).count_since((1 << 31) - 3) == 5
    assert Tail(10, 30).count_since(2) == 0
    assert Tail(10, 30, sequence=2, last=9).count_since(5) == -3
    assert Tail(0, 3 << 31, sequence=7, last=8).count_since(0) == (2 << 31) + 7


def test_a_copy_may_begin_inside_of_a_batch() -> None:
    given = build(some(range(10)), compression=Compression.LZ4)
    same(pieces(fetched(given), 4), some(range(4, 10)))


def test_gaps_of_compaction_are_closed_and_remembered() -> None:
    offsets = [0, 1, 5, 6, 7, 20]
    given = build(some(offsets), keep_offsets=True)
    made = list(pieces(fetched(given), 0))
    same(made, some(offsets))
    runs: list[Run] = []
    for piece in made:
        join(runs, piece.runs(100))
    assert runs == [Run(0, 1, 100), Run(5, 7, 102), Run(20, 20, 105)]


def test_a_brokers_time_becomes_the_records() -> None:
    given = build(some(range(2)), append_time=777)
    assert [record.timestamp for _, record in contents(pieces(fetched(given), 0))] == [777, 777]


def test_small_batches_in_a_row_become_one() -> None:
    given = [build(some([offset], b"v"), base_offset=offset) for offset in range(50)]
    (piece,) = pieces(fetched(*given), 0)
    same([piece], some(range(50), b"v"))
    packed = [build(some([50 + n], b"v"), base_offset=50 + n, compression=Compression.GZIP) for n in range(2)]
    first, second = pieces(fetched(*given, *packed), 0)
    assert second.batch.header.compression is Compression.GZIP
    same([first, second], some(range(52), b"v"))


def test_old_formats_become_new() -> None:
    given = to_legacy(build(some([5], b"v"), base_offset=5), 1)
    ((offset, record),) = contents(pieces(fetched(*map(bytes, given)), 0))
    assert (offset, record.timestamp, record.key, record.value) == (5, 1005, b"k", b"v")


def transaction(offset: int, producer: int) -> bytearray:
    return build(
        some([offset]), base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def marker(offset: int, producer: int, kind: ControlType) -> bytearray:
    return build_marker(ControlMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp=1, base_offset=offset)


def test_markers_and_aborted_records_stay_behind() -> None:
    log = [
        transaction(0, 1),
        transaction(1, 2),
        marker(2, 1, ControlType.ABORT),
        marker(3, 2, ControlType.COMMIT),
        transaction(4, 1),
        marker(5, 1, ControlType.COMMIT),
    ]
    committed = list(pieces(fetched(*log, aborted=[(1, 0)]), 0))
    same(committed, some([1, 4]))
    assert not any(piece.batch.header.is_transactional for piece in committed)
    same(pieces(fetched(*log), 0), some([0, 1, 4]))


def test_a_corrupt_batch_is_named() -> None:
    given = build(some(range(10, 12)), base_offset=10)
    given[-1] ^= 1
    with pytest.raises(BadBatch, match="t-0 at offset 10"):
        list(pieces(fetched(given), 0))


def test_a_batch_that_lies_about_itself_is_named() -> None:
    given = build(some(range(2)), compression=Compression.GZIP)
    struct.pack_into(">i", given, 57, 9)
    seal(given, 0, len(given))
    with pytest.raises(BadBatch, match="t-0 at offset 0"):
        list(pieces(fetched(given), 1))


def test_spans() -> None:
    assert list(spans([])) == []
    assert list(spans([1, 2, 4, 9, 10])) == [Span(1, 2), Span(4, 4), Span(9, 10)]
