"""Messages of magic 0 and 1, written by clients before KIP-98 and found in old logs.

A message set is a sequence of messages::

    offset 8 | size 4 | crc 4 | magic 1 | attributes 1 | [timestamp 8, magic 1 only] | key length 4, key | value ...

A compressed message set is one wrapper message whose value is the compressed inner messages. The wrapper has the offset
of the last inner message. Inner offsets are absolute in magic 0, and start at 0 in magic 1 (KIP-31). A wrapper inside a
wrapper is rejected. With LogAppendTime, all inner messages have the wrapper's timestamp (KIP-32).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from parley.named_tuples import new_tuple
from parley.protocol.records.batch_header import (
    COMPRESSION_MASK,
    INT64_MAX,
    LEGACY_HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_AT,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
)
from parley.protocol.records.compression import Compression, compress, decompress
from parley.protocol.records.errors import CorruptRecord, InvalidRecord
from parley.protocol.records.record import Record
from parley.protocol.sentinels import NO_TIMESTAMP

_PREFIX: Final = struct.Struct(">qiI")
_FIELDS: Final = (struct.Struct(">bb"), struct.Struct(">bbq"))
"""Magic, attributes and, in magic 1, the timestamp."""
_MESSAGE: Final = (struct.Struct(">qiIbbi"), struct.Struct(">qiIbbqi"))
"""The fields of a message up to and including the length of the key, by magic."""
_LENGTH: Final = struct.Struct(">i")
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")


def messages(buf: Buffer, pos: int, header: BatchHeader, *, max_bytes: int) -> Iterator[Record]:
    """Yield the records of the message at ``pos``: the message itself, or its inner messages if it is a wrapper.

    Verifies the checksums of inner messages, but not the checksum of the message itself. Raises CorruptRecord,
    InvalidRecord and, if the decompressed messages exceed ``max_bytes``, DecompressedTooLarge.
    """
    codec = header.compression
    key, value = _key_and_value(bytes(buf[pos : pos + header.size_bytes]), header)
    if codec is Compression.NONE:
        yield Record(header.base_offset, header.max_timestamp, key, value)
        return
    if codec is Compression.ZSTD:
        raise InvalidRecord("messages of the old formats cannot be compressed with zstd")
    if value is None:
        raise InvalidRecord("the value of a compressed message is null")
    yield from _inner(header, decompress(codec, value, max_bytes, magic=header.magic))


def _key_and_value(message: bytes, header: BatchHeader) -> tuple[bytes | None, bytes | None]:
    if len(message) < header.size_bytes:
        raise CorruptRecord("the data ends inside a message")
    pos = _MESSAGE[header.magic].size
    return _split(message, pos, len(message), _LENGTH.unpack_from(message, pos - 4)[0])


def _split(data: bytes, pos: int, end: int, key_size: int) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value of the message that ends at ``end``. The key starts at ``pos``."""
    key = None
    if key_size >= 0:
        key = data[pos : pos + key_size]
        pos += key_size
    if end - pos < 4:
        raise InvalidRecord("the key of a message is longer than the message")
    value_size: int = _LENGTH.unpack_from(data, pos)[0]
    pos += 4
    if pos + max(0, value_size) != end:
        raise InvalidRecord("the fields of a message do not fill its length")
    return key, None if value_size < 0 else data[pos:end]


def _inner(wrapper: BatchHeader, data: bytes) -> Iterator[Record]:
    magic = wrapper.magic
    # In magic 1, the inner offsets are relative, and the wrapper has the offset of the last message. In a wrapper from
    # a producer, this offset is 0; the inner offsets then stay unchanged.
    shift = max(0, wrapper.base_offset - _last_offset(data)) if magic == 1 else 0
    timestamp = NO_TIMESTAMP
    fixed = wrapper.timestamp_type is TimestampType.APPEND
    unpack = _MESSAGE[magic].unpack_from
    view = memoryview(data)
    if not data:
        raise InvalidRecord("a compressed message contains no messages")
    pos = 0
    while pos < len(data):
        if len(data) - pos < LEGACY_HEADER_SIZE[magic]:
            raise InvalidRecord("the data ends inside a message")
        if magic == 1:
            offset, length, crc, own_magic, attributes, timestamp, key_size = unpack(data, pos)
        else:
            offset, length, crc, own_magic, attributes, key_size = unpack(data, pos)
        end = pos + LOG_OVERHEAD + length
        if own_magic != magic:
            raise InvalidRecord("the messages in a compressed message have a different magic than the message itself")
        if attributes & COMPRESSION_MASK:
            raise InvalidRecord("a compressed message contains compressed messages")
        if length < LEGACY_HEADER_SIZE[magic] - LOG_OVERHEAD or end > len(data):
            raise InvalidRecord("a message inside a compressed message has an invalid length")
        if zlib.crc32(view[pos + MAGIC_AT : end]) != crc:
            raise CorruptRecord("a message inside a compressed message has a wrong checksum")
        key, value = _split(data, pos + _MESSAGE[magic].size, end, key_size)
        if offset + shift > INT64_MAX:
            raise InvalidRecord("the offset of a message is out of range")
        yield new_tuple(Record, (offset + shift, wrapper.max_timestamp if fixed else timestamp, key, value, ()))
        pos = end


def _last_offset(data: bytes) -> int:
    """Return the offset of the last message in a message set. An incomplete message at the end counts."""
    offset = pos = 0
    while len(data) - pos >= LOG_OVERHEAD:
        offset, length = _OFFSET_AND_LENGTH.unpack_from(data, pos)
        if length < 0:
            raise InvalidRecord("a message inside a compressed message has an invalid length")
        pos += LOG_OVERHEAD + length
    return offset


def build(
    records: Iterable[Record],
    magic: int,
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    append_time: int | None = None,
) -> bytearray:
    """Build a message set of the records, which must be in the order of their offsets. Each record becomes a message;
    with ``compression``, one wrapper contains all messages.

    Drops headers. With ``append_time`` (ms), the messages have the type LogAppendTime and that timestamp (magic 1 only;
    magic 0 has no timestamps).
    """
    out = bytearray()
    base: int | None = 0 if compression is Compression.NONE or magic == 0 else None
    last = 0
    latest = NO_TIMESTAMP
    attributes = TIMESTAMP_TYPE_BIT if append_time is not None and magic == 1 else 0
    for last, own_time, key, value, _ in records:
        timestamp = own_time if append_time is None else append_time
        latest = max(latest, timestamp)
        base = last if base is None else base
        out += message(last - base, magic, attributes, timestamp, key, value)
    if compression is Compression.NONE or not out:
        return out
    body = compress(compression, out, level, magic=magic)
    return bytearray(message(last, magic, attributes | compression, latest, None, body))


def message(offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    """Return one message, with its checksum. For magic 0, ``timestamp`` is ignored."""
    fields = _FIELDS[magic].pack(magic, attributes) if magic == 0 else _FIELDS[magic].pack(magic, attributes, timestamp)
    body = b"".join((fields, _sized(key), _sized(value)))
    return _PREFIX.pack(offset, 4 + len(body), zlib.crc32(body)) + body


def _sized(content: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if content is None else _LENGTH.pack(len(content)) + content
