"""Messages of magic 0 and 1, and v2 batches converted for clients that read only those."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records import legacy
from parley.protocol.records.batch import build, records, validate
from parley.protocol.records.batch_header import TimestampType, headers, read_header
from parley.protocol.records.compression import Compression, compress
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.down_conversion import to_legacy
from parley.protocol.records.errors import CorruptRecord, DecompressedTooLarge, InvalidRecord
from parley.protocol.records.record import Record
from tests.protocol.records.record_strategies import (
    CODECS,
    LEGACY_CODECS,
    record_lists,
    without_headers,
    without_timestamps,
)

SOME = [Record(40 + 3 * i, 1000 + i, b"key" if i % 2 else None, b"value" * i) for i in range(20)]
magics = st.sampled_from([0, 1])


def read(data: bytes | bytearray) -> list[Record]:
    return [record for pos, _ in headers(data) for record in records(data, pos)]


@given(record_lists(base_offset=5, gaps=True, headers=False), magics, st.sampled_from(LEGACY_CODECS))
def test_built_messages_are_read_back(some: list[Record], magic: int, codec: Compression) -> None:
    data = legacy.build(some, magic, compression=codec)
    for pos, header in headers(data):
        validate(data, pos, header)
        assert header.magic == magic
        assert header.compression is codec
    assert read(data) == (without_timestamps(some) if magic == 0 else some)


def test_a_header_is_read_without_decompression() -> None:
    header = read_header(legacy.build(SOME, 1, compression=Compression.GZIP))
    assert (header.base_offset, header.last_offset, header.next_offset) == (97, 97, 98)
    assert header.max_timestamp == 1019
    assert (header.producer_id, header.last_sequence, header.partition_leader_epoch) == (-1, -1, -1)
    assert not header.is_control
    assert not header.is_transactional


def test_the_least_message_has_a_header() -> None:
    """The smallest message is shorter than the header of a v2 batch."""
    for magic in (0, 1):
        data = legacy.build([Record(7, 5, None, None)], magic)
        assert read_header(data).last_offset == 7
        assert read(data) == [Record(7, 5 if magic else -1, None, None)]


def test_log_append_time_is_that_of_the_wrapper() -> None:
    for codec in LEGACY_CODECS:
        data = legacy.build(SOME, 1, compression=codec, append_time=77)
        assert read_header(data).timestamp_type is TimestampType.APPEND
        assert {record.timestamp for record in read(data)} == {77}


def test_a_wrapper_whose_producer_left_the_offset_at_0() -> None:
    data = legacy.build([Record(i, 5, None, b"v") for i in range(4)], 1, compression=Compression.GZIP)
    struct.pack_into(">q", data, 0, 0)
    assert [record.offset for record in read(data)] == [0, 1, 2, 3]


def wrapped(
    inner: bytes, magic: int = 1, codec: Compression = Compression.GZIP, attributes: int | None = None
) -> bytes:
    """Return a wrapper message around these inner bytes."""
    value = compress(codec, inner, magic=magic)
    return legacy.message(0, magic, codec if attributes is None else attributes, 5, None, value)


def test_damage_inside_a_wrapper_is_noticed() -> None:
    inner = legacy.build(SOME, 1)
    inner[60] ^= 1
    with pytest.raises(CorruptRecord, match="checksum"):
        read(wrapped(bytes(inner)))


@pytest.mark.parametrize(
    "data",
    [
        wrapped(b""),
        wrapped(bytes(legacy.build(SOME, 0))),
        wrapped(wrapped(bytes(legacy.build(SOME, 1)))),
        wrapped(bytes(legacy.build(SOME, 1)) + b"more"),
        wrapped(bytes(legacy.build(SOME, 1))[:-1]),
        legacy.message(0, 1, Compression.GZIP, 5, None, None),
        legacy.message(0, 1, Compression.GZIP, 5, None, b"noise"),
        wrapped(bytes(legacy.build(SOME, 1)), attributes=4),
        wrapped(bytes(legacy.build(SOME, 1)), attributes=7),
        wrapped(bytes(build(SOME))),
    ],
    ids=[
        "empty",
        "other magic",
        "nested",
        "trailing",
        "cut off",
        "null",
        "noise",
        "zstd",
        "no such codec",
        "v2 inside",
    ],
)
def test_a_wrapper_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises((InvalidRecord, CorruptRecord)):
        read(data)


@pytest.mark.parametrize("key_size", [-1 << 31, 5, 1 << 30])
def test_sizes_that_cannot_be_are_invalid(key_size: int) -> None:
    body = struct.pack(">bbqi", 1, 0, 5, key_size) + b"key" + struct.pack(">i", -1)
    data = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    with pytest.raises(InvalidRecord):
        read(data)


def test_more_than_allowed_is_refused() -> None:
    data = wrapped(bytes(legacy.build([Record(0, 0, None, bytes(1_000_000))], 1)))
    with pytest.raises(DecompressedTooLarge):
        list(records(data, max_bytes=999_999))


@given(st.data(), magics, st.sampled_from(LEGACY_CODECS))
def test_damage_ends_in_a_protocol_error_or_in_sound_records(
    draw: st.DataObject, magic: int, codec: Compression
) -> None:
    data = legacy.build(SOME[:3], magic, compression=codec)
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(CorruptRecord, InvalidRecord, DecompressedTooLarge):
        for pos, header in headers(data):
            list(records(data, pos, max_bytes=1 << 20))
            verify_crc(data, pos, header)


# For old clients.


@given(
    record_lists(base_offset=5, gaps=True),
    magics,
    st.sampled_from(LEGACY_CODECS),
    st.none() | st.integers(0, 1 << 44),
)
def test_a_batch_for_an_old_client_holds_the_same_records(
    some: list[Record], magic: int, codec: Compression, append_time: int | None
) -> None:
    batch = build(some, base_offset=5, keep_offsets=True, compression=codec, append_time=append_time)
    converted = b"".join(to_legacy(batch, magic))
    for pos, header in headers(converted):
        validate(converted, pos, header)
        assert header.magic == magic
        assert header.compression is codec
    stamped = [record if append_time is None else record._replace(timestamp=append_time) for record in some]
    assert read(converted) == (without_timestamps(stamped) if magic == 0 else without_headers(stamped))


def test_records_before_the_first_offset_are_left_out_unless_compressed() -> None:
    some = [Record(i, 0, None, b"v") for i in range(10)]
    plain = b"".join(to_legacy(build(some), 1, first_offset=6))
    assert [record.offset for record in read(plain)] == [6, 7, 8, 9]
    packed = b"".join(to_legacy(build(some, compression=Compression.GZIP), 1, first_offset=6))
    assert [record.offset for record in read(packed)] == list(range(10))
    assert to_legacy(build(some), 1, first_offset=10) == []


def test_control_batches_and_cut_off_ones_are_left_out() -> None:
    some = [Record(0, 0, None, b"v")]
    log = build(some) + build(some, base_offset=1, control=True) + build(some, base_offset=2)
    converted = b"".join(to_legacy(log + build(some, base_offset=3)[:-1], 1))
    assert [record.offset for record in read(converted)] == [0, 2]
    assert to_legacy(build(some, control=True), 0) == []


def test_batches_in_an_old_format_are_not_copied() -> None:
    log = legacy.build(SOME, 0) + build(SOME, base_offset=200)
    converted = to_legacy(log, 0)
    assert converted[0].obj is log  # type: ignore[union-attr]
    assert read(b"".join(converted))[:20] == without_timestamps(SOME)


def test_magic_1_becomes_magic_0() -> None:
    for codec in LEGACY_CODECS:
        converted = b"".join(to_legacy(legacy.build(SOME, 1, compression=codec), 0))
        assert {header.magic for _, header in headers(converted)} == {0}
        assert read(converted) == without_timestamps(SOME)


def test_zstd_cannot_be_given_to_an_old_client() -> None:
    packed = build(SOME, compression=Compression.ZSTD)
    with pytest.raises(KafkaError) as refused:
        to_legacy(packed, 1)
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert len(read(b"".join(to_legacy(build(SOME) + packed, 1)))) == len(SOME)


def test_no_batch_is_begun_beyond_the_limit() -> None:
    log = b"".join(build([Record(0, 0, None, bytes(100))], base_offset=i) for i in range(10))
    assert len(to_legacy(log, 1, max_bytes=1)) == 1
    assert len(to_legacy(log, 1, max_bytes=300)) == 3
    assert len(to_legacy(log, 1)) == 10


@pytest.mark.parametrize("codec", CODECS[:4])
def test_a_bomb_is_not_converted(codec: Compression) -> None:
    bomb = build([Record(0, 0, None, bytes(1_000_000))], compression=codec)
    with pytest.raises(DecompressedTooLarge):
        to_legacy(bomb, 1, converted_bytes_max=500_000)
    before = build([Record(0, 0, None, b"v")])
    assert len(to_legacy(before + bomb, 1, converted_bytes_max=500_000)) == 1, "what came before it is answered"


def test_tiny_records_are_counted_as_the_messages_they_become() -> None:
    tiny = build([Record(0, 0, None, None)] * 10_000, compression=Compression.GZIP)
    assert len(to_legacy(tiny, 1, converted_bytes_max=340_000)) == 1
    with pytest.raises(DecompressedTooLarge):
        to_legacy(tiny, 1, converted_bytes_max=339_999)
