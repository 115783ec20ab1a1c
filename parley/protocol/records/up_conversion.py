"""Converts messages of magic 0 and 1 to records of a v2 batch, for old producers (produce below version 3).

The offsets in the messages are ignored. The batch has the compression of the last compressed message.
"""

from __future__ import annotations

from typing import Final

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records import legacy
from parley.protocol.records.batch_header import LEGACY_HEADER_SIZE, TIMESTAMP_TYPE_BIT, Buffer, headers
from parley.protocol.records.compression import Compression
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.errors import BatchTooLarge, DecompressedTooLarge, InvalidRecord
from parley.protocol.records.record import Record

LEGACY_DECOMPRESSED_RATIO_MAX: Final = 8
"""The limit on the decompressed size of messages of the old formats, as a multiple of ``max.message.bytes``: all their
records are in memory at the same time."""


def legacy_records(
    records: Buffer, *, max_message_bytes: int, decompressed_bytes_max: int
) -> tuple[Compression, list[Record]]:
    """Return the compression and the records of all complete messages of the old formats.

    Raises ``InvalidRecord`` if there is no message or the messages have different formats, ``CorruptRecord`` for a
    wrong checksum, ``BatchTooLarge``, ``DecompressedTooLarge``, and ``KafkaError`` (INVALID_TIMESTAMP) if the client
    has set LogAppendTime.
    """
    found: list[Record] = []
    source = Compression.NONE
    magic: int | None = None
    left = limit = min(decompressed_bytes_max, LEGACY_DECOMPRESSED_RATIO_MAX * max_message_bytes)
    for pos, header in headers(records):
        if magic not in (None, header.magic):
            raise InvalidRecord("messages of different formats are mixed")
        magic = header.magic
        if header.size_bytes > max_message_bytes:
            raise BatchTooLarge(header.size_bytes, max_message_bytes)
        verify_crc(records, pos, header)
        if header.attributes & TIMESTAMP_TYPE_BIT:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "clients must not set the timestamp type to LogAppendTime")
        if header.compression is not Compression.NONE:
            source = header.compression
        for record in legacy.messages(records, pos, header, max_bytes=left):
            found.append(record)
            left -= LEGACY_HEADER_SIZE[header.magic] + len(record.key or b"") + len(record.value or b"")
        if left < 0:
            raise DecompressedTooLarge(limit)
    if not found:
        raise InvalidRecord("no complete message")
    return source, found
