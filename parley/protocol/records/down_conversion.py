"""Converts v2 batches to messages of magic 0 or 1, for clients that cannot read v2 (fetch below version 4).

These formats have no headers, producers, transactions or zstd: headers are dropped, control batches are left out, and
batches with zstd are an error (KIP-110). Records with other compression stay compressed, in the old framing.
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
"""The default limit on the size of one batch's records, decompressed and converted. A tiny record is 7 bytes in v2 but
34 bytes as a message, and all records of a batch are in memory at the same time."""


def to_legacy(
    batches: Buffer,
    magic: int,
    *,
    first_offset: int = 0,
    max_bytes: int | None = None,
    converted_bytes_max: int = CONVERTED_BYTES_MAX,
) -> list[Buffer]:
    """Convert the batches to messages of ``magic`` 0 or 1, in order.

    Leaves out control batches, and an incomplete batch at the end. Returns batches of this magic or lower unchanged, as
    slices of ``batches``. Leaves out uncompressed records before ``first_offset``, as old clients expect. Stops after
    the batch that reaches ``max_bytes``.

    Raises KafkaError(UNSUPPORTED_COMPRESSION_TYPE) if the first batch is compressed with zstd, and DecompressedTooLarge
    if its records exceed ``converted_bytes_max``. If this is true of a later batch, only the batches before it are
    returned. Raises CorruptRecord or InvalidRecord for damaged batches.
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
    """Yield the records. Raises DecompressedTooLarge before the record whose message would exceed the total of
    ``max_bytes``."""
    size = 0
    for record in found:
        size += overhead + len(record.key or b"") + len(record.value or b"")
        if size > max_bytes:
            raise DecompressedTooLarge(max_bytes)
        yield record
