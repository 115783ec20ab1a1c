"""Records of a produce request: accepted unchanged, corrected, converted, or rejected with Kafka's error code."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records import legacy
from parley.protocol.records.batch import assemble, build, records, validate
from parley.protocol.records.batch_header import HEADER_SIZE, Buffer, TimestampType, read_header
from parley.protocol.records.compression import Compression, compress
from parley.protocol.records.crc import seal
from parley.protocol.records.produce_validation import (
    LISTED_BYTES_MAX,
    RECORD_ERRORS_MAX,
    Prepared,
    ProduceRules,
    RecordErrors,
    prepare,
)
from parley.protocol.records.record import Record
from tests.protocol.records.record_strategies import (
    CODECS,
    LEGACY_CODECS,
    record_lists,
    without_timestamps,
)

NOW = 1_700_000_000_000
NEWEST = 13
RULES = ProduceRules()
HOUR = 3_600_000
BOUNDED = ProduceRules(timestamp_before_max_ms=HOUR, timestamp_after_max_ms=HOUR)
COMPACTED = ProduceRules(require_keys=True)
SOME = [Record(i, NOW + i, b"key" if i % 2 else None, b"value" * i, (("name", b"content"),)) for i in range(20)]
KEYED = [record._replace(key=b"key") for record in SOME]


def prepared(
    data: bytes | bytearray | memoryview | None, rules: ProduceRules = RULES, version: int = NEWEST
) -> Prepared:
    return prepare(data, rules, now_ms=NOW, version=version)


def refusal(data: Buffer | None, rules: ProduceRules = RULES, version: int = NEWEST) -> ErrorCode:
    """Return the error code of the rejection. Checks that the records were not changed."""
    before = None if data is None else bytes(data)
    with pytest.raises(KafkaError) as refused:
        prepared(data, rules, version)
    assert data is None or bytes(data) == before
    return refused.value.code


def changed(data: bytes | bytearray, **fields: int) -> bytearray:
    """Return the batch with changed header fields and a valid checksum."""
    return assemble(read_header(data)._replace(**fields), data[HEADER_SIZE:])


# Accepted.


@given(record_lists(), st.sampled_from(CODECS))
def test_a_sound_batch_is_given_back_as_it_came(some: list[Record], codec: Compression) -> None:
    data = build(some, compression=codec, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    view = memoryview(data)
    before = bytes(data)
    result = prepared(view)
    assert result.batches is view
    assert data == before
    assert (result.header.record_count, result.conversions) == (len(some), 0)
    assert result.header.max_timestamp == max(record.timestamp for record in some)


def test_bytes_that_cannot_be_written_are_copied() -> None:
    data = build(SOME)
    for form in (bytes(data), memoryview(bytes(data))):
        result = prepared(form)
        assert isinstance(result.batches, bytearray)
        assert result.batches == data
        assert result.conversions == 0


def test_a_wrong_maximum_timestamp_is_corrected() -> None:
    for codec in CODECS:
        data = build(SOME, compression=codec)
        assert prepared(changed(data, max_timestamp=5)).batches == data
        assert prepared(changed(data, max_timestamp=NOW + 500)).batches == data


def test_records_without_timestamps() -> None:
    data = build([Record(0, -1, None, b"v")])
    result = prepared(data, BOUNDED)
    assert result.header.max_timestamp == -1


def test_a_cut_off_batch_behind_the_first_is_left_away() -> None:
    data = build(SOME)
    for behind in (b"\x00", data[:11], data[:60], data[:-1]):
        assert prepared(data + behind).batches == data


@given(record_lists(), st.sampled_from(CODECS), st.sampled_from(CODECS))
def test_the_topics_codec_is_the_one_stored(some: list[Record], source: Compression, target: Compression) -> None:
    data = build(some, compression=source, producer_id=5, producer_epoch=0, base_sequence=3)
    result = prepared(changed(data, max_timestamp=7), replace(RULES, compression=target))
    header = result.header
    assert header == read_header(result.batches)
    validate(result.batches, 0, header, consecutive=True)
    assert header.compression is target
    assert (header.producer_id, header.base_sequence) == (5, 3)
    assert list(records(result.batches)) == some
    assert result.conversions == (0 if source is target else len(some))


def test_the_topics_level_is_used() -> None:
    rules = replace(RULES, compression=Compression.GZIP, compression_level=1)
    data = build([Record(0, NOW, None, bytes(range(250)) * 40)])
    fast = prepared(data, rules).batches
    small = prepared(data, replace(rules, compression_level=9)).batches
    assert len(fast) > len(small)


@given(
    record_lists(headers=False),
    st.sampled_from([0, 1]),
    st.sampled_from(LEGACY_CODECS),
    st.none() | st.sampled_from(CODECS),
)
def test_old_messages_become_one_batch(
    some: list[Record], magic: int, source: Compression, target: Compression | None
) -> None:
    data = legacy.build(some, magic, compression=source)
    result = prepared(data, replace(RULES, compression=target), version=2)
    header = result.header
    assert header == read_header(result.batches)
    validate(result.batches, 0, header, consecutive=True)
    assert header.compression is (source if target is None else target)
    assert list(records(result.batches)) == (without_timestamps(some) if magic == 0 else some)
    assert (result.header.record_count, result.conversions) == (len(some), len(some))
    assert result.header.max_timestamp == header.max_timestamp


def test_several_wrappers_become_one_batch() -> None:
    data = legacy.build(SOME[:5], 1, compression=Compression.GZIP) * 3 + legacy.build(SOME[:1], 1)
    result = prepared(data, version=2)
    assert [record.offset for record in records(result.batches)] == list(range(16))
    assert read_header(result.batches).compression is Compression.GZIP


def test_a_cut_off_message_behind_whole_ones_is_left_away() -> None:
    data = legacy.build(SOME, 1)
    assert prepared(data[:-1], version=1).header.record_count == 19


def test_log_append_time_makes_timestamps_not_matter() -> None:
    rules = replace(BOUNDED, timestamp_type=TimestampType.APPEND)
    assert prepared(build([Record(0, 5, None, None)]), rules).header.record_count == 1
    assert prepared(legacy.build([Record(0, 5, None, None)], 1), rules, version=2).header.record_count == 1


# Refused.


@pytest.mark.parametrize(
    "data", [None, b"", b"\x00" * 12, b"\x00" * 16, bytes(build(SOME)[:60]), bytes(build(SOME)[:-1])]
)
@pytest.mark.parametrize("version", [2, 3, NEWEST])
def test_no_whole_batch(data: bytes | None, version: int) -> None:
    assert refusal(data, version=version) is ErrorCode.INVALID_RECORD


def test_a_cut_off_message() -> None:
    assert refusal(legacy.build(SOME[:1], 1)[:-1], version=2) is ErrorCode.INVALID_RECORD


def test_two_batches() -> None:
    assert refusal(build(SOME) + build(SOME)) is ErrorCode.INVALID_RECORD
    assert refusal(build(SOME) + build(SOME), version=2) is ErrorCode.INVALID_RECORD
    assert refusal(build(SOME) + legacy.build(SOME, 1)) is ErrorCode.INVALID_RECORD


def test_old_messages_in_a_new_request() -> None:
    for magic in (0, 1):
        assert refusal(legacy.build(SOME, magic), version=3) is ErrorCode.INVALID_RECORD


def test_mixed_messages() -> None:
    assert refusal(legacy.build(SOME, 0) + legacy.build(SOME, 1), version=2) is ErrorCode.INVALID_RECORD
    assert refusal(legacy.build(SOME, 0) + build(SOME), version=2) is ErrorCode.INVALID_RECORD


def test_zstd_in_an_old_request() -> None:
    data = build(SOME, compression=Compression.ZSTD)
    assert refusal(data, version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert prepared(data, version=7).header.record_count == 20


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"base_offset": 1}, ErrorCode.INVALID_RECORD),
        ({"base_offset": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 19}, ErrorCode.INVALID_RECORD),
        ({"record_count": 21, "last_offset_delta": 20}, ErrorCode.INVALID_RECORD),
        ({"record_count": 19, "last_offset_delta": 18}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1, "last_offset_delta": -2}, ErrorCode.INVALID_RECORD),
        ({"record_count": (1 << 31) - 1, "last_offset_delta": (1 << 31) - 2}, ErrorCode.INVALID_RECORD),
        ({"record_count": -(1 << 31), "last_offset_delta": (1 << 31) - 1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": (1 << 31) - 1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x40}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.INVALID_RECORD),
        ({"attributes": 1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
        ({"producer_id": 7}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 7, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 7, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"base_timestamp": (1 << 63) - 1}, ErrorCode.INVALID_RECORD),
    ],
)
def test_a_header_that_a_client_must_not_send(fields: dict[str, int], code: ErrorCode) -> None:
    assert refusal(changed(build(SOME), **fields)) is code


def test_bits_without_a_meaning_are_let_through() -> None:
    data = changed(build(SOME), attributes=0x4F80 & ~0x40)
    assert prepared(data).batches is data


def test_a_wrong_checksum_is_corrupt() -> None:
    data = build(SOME)
    data[-1] ^= 1
    assert refusal(data) is ErrorCode.CORRUPT_MESSAGE
    message = legacy.build(SOME, 1)
    message[-1] ^= 1
    assert refusal(message, version=2) is ErrorCode.CORRUPT_MESSAGE


def test_a_length_or_magic_that_cannot_be_is_corrupt() -> None:
    data = build(SOME)
    data[8:12] = b"\x00\x00\x00\x05"
    assert refusal(data) is ErrorCode.CORRUPT_MESSAGE
    data = build(SOME)
    data[16] = 3
    assert refusal(data) is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_larger_than_the_topic_allows() -> None:
    data = build(SOME)
    exact = replace(RULES, max_message_bytes=len(data))
    assert prepared(data, exact).header.record_count == 20
    assert refusal(data, replace(exact, max_message_bytes=len(data) - 1)) is ErrorCode.MESSAGE_TOO_LARGE
    message = legacy.build(SOME[-1:], 1)
    tight = replace(RULES, max_message_bytes=len(message) - 1)
    assert refusal(message, tight, version=2) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_that_conversion_made_larger_than_the_topic_allows() -> None:
    data = build([Record(0, NOW, None, bytes(5000))], compression=Compression.GZIP)
    rules = replace(RULES, max_message_bytes=1000, compression=Compression.NONE)
    assert refusal(data, rules) is ErrorCode.MESSAGE_TOO_LARGE
    old = legacy.build([Record(0, NOW, None, bytes(5000))], 1, compression=Compression.GZIP)
    assert refusal(old, rules, version=2) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec is not Compression.NONE])
def test_a_bomb(codec: Compression) -> None:
    rules = replace(RULES, decompressed_bytes_max=1 << 20)
    some = [Record(0, NOW, b"k", bytes(2 << 20))]
    assert refusal(build(some, compression=codec), rules) is ErrorCode.MESSAGE_TOO_LARGE
    if codec is not Compression.ZSTD:
        old = legacy.build(some, 1, compression=codec)
        assert refusal(old, rules, version=2) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_bomb_of_many_old_wrappers() -> None:
    wrapper = legacy.build([Record(0, NOW, b"k", bytes(600_000))], 1, compression=Compression.GZIP)
    rules = replace(RULES, decompressed_bytes_max=1 << 20)
    assert prepared(wrapper, rules, version=2).header.record_count == 1
    assert refusal(wrapper * 20, rules, version=2) is ErrorCode.MESSAGE_TOO_LARGE


def test_old_messages_that_set_log_append_time() -> None:
    data = legacy.build(SOME, 1, append_time=NOW)
    assert refusal(data, version=2) is ErrorCode.INVALID_TIMESTAMP


def test_old_messages_too_far_apart_in_time() -> None:
    data = legacy.build([Record(0, -10, None, None), Record(1, (1 << 63) - 1, None, None)], 1)
    assert refusal(data, version=2) is ErrorCode.INVALID_RECORD


# Records that break the topic's rules.


def errors(data: bytes | bytearray, rules: ProduceRules, version: int = NEWEST) -> tuple[ErrorCode, list[int]]:
    with pytest.raises(RecordErrors) as refused:
        prepared(data, rules, version)
    assert all(message for _, message in refused.value.record_errors)
    return refused.value.code, [index for index, _ in refused.value.record_errors]


def test_invalid_records_of_a_very_large_batch_are_not_listed() -> None:
    """Listing them takes all records of the batch into memory."""
    large = bytes(LISTED_BYTES_MAX)
    late = build([Record(0, NOW + 2 * HOUR, b"key", large)], compression=Compression.GZIP)
    assert errors(late, BOUNDED) == (ErrorCode.INVALID_TIMESTAMP, [])
    keyless = build([Record(0, NOW, None, large)], compression=Compression.GZIP)
    assert errors(keyless, COMPACTED) == (ErrorCode.INVALID_RECORD, [])


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_wants_keys(codec: Compression) -> None:
    assert prepared(build(KEYED, compression=codec), COMPACTED).header.record_count == 20
    found = errors(build(SOME, compression=codec), COMPACTED)
    assert found == (ErrorCode.INVALID_RECORD, list(range(0, 20, 2)))
    assert prepared(build([Record(0, NOW, b"", None)]), COMPACTED).header.record_count == 1
    if codec is not Compression.ZSTD:
        assert errors(legacy.build(SOME, 1, compression=codec), COMPACTED, version=2) == found


def test_timestamps_outside_the_bounds() -> None:
    inside = [Record(0, NOW - HOUR, None, None), Record(1, NOW + HOUR, None, None), Record(2, -1, None, None)]
    assert prepared(build(inside), BOUNDED).header.record_count == 3
    outside = [*inside, Record(3, NOW - HOUR - 1, None, None), Record(4, NOW + HOUR + 1, None, None)]
    assert errors(build(outside), BOUNDED) == (ErrorCode.INVALID_TIMESTAMP, [3, 4])
    old = legacy.build(outside, 1)
    assert errors(old, BOUNDED, version=2) == (ErrorCode.INVALID_TIMESTAMP, [3, 4])


def test_few_records_are_read_to_find_the_ones_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50,000 tiny records, only one, and a large record, are too late. No objects are created for the others."""
    late = {30_000, 49_999}
    some = [
        Record(i, NOW + 2 * HOUR * (i in late), None, b"v" * (9000 if i == 30_000 else 0), ()) for i in range(50_000)
    ]
    created = 0

    def counting(cls: type[Record], fields: Any) -> Record:
        nonlocal created
        created += 1
        return tuple.__new__(cls, fields)

    monkeypatch.setattr("parley.protocol.records.batch.new_tuple", counting)
    for codec in (Compression.NONE, Compression.GZIP):
        created = 0
        with pytest.raises(RecordErrors) as refused:
            prepared(build(some, compression=codec), BOUNDED)
        assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in refused.value.record_errors] == sorted(late)
        assert 2 <= created < 1000


def test_a_wrong_timestamp_outweighs_a_missing_key() -> None:
    some = [Record(0, NOW, None, None), Record(1, 0, b"k", None)]
    assert errors(build(some), replace(BOUNDED, require_keys=True)) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])


def test_not_every_wrong_record_is_named() -> None:
    some = [Record(i, NOW, None, None) for i in range(5000)]
    _, found = errors(build(some), COMPACTED)
    assert found == list(range(RECORD_ERRORS_MAX))


# Hostile input.


@given(st.data(), st.sampled_from(CODECS), st.sampled_from([0, 1, 2]), st.sampled_from([2, 9]), st.booleans())
def test_damage_ends_in_a_protocol_error_or_in_a_sound_batch(
    draw: st.DataObject, codec: Compression, magic: int, version: int, resealed: bool
) -> None:
    if magic == 2:
        data = build(SOME[:4], compression=codec)
    elif codec is Compression.ZSTD:
        return
    else:
        data = legacy.build(SOME[:4], magic, compression=codec)
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(KafkaError):
        if resealed and magic == 2 and read_header(data).size_bytes <= len(data):
            seal(data, 0, read_header(data).size_bytes)
        rules = replace(
            RULES, decompressed_bytes_max=1 << 20, compression=draw.draw(st.none() | st.sampled_from(CODECS))
        )
        result = prepared(data, rules, version)
        header = result.header
        assert header == read_header(result.batches)
        validate(result.batches, 0, header, consecutive=True)
        assert header.size_bytes == len(result.batches)
        assert len(list(records(result.batches))) == result.header.record_count


@given(st.binary(max_size=150), st.integers(0, 13))
def test_noise_ends_in_a_protocol_error(noise: bytes, version: int) -> None:
    with pytest.raises(KafkaError):
        prepared(noise, version=version)


def test_a_record_body_that_is_noise() -> None:
    for codec in CODECS:
        body = compress(codec, b"noise" * 20)
        header = read_header(build(SOME, compression=codec))._replace(length=HEADER_SIZE - 12 + len(body))
        assert refusal(assemble(header, body)) is ErrorCode.INVALID_RECORD
