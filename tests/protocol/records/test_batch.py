"""v2 batches: building, reading, headers, patching, and inconsistent batches."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.errors import ErrorCode
from parley.protocol.records.batch import assemble, build, records, validate, walk
from parley.protocol.records.batch_header import HEADER_SIZE, BatchHeader, TimestampType, headers, read_header
from parley.protocol.records.batch_patch import assign, set_max_timestamp
from parley.protocol.records.compression import Compression, compress
from parley.protocol.records.crc import seal, verify_crc
from parley.protocol.records.errors import CorruptRecord, DecompressedTooLarge, InvalidRecord
from parley.protocol.records.record import Record
from tests.protocol.records.record_strategies import CODECS, record_lists

SOME = [Record(i, 1000 + i, b"key" if i % 2 else None, b"value" * i, (("name", b"content"),)) for i in range(20)]


def changed(data: bytes | bytearray, **fields: int) -> bytearray:
    """Return the batch with changed header fields and a valid checksum."""
    header = read_header(data)._replace(**fields)
    return assemble(header, data[HEADER_SIZE:])


@given(record_lists(), st.sampled_from(CODECS), st.integers(0, 1 << 40))
def test_a_built_batch_is_read_back(some: list[Record], codec: Compression, base_offset: int) -> None:
    data = build(some, base_offset=base_offset, compression=codec)
    header = read_header(data)
    validate(data, 0, header, consecutive=True)
    assert header.size_bytes == len(data)
    assert header.record_count == len(some)
    assert header.compression is codec
    assert header.max_timestamp == max(record.timestamp for record in some)
    assert header.next_offset == base_offset + len(some)
    assert list(records(data)) == [record._replace(offset=base_offset + i) for i, record in enumerate(some)]


@given(record_lists(base_offset=7, gaps=True), st.sampled_from(CODECS))
def test_offsets_can_have_gaps(some: list[Record], codec: Compression) -> None:
    data = build(some, base_offset=7, keep_offsets=True, compression=codec)
    header = read_header(data)
    validate(data, 0, header)
    assert header.last_offset == some[-1].offset
    assert list(records(data)) == some
    if header.last_offset_delta != len(some) - 1:
        with pytest.raises(InvalidRecord, match="consecutive"):
            validate(data, 0, header, consecutive=True)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_timestamps_are_read_as_written_or_refused(first: int, second: int) -> None:
    some = [Record(0, first, None, None), Record(1, second, None, None)]
    if abs(second - first) >= 1 << 63:
        with pytest.raises(InvalidRecord, match="64 bits"):
            build(some)
        return
    assert list(records(build(some))) == some


def test_timestamps_before_1970() -> None:
    some = [Record(0, -100, None, None), Record(1, -5, None, None)]
    data = build(some)
    header = read_header(data)
    validate(data, 0, header, consecutive=True)
    assert header.max_timestamp == -1  # as in Kafka, which begins its search for the maximum with this value
    assert list(records(data)) == some


@given(st.binary(max_size=12))
def test_header_names_that_are_no_utf8_survive(name: bytes) -> None:
    data = build([Record(0, 0, None, None, ((name.decode("utf-8", "surrogateescape"), None),))])
    ((read, _),) = next(records(data)).headers
    assert read.encode("utf-8", "surrogateescape") == name
    assert build(list(records(data))) == data


def test_the_header_of_a_built_batch_contains_the_arguments() -> None:
    data = build(
        SOME,
        base_offset=5,
        compression=Compression.LZ4,
        producer_id=77,
        producer_epoch=3,
        base_sequence=(1 << 31) - 5,
        partition_leader_epoch=9,
        transactional=True,
        control=True,
        timestamp_type=TimestampType.APPEND,
    )
    header = read_header(data)
    assert (header.producer_id, header.producer_epoch, header.partition_leader_epoch) == (77, 3, 9)
    assert header.is_transactional
    assert header.is_control
    assert header.has_producer
    assert header.timestamp_type is TimestampType.APPEND
    assert header.last_sequence == 14  # sequence numbers wrap to 0
    assert header.delete_horizon_ms is None
    assert (header.last_offset, header.next_offset) == (24, 25)


def test_no_sequence_has_no_last_sequence() -> None:
    assert read_header(build(SOME)).last_sequence == -1


def test_the_delete_horizon_is_the_base_timestamp() -> None:
    assert read_header(changed(build(SOME), attributes=0x40)).delete_horizon_ms == 1000


def test_an_empty_batch_has_no_records() -> None:
    data = build([], base_offset=3)
    validate(data, 0, read_header(data))
    assert list(records(data)) == []


@given(record_lists(), st.sampled_from(CODECS), st.integers(0, (1 << 62)), st.integers(0, (1 << 31) - 1))
def test_offset_and_epoch_are_patched_without_a_new_checksum(
    some: list[Record], codec: Compression, offset: int, epoch: int
) -> None:
    data = bytearray(b"before") + build(some, compression=codec)
    before = read_header(data, 6)
    header = assign(data, 6, before, offset, epoch)
    assert header == read_header(data, 6)
    validate(data, 6, header, consecutive=True)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (offset, epoch, before.crc)
    assert [record.offset for record in records(data, 6)] == list(range(offset, offset + len(some)))


@given(record_lists(), st.sampled_from(CODECS), st.integers(0, 1 << 45))
def test_log_append_time_is_the_timestamp_of_all_records(some: list[Record], codec: Compression, now: int) -> None:
    data = memoryview(build(some, compression=codec))
    header = assign(data, 0, read_header(data), 10, 1, now)
    assert header == read_header(data)
    verify_crc(data, 0, header)
    assert header.timestamp_type is TimestampType.APPEND
    assert {record.timestamp for record in records(data)} == {now}
    assert build(some, compression=codec, base_offset=10, partition_leader_epoch=1, append_time=now) == data


def test_the_maximum_timestamp_is_patched() -> None:
    data = bytearray(3) + build(SOME) + bytearray(9)
    header = set_max_timestamp(data, 3, read_header(data, 3), 5)
    assert header == read_header(data, 3)
    verify_crc(data, 3, header)
    assert header.max_timestamp == 5


def test_batches_are_found_one_behind_the_other_up_to_a_cut_off_one() -> None:
    first, second = build(SOME), build(SOME[:3], base_offset=20)
    data = bytes(2) + first + second
    for cut in range(len(data), len(data) - len(second), -1):
        found = [(pos, header.base_offset) for pos, header in headers(data[:cut], 2)]
        assert found == [(2, 0), (2 + len(first), 20)][: 2 if cut == len(data) else 1]
    assert [pos for pos, _ in headers(data, 2, 2 + len(first) + 5)] == [2]


def test_batches_are_read_from_any_buffer() -> None:
    data = build(SOME)
    for form in (bytes(data), data, memoryview(data), memoryview(bytes(data))):
        header = read_header(form)
        validate(form, 0, header, consecutive=True)
        assert list(records(form)) == SOME


def test_a_record_larger_than_the_pieces_is_walked() -> None:
    some = [Record(0, 0, None, b"x" * 300), Record(1, 0, b"k", bytes(700_000)), Record(2, 0, None, bytes(200_000))]
    for codec in CODECS:
        data = build(some, compression=codec)
        seen = walk(data, 0, read_header(data), consecutive=True)
        assert (seen.count, seen.first_null_key) == (3, 0)


def test_a_walk_holds_only_a_piece_of_a_large_record() -> None:
    some = [Record(0, 0, bytes(8 << 20), bytes(8 << 20), (("h", bytes(8 << 20)),))]
    for codec in CODECS:
        data = build(some, compression=codec)
        tracemalloc.start()
        try:
            assert walk(data, 0, read_header(data), consecutive=True).count == 1
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 12 << 20, codec  # lz4 decoders make buffers of 10 MB; the record has 24 MB


# What is refused.


def test_fewer_bytes_than_a_header_are_corrupt() -> None:
    data = build(SOME)
    for size in range(HEADER_SIZE):
        with pytest.raises(CorruptRecord):
            read_header(data[:size])
    with pytest.raises(CorruptRecord):
        read_header(data, len(data))
    with pytest.raises(CorruptRecord):
        read_header(data, -1)


@pytest.mark.parametrize("length", [48, 0, -1, -(1 << 31)])
def test_a_length_below_that_of_a_header_is_corrupt(length: int) -> None:
    data = build(SOME)
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptRecord, match="less than the size of a header"):
        read_header(data)
    with pytest.raises(CorruptRecord):
        list(headers(data))


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_a_magic_that_does_not_exist_is_corrupt(magic: int) -> None:
    data = build(SOME)
    data[16] = magic
    with pytest.raises(CorruptRecord, match="magic"):
        read_header(data)


def test_a_batch_that_is_not_whole_is_corrupt() -> None:
    data = build(SOME)
    header = read_header(data)
    with pytest.raises(CorruptRecord):
        verify_crc(data[:-1], 0, header)
    with pytest.raises(CorruptRecord):
        list(records(data[:-1]))


def test_every_changed_byte_is_noticed_by_the_checksum() -> None:
    data = build(SOME[:2])
    for at in range(17, len(data)):
        data[at] ^= 0x10
        with pytest.raises(CorruptRecord):
            verify_crc(data, 0, read_header(data))
        data[at] ^= 0x10
    verify_crc(data, 0, read_header(data))


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": 19},
        {"record_count": 21},
        {"record_count": -1},
        {"record_count": (1 << 31) - 1},
        {"last_offset_delta": 18},
        {"last_offset_delta": 20},
        {"last_offset_delta": -1},
        {"max_timestamp": 1018},
        {"base_timestamp": (1 << 63) - 1},
    ],
)
@pytest.mark.parametrize("codec", CODECS)
def test_a_header_that_disagrees_with_the_records_is_invalid(fields: dict[str, int], codec: Compression) -> None:
    data = changed(build(SOME, compression=codec), **fields)
    with pytest.raises(InvalidRecord) as refused:
        validate(data, 0, read_header(data), consecutive=True)
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [0, 19, 21, 1 << 30, -1])
def test_a_wrong_count_is_noticed_while_reading(count: int) -> None:
    with pytest.raises(InvalidRecord):
        list(records(changed(build(SOME), record_count=count)))


def test_a_codec_that_does_not_exist_is_invalid() -> None:
    for codec in (5, 6, 7):
        data = changed(build(SOME), attributes=codec)
        with pytest.raises(InvalidRecord):
            validate(data, 0, read_header(data))
        with pytest.raises(InvalidRecord):
            list(records(data))


@pytest.mark.parametrize("codec", CODECS)
def test_more_bytes_than_allowed_are_refused(codec: Compression) -> None:
    data = build([Record(0, 0, None, bytes(1_000_000))], compression=codec)
    if codec is not Compression.NONE:  # without compression, the size of the records is known
        with pytest.raises(DecompressedTooLarge):
            validate(data, 0, read_header(data), max_bytes=999_999)
    with pytest.raises(DecompressedTooLarge) as refused:
        list(records(data, max_bytes=999_999))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    validate(data, 0, read_header(data), max_bytes=1_100_000)


RECORD = {
    "a length beyond the batch": b"\x40\x00\x00\x00\x01\x01\x00",
    "a negative length": b"\x01\x00\x00\x00\x01\x01\x00",
    "a length of zero": b"\x00\x00\x00\x00\x01\x01\x00",
    "fields that do not fill the record": b"\x0e\x00\x00\x00\x01\x01\x00\x00",
    "fields longer than the record": b"\x08\x00\x00\x00\x01\x01\x00",
    "a key longer than the record": b"\x0c\x00\x00\x00\x08\x01\x00",
    "a negative length of a key": b"\x0c\x00\x00\x00\x03\x01\x00",
    "a negative length of a value": b"\x0c\x00\x00\x00\x01\x03\x00",
    "a value longer than the record": b"\x0c\x00\x00\x00\x01\x7e\x00",
    "a negative number of headers": b"\x0c\x00\x00\x00\x01\x01\x01",
    "more headers than bytes": b"\x0c\x00\x00\x00\x01\x01\x7e",
    "a header without a name": b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",
    "a header's value longer than the record": b"\x10\x00\x00\x00\x01\x01\x02\x00\x7e",
    "a negative length of a header's value": b"\x10\x00\x00\x00\x01\x01\x02\x00\x03",
    "an offset delta that is not 0": b"\x0c\x00\x00\x02\x01\x01\x00",
    "a negative offset delta": b"\x0c\x00\x00\x01\x01\x01\x00",
    "a number that does not end": b"\x1a\x00" + b"\x80" * 12,
    "a number of more than 32 bits": b"\x14\x00\x00\x80\x80\x80\x80\x10\x01\x01\x00",
}


@pytest.mark.parametrize("record", RECORD.values(), ids=RECORD.keys())
@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_cannot_be_is_invalid(record: bytes, codec: Compression) -> None:
    right = changed(build([Record(0, 0, None, None)]), record_count=1)
    assert right[HEADER_SIZE:] == b"\x0c\x00\x00\x00\x01\x01\x00"
    data = build([], compression=codec)
    header = read_header(data)._replace(record_count=1, last_offset_delta=0)
    body = compress(codec, record)
    data = assemble(header._replace(length=HEADER_SIZE - 12 + len(body)), body)
    with pytest.raises(InvalidRecord):
        validate(data, 0, read_header(data), consecutive=True)


@given(st.data(), record_lists(), st.sampled_from(CODECS))
def test_damage_ends_in_a_protocol_error_or_in_sound_records(
    draw: st.DataObject, some: list[Record], codec: Compression
) -> None:
    data = build(some, compression=codec)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(16, min(len(data) - 1, 400)))
        data[at] = draw.draw(st.integers(0, 255))
    try:
        header = read_header(data)
        if header.size_bytes > len(data):
            return
        if header.magic == 2:
            seal(data, 0, header.size_bytes)
        header = read_header(data)
        validate(data, 0, header, consecutive=True, max_bytes=1 << 22)
    except (CorruptRecord, InvalidRecord, DecompressedTooLarge):
        return
    assert isinstance(header, BatchHeader)
    if header.magic == 2:
        assert len(list(records(data, max_bytes=1 << 22))) == header.record_count


@given(st.binary(max_size=200))
def test_noise_ends_in_a_protocol_error(noise: bytes) -> None:
    try:
        for pos, header in headers(noise):
            list(records(noise, pos))
            validate(noise, pos, header)
    except (CorruptRecord, InvalidRecord, DecompressedTooLarge):
        pass
