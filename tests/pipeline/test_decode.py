"""Decoding to Arrow returns the same rows as reading the same batches record by record."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.pipeline.client import decode as decoding
from parley.pipeline.client._rows import TIMESTAMP_MAX
from parley.pipeline.client.decode import BadBatch, decode, kafka_schema
from parley.pipeline.client.fetching import Fetched, TopicPartition, fetched_in
from parley.protocol.errors import KafkaError
from parley.protocol.messages.fetch import FetchResponse
from parley.protocol.records import legacy
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import MAGIC_V2, headers
from parley.protocol.records.compression import Compression
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.crc import seal
from parley.protocol.records.record import Record
from tests.support.proportion import examples

PARTITION = TopicPartition("töpic", 3)
EXTREMES = (b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8))
"""The extremes of 64-bit numbers."""
END = 0x7FFF_FFFF_FFFF_FFFF
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fetched(batches: bytes | bytearray, *, start: int = 0, aborted: tuple[tuple[int, int], ...] = ()) -> Fetched:
    found = [header for _, header in headers(batches)]
    next_offset = found[-1].next_offset if found else start
    return Fetched(PARTITION, start, next_offset, bytes(batches), aborted, 0, next_offset, next_offset)


def table(source: Fetched, start: int = 0, end: int = 1 << 62, *, include_headers: bool = True) -> pa.Table:
    return pa.Table.from_batches(
        decode(source, start, end, include_headers=include_headers), kafka_schema(include_headers=include_headers)
    )


def row(record: Record, kind: int) -> dict[str, Any]:
    """Return the row that the table must contain for a record."""
    found = [
        {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
        for name, value in record.headers
    ]
    return {
        "key": record.key,
        "value": record.value,
        "topic": PARTITION.topic,
        "partition": PARTITION.partition,
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
        "timestampType": kind,
        "headers": found or None,
    }


maybe_bytes = st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=300)
names = st.text(max_size=5) | st.binary(max_size=4).filter(lambda name: b"\xed" not in name).map(
    lambda name: name.decode("utf-8", "surrogateescape")
)
record_headers = st.lists(st.tuples(names, maybe_bytes), max_size=3).map(tuple)
times = st.integers(-1, 2_000_000_000_000)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[dict[str, Any]]]:
    """Generate batches of all formats and codecs, with gaps in the offsets, and their rows."""
    log = bytearray()
    rows: list[dict[str, Any]] = []
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 5))):
        base = offset
        made = []
        for _ in range(draw(st.integers(1, 8))):
            made.append(
                Record(offset, draw(times), draw(maybe_bytes), draw(maybe_bytes), draw(record_headers)),
            )
            offset += draw(st.integers(1, 4))
        magic = draw(st.sampled_from((0, 1, 2, 2, 2)))
        append_time = draw(st.none() | times) if magic else None
        codecs = [one for one in Compression if magic == 2 or one is not Compression.ZSTD]
        codec = draw(st.sampled_from(codecs))
        if magic == 2:
            part = build(made, base_offset=base, keep_offsets=True, compression=codec, append_time=append_time)
        else:
            part = legacy.build(made, magic=magic, compression=codec, append_time=append_time)
        kind = -1 if magic == 0 else int(append_time is not None)
        for pos, _ in headers(part):
            rows += (row(record, kind) for record in records(part, pos))
        log += part
    return bytes(log), rows


@given(logs())
def test_rows_equal_those_read_record_by_record(log: tuple[bytes, list[dict[str, Any]]]) -> None:
    batches, rows = log
    assert table(fetched(batches)).to_pylist() == rows


@settings(max_examples=examples(50))
@given(logs(), st.data())
def test_only_the_offsets_asked_for(log: tuple[bytes, list[dict[str, Any]]], data: st.DataObject) -> None:
    batches, rows = log
    some = st.integers(rows[0]["offset"] - 1, rows[-1]["offset"] + 2)
    start, end = data.draw(some), data.draw(some)
    assert table(fetched(batches), start, end).to_pylist() == [one for one in rows if start <= one["offset"] < end]


@settings(max_examples=examples(50))
@given(logs())
def test_small_pieces_make_the_same_rows(log: tuple[bytes, list[dict[str, Any]]]) -> None:
    batches, rows = log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "ROWS_BYTES", 50)
        assert table(fetched(batches)).to_pylist() == rows


@given(st.lists(st.tuples(times, maybe_bytes, maybe_bytes, record_headers), min_size=1, max_size=4), st.data())
def test_bytes_that_are_no_records_are_refused(made: list[tuple[Any, ...]], data: st.DataObject) -> None:
    batch = build([Record(offset, *fields) for offset, fields in enumerate(made)])
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    seal(batch, 0, len(batch))
    seen = outcome(lambda: [(one.offset, one.timestamp * 1000, one.key, one.value) for one in records(batch)])
    assert outcome(lambda: columns_of(table(fetched(batch), -(1 << 40)))) in (seen, "too far")


def columns_of(found: pa.Table) -> list[tuple[Any, ...]]:
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    return list(
        zip(found["offset"].to_pylist(), times, found["key"].to_pylist(), found["value"].to_pylist(), strict=True)
    )


def outcome(read: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]] | str:
    """Return the rows, or the reason why the bytes cannot be read."""
    try:
        return read()
    except KafkaError as error:
        return "too far" if "too far" in error.message else "refused"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xb0", "\ufffd"),
        (b"a\xed\xbf\xbf\xbfb", "a\ufffd\ufffdb"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xed\x9f\xbf", "\ud7ff"),
    ],
)
def test_names_of_headers_that_are_no_utf8_are_as_java_reads_them(name: bytes, text: str) -> None:
    """The expected strings are those of Java's ``new String(bytes, UTF_8)``."""
    record = Record(0, 1, None, None, ((name.decode("utf-8", "surrogateescape"), b""),))
    assert table(fetched(build([record])))["headers"].to_pylist() == [[{"key": text, "value": b""}]]


@st.composite
def wire_bytes(draw: st.DrawFn) -> bytes:
    """Generate batches that a network, a disk or an attacker may have altered, often with valid checksums."""
    log = bytearray(draw(logs())[0])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(log)))
        cut = draw(st.sampled_from((0, 0, 1, 4, 8, len(log))))
        log[at : at + cut] = draw(st.binary(max_size=8) | st.sampled_from(EXTREMES))
    if draw(st.booleans()):
        with suppress(KafkaError):
            for pos, header in headers(bytes(log)):
                if header.magic == MAGIC_V2:
                    seal(log, pos, header.size_bytes)
                else:
                    crc = zlib.crc32(log[pos + 16 : pos + header.size_bytes])
                    log[pos + 12 : pos + 16] = crc.to_bytes(4, "big")
    return bytes(log)


@settings(max_examples=examples(100))
@given(wire_bytes(), st.booleans(), st.integers(-1, 1 << 63))
def test_any_bytes_are_decoded_or_refused(log: bytes, aborted: bool, start: int) -> None:
    """Only our own error is raised, and no decoded value lies outside the bytes."""
    transactions = [FetchResponse.AbortedTransaction(producer_id=1, first_offset=0)] if aborted else None
    answer = FetchResponse.PartitionData(
        partition_index=PARTITION.partition, high_watermark=END, records=log, aborted_transactions=transactions
    )
    with suppress(KafkaError):
        for batch in decode(fetched_in(PARTITION, start, answer), start, include_headers=True):
            batch.validate(full=True)


@pytest.mark.parametrize("timestamp", [1 << 60, 1 << 62, -(1 << 62), TIMESTAMP_MAX + 1])
def test_time_that_no_table_holds_is_refused(timestamp: int) -> None:
    said = rf"{timestamp} is out of range: .* nanoseconds" if timestamp > 0 else "is out of range"
    with pytest.raises(BadBatch, match=said):
        table(fetched(build([Record(0, timestamp, None, None)])))
    assert table(fetched(build([Record(0, TIMESTAMP_MAX, None, None)])))["timestamp"].cast(pa.int64()).to_pylist() == [
        TIMESTAMP_MAX * 1000
    ]


def test_schema_is_that_of_sparks_source() -> None:
    assert kafka_schema().names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert kafka_schema(include_headers=True).names[-1] == "headers"
    assert table(fetched(b""), include_headers=False).schema == kafka_schema()


def transactional(offset: int, producer: int, value: bytes) -> bytes:
    return bytes(
        build(
            [Record(offset, 1, None, value)],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


def marker(kind: ControlType, offset: int, producer: int) -> bytes:
    return bytes(
        build_marker(ControlMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp=1, base_offset=offset)
    )


def test_aborted_transactions_are_left_out_and_no_more() -> None:
    log = b"".join(
        (
            transactional(0, 7, b"aborted"),
            transactional(1, 8, b"committed"),
            bytes(build([Record(2, 1, None, b"plain")], base_offset=2)),
            transactional(3, 7, b"aborted too"),
            marker(ControlType.ABORT, 4, 7),
            transactional(5, 7, b"next transaction"),
            marker(ControlType.COMMIT, 6, 8),
            marker(ControlType.COMMIT, 7, 7),
        )
    )
    assert table(fetched(log, aborted=((7, 0),)))["value"].to_pylist() == [b"committed", b"plain", b"next transaction"]
    assert table(fetched(log, aborted=((7, 0),)), 2, 5)["value"].to_pylist() == [b"plain"]
    assert table(fetched(log, aborted=((7, 0),)), 5)["value"].to_pylist() == [b"next transaction"]
    assert len(table(fetched(log))) == 5  # read_uncommitted: all except the markers


@pytest.mark.parametrize("byte", range(8))
@pytest.mark.parametrize("bit", [0, 3, 7])
def test_offset_of_a_batch_that_is_wrong_is_no_gap(byte: int, bit: int) -> None:
    """The checksum does not cover the offset. Otherwise rows would have wrong offsets, or be lost."""
    log = bytearray()
    for first in (100, 110, 120):
        log += build([Record(first + number, 1, None, b"v") for number in range(10)], base_offset=first)
    log[len(log) // 3 + byte] ^= 1 << bit
    answer = FetchResponse.PartitionData(partition_index=0, high_watermark=130, records=bytes(log))
    with pytest.raises(
        KafkaError,
        match=r"töpic-3 contains a batch with impossible offsets at or after offset 100, .*: the log is corrupt",
    ):
        fetched_in(PARTITION, 100, answer)


@pytest.mark.parametrize("codec", Compression)
def test_corrupt_batch_is_named(codec: Compression) -> None:
    good = bytes(build([Record(5, 1, b"k", b"v" * 100)], base_offset=5, compression=codec))
    bad = bytearray(build([Record(6, 1, b"k", b"v" * 100)], base_offset=6, compression=codec))
    bad[-1] ^= 1
    with pytest.raises(BadBatch, match=r"töpic-3 at offset 6 .* checksum .* offset 7") as caught:
        table(fetched(good + bytes(bad)))
    assert (caught.value.partition, caught.value.offset, caught.value.next_offset) == (PARTITION, 6, 7)
