"""aiokafka's and kafka-python's record classes as the reference: they read what we write, and we read what
they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.record.default_records as aiokafka_default
import aiokafka.record.legacy_records as aiokafka_legacy
import aiokafka.record.memory_records as aiokafka_memory
import kafka.record.default_records as kafka_python_default
import kafka.record.legacy_records as kafka_python_legacy
import kafka.record.memory_records as kafka_python_memory
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parley.protocol.records import legacy
from parley.protocol.records.batch import build, records, validate
from parley.protocol.records.batch_header import headers
from parley.protocol.records.compression import Compression
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.record import Record
from tests.protocol.records.record_strategies import CODECS, LEGACY_CODECS, record_lists, without_timestamps
from tests.support.proportion import examples

Read = list[Record]


def batches(reader: Any) -> Iterator[Any]:
    while reader.has_next():
        yield reader.next_batch()


def aiokafka_reads(data: bytes) -> Read:
    return read_by(aiokafka_memory.MemoryRecords(data))


def aiokafka_python_reads(data: bytes) -> Read:
    found: Read = []
    for pos, header in headers(data):
        whole = data[pos : pos + header.size_bytes]
        batch: Any
        if header.magic == 2:
            batch = aiokafka_default._DefaultRecordBatchPy(whole)
        else:
            batch = aiokafka_legacy._LegacyRecordBatchPy(whole, header.magic)
        assert batch.validate_crc()
        found.extend(record_of(record) for record in batch)
    return found


def kafka_python_reads(data: bytes) -> Read:
    return read_by(kafka_python_memory.MemoryRecords(data))


def read_by(reader: Any) -> Read:
    found: Read = []
    for batch in batches(reader):
        assert batch.validate_crc()
        found.extend(record_of(record) for record in batch)
    return found


def record_of(record: Any) -> Record:
    timestamp = -1 if record.timestamp is None else record.timestamp
    key = None if record.key is None else bytes(record.key)
    value = None if record.value is None else bytes(record.value)
    return Record(record.offset, timestamp, key, value, tuple((name, content) for name, content in record.headers))


READERS = [aiokafka_reads, aiokafka_python_reads, kafka_python_reads]


def aiokafka_writes(some: Read, magic: int, codec: Compression) -> bytes:
    return written(
        aiokafka_default.DefaultRecordBatchBuilder, aiokafka_legacy.LegacyRecordBatchBuilder, some, magic, codec
    )


def kafka_python_writes(some: Read, magic: int, codec: Compression) -> bytes:
    return written(
        kafka_python_default.DefaultRecordBatchBuilder, kafka_python_legacy.LegacyRecordBatchBuilder, some, magic, codec
    )


def written(default: Any, old: Any, some: Read, magic: int, codec: Compression) -> bytes:
    size = 1 << 20
    if magic == 2:
        builder = default(
            magic=2,
            compression_type=codec,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=size,
        )
    else:
        builder = old(magic=magic, compression_type=codec, batch_size=size)
    for record in some:
        timestamp = None if magic == 0 else record.timestamp
        assert builder.append(record.offset, timestamp, record.key, record.value, list(record.headers)) is not None
    return bytes(builder.build())


WRITERS = [aiokafka_writes, kafka_python_writes]


@pytest.mark.parametrize("read", READERS)
@settings(max_examples=examples(60))
@given(some=record_lists(), codec=st.sampled_from(CODECS))
def test_others_read_our_batches(read: Callable[[bytes], Read], some: Read, codec: Compression) -> None:
    assert read(bytes(build(some, compression=codec))) == some


@pytest.mark.parametrize("write", WRITERS)
@settings(max_examples=examples(60))
@given(some=record_lists(), codec=st.sampled_from(CODECS))
def test_we_read_the_batches_of_others(
    write: Callable[[Read, int, Compression], bytes], some: Read, codec: Compression
) -> None:
    some = [record._replace(timestamp=abs(record.timestamp)) for record in some]
    data = write(some, 2, codec)
    for pos, header in headers(data):
        validate(data, pos, header, consecutive=True)
    assert [record for pos, _ in headers(data) for record in records(data, pos)] == some


def known_to(other: Callable[..., Any], magic: int, codec: Compression) -> bool:
    """Return True if the other implementation supports the codec; aiokafka lacks the lz4 framing of magic
    0 (KIP-57)."""
    return "aiokafka" not in other.__name__ or magic == 1 or codec is not Compression.LZ4


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("magic", [0, 1])
@settings(max_examples=examples(60))
@given(some=record_lists(base_offset=9, gaps=True, headers=False), codec=st.sampled_from(LEGACY_CODECS))
def test_others_read_our_old_messages(
    read: Callable[[bytes], Read], magic: int, some: Read, codec: Compression
) -> None:
    assume(known_to(read, magic, codec))
    data = legacy.build(some, magic, compression=codec)
    assert read(bytes(data)) == (without_timestamps(some) if magic == 0 else some)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("magic", [0, 1])
@settings(max_examples=examples(60))
@given(some=record_lists(headers=False), codec=st.sampled_from(LEGACY_CODECS))
def test_we_read_the_old_messages_of_others(
    write: Callable[[Read, int, Compression], bytes], magic: int, some: Read, codec: Compression
) -> None:
    assume(known_to(write, magic, codec))
    some = [record._replace(timestamp=abs(record.timestamp)) for record in some]
    data = write(some, magic, codec)
    found: list[Record] = []
    for pos, header in headers(data):
        verify_crc(data, pos, header)
        found.extend(records(data, pos))
    assert found == (without_timestamps(some) if magic == 0 else some)
