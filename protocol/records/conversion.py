"""What a log of v2 batches looks like to clients that read only messages of magic 0 or 1 (fetch below version 4).

Headers, producers and transactions do not exist there: headers are dropped and control batches left out. What was
compressed stays so, by the old framing; zstd never existed there, so a client must be told (KIP-110).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ErrorCode, KafkaError
from protocol.records import legacy
from protocol.records.batch import DECOMPRESSED_BYTES_MAX, records
from protocol.records.compression import Compression
from protocol.records.header import BatchHeader, Buffer, TimestampType, headers
from protocol.records.record import Record


def to_legacy(
    batches: Buffer,
    magic: int,
    *,
    first_offset: int = 0,
    max_bytes: int | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> list[Buffer]:
    """The batches as messages of ``magic`` 0 or 1, in order, to be sent one behind the other.

    A batch cut off at the end is left out, and so is one that is of this magic or lower already copied as it is.
    Records before ``first_offset`` are left out where each is a message of its own; old clients count on it.
    ``max_bytes``: no batch is begun once so much was made, so that the answer is larger by one batch at most.

    Raises KafkaError(UNSUPPORTED_COMPRESSION_TYPE) where the first batch is zstd-compressed (a later one ends the
    answer before it), and for damaged batches CorruptRecord, InvalidRecord or DecompressedTooLarge.
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
            converted = _converted(batches, pos, header, magic, first_offset, decompressed_bytes_max)
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
    return legacy.build(found, magic, compression=header.compression, append_time=append_time)
