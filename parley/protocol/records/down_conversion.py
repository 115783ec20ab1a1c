"""What a log of v2 batches looks like to clients that read only messages of magic 0 or 1 (fetch below version 4).

Headers, producers and transactions do not exist there: headers are dropped and control batches left out. What was
compressed stays so, by the old framing; zstd never existed there, so a client must be told (KIP-110).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records import legacy
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import LEGACY_HEADER_SIZE, BatchHeader, Buffer, TimestampType, headers
from parley.protocol.records.compression import Compression
from parley.protocol.records.errors import DecompressedTooLarge
from parley.protocol.records.record import Record

CONVERTED_BYTES_MAX: Final = 64 << 20
"""What the records of one batch may come to by default, decompressed and as messages: a tiny record of v2 takes
7 bytes, as a message 34, and all of a batch are in memory at once."""


def to_legacy(
    batches: Buffer,
    magic: int,
    *,
    first_offset: int = 0,
    max_bytes: int | None = None,
    converted_bytes_max: int = CONVERTED_BYTES_MAX,
) -> list[Buffer]:
    """The batches as messages of ``magic`` 0 or 1, in order, to be sent one behind the other.

    A batch cut off at the end is left out, and so is one that is of this magic or lower already copied as it is.
    Records before ``first_offset`` are left out where each is a message of its own; old clients count on it.
    ``max_bytes``: no batch is begun once so much was made, so that the answer is larger by one batch at most.

    Raises KafkaError(UNSUPPORTED_COMPRESSION_TYPE) where the first batch is zstd-compressed, DecompressedTooLarge where
    its records exceed ``converted_bytes_max`` (a later such batch ends the answer before it), and for damaged batches
    CorruptRecord or InvalidRecord.
    """
    out: list[Buffer] = []
    size = 0
    for pos, header in headers(batches):
        if max_bytes is not None and size >= max_bytes:
            break
        if header.is_control:
            continue
        if header.compression is Compression.ZSTD:
            if out:
                break
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Records compressed with zstd need a newer client (KIP-110)."
            )
        if header.magic <= magic:
            converted: Buffer = memoryview(batches)[pos : pos + header.size_bytes]
        else:
            try:
                converted = _converted(batches, pos, header, magic, first_offset, converted_bytes_max)
            except DecompressedTooLarge:
                if out:
                    break
                raise
        if len(converted):
            out.append(converted)
            size += len(converted)
    return out


def _converted(
    batches: Buffer, pos: int, header: BatchHeader, magic: int, first_offset: int, max_bytes: int
) -> bytearray:
    found: Iterable[Record] = records(batches, pos, max_bytes=max_bytes)
    if header.compression is Compression.NONE:
        found = (record for record in found if record.offset >= first_offset)
    append_time = header.max_timestamp if header.timestamp_type is TimestampType.APPEND else None
    bounded = _bounded(found, LEGACY_HEADER_SIZE[magic], max_bytes)
    return legacy.build(bounded, magic, compression=header.compression, append_time=append_time)


def _bounded(found: Iterable[Record], overhead: int, max_bytes: int) -> Iterator[Record]:
    """The records as long as they fit ``max_bytes`` as messages. Raises DecompressedTooLarge at the first too many."""
    size = 0
    for record in found:
        size += overhead + len(record.key or b"") + len(record.value or b"")
        if size > max_bytes:
            raise DecompressedTooLarge(max_bytes)
        yield record
