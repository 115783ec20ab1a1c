"""The header of a record batch, and the iteration over batches by their headers.

A log is a sequence of batches. A v2 batch (magic 2) starts with 61 bytes (protocol guide, "Record Batch")::

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 | base timestamp 8
    max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records ...

The length is the number of bytes from the leader epoch on. Messages of the older formats (magic 0 and 1) have the first
12 bytes and the magic byte in the same place; in this module, each message counts as a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from parley.named_tuples import new_tuple
from parley.protocol.records.compression import Compression
from parley.protocol.records.errors import CorruptRecord, InvalidRecord
from parley.protocol.schema import Buffer as Buffer
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

HEADER_SIZE: Final = 61
"""The bytes before the records of a v2 batch."""
LOG_OVERHEAD: Final = 12
"""The size of the base offset and the length field, which the length field does not count."""
LEGACY_HEADER_SIZE: Final = (26, 34)
"""The size of the smallest message of magic 0 and of magic 1, with empty key and value."""
MAGIC_V2: Final = 2

MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
MAX_TIMESTAMP_AT: Final = 35
LEGACY_ATTRIBUTES_AT: Final = 17
"""The position of the attributes in a message of magic 0 or 1. The four positions above are those in a v2 batch; the
magic byte has the same position in all formats."""

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
"""If set, the base timestamp is the time from which compaction may remove the batch's tombstones (KIP-534)."""


_V2: Final = struct.Struct(">qiiBIhiqqqhii")
_PREFIX: Final = struct.Struct(">qi")
_LEGACY: Final = struct.Struct(">qiIBb")
INT32_MAX: Final = 0x7FFF_FFFF
INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


class TimestampType(IntEnum):
    """The source of the records' timestamps (KIP-32): the producer's clock or the broker's."""

    CREATE = 0
    APPEND = 1


class BatchHeader(NamedTuple):
    """The fields of a v2 batch header in wire order. ``read_header`` also reads them from messages of magic 0 and 1.

    For such a message, ``base_offset`` is its last offset, ``record_count`` is 1, and there is no producer. A
    compressed message contains several records and has the offset of the last one; only decompressing it reveals the
    first offset.
    """

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, including the 12 bytes of offset and length."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, which wraps from 2^31 - 1 to 0; -1 if there is none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX

    @property
    def compression(self) -> Compression:
        """The codec of the records. Raises InvalidRecord if the codec is unknown."""
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError:
            raise InvalidRecord(f"unknown compression type {self.attributes & COMPRESSION_MASK}") from None

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.APPEND if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_producer(self) -> bool:
        """True if an idempotent or transactional producer sent the batch."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which compaction may remove the batch's tombstones, or None if it is not set (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Return the header of the batch at ``pos``, of any magic.

    Raises CorruptRecord if the remaining bytes are fewer than a header, the length is too small or the magic is
    unknown. The caller must compare ``size_bytes`` with the remaining bytes to find out whether the whole batch is
    present.
    """
    if len(buf) - pos < HEADER_SIZE:
        return _read_short(buf, pos)
    magic = buf[pos + MAGIC_AT]
    if magic != MAGIC_V2:
        return _read_legacy(buf, pos)
    header: BatchHeader = new_tuple(BatchHeader, _V2.unpack_from(buf, pos))
    if header.length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptRecord(f"the header of a batch claims {header.length} bytes, less than the size of a header")
    return header


def _read_short(buf: Buffer, pos: int) -> BatchHeader:
    if pos < 0 or len(buf) - pos <= MAGIC_AT or buf[pos + MAGIC_AT] == MAGIC_V2:
        raise CorruptRecord("the data ends inside the header of a batch")
    return _read_legacy(buf, pos)


def _read_legacy(buf: Buffer, pos: int) -> BatchHeader:
    magic = buf[pos + MAGIC_AT]
    if magic > 1:
        raise CorruptRecord(f"unknown record format: magic {magic}")
    if len(buf) - pos < LEGACY_HEADER_SIZE[magic]:
        raise CorruptRecord("the data ends inside the header of a message")
    offset, length, crc, _, attributes = _LEGACY.unpack_from(buf, pos)
    if length < LEGACY_HEADER_SIZE[magic] - LOG_OVERHEAD:
        raise CorruptRecord(f"the header of a message claims {length} bytes, less than the size of a header")
    timestamp = int.from_bytes(buf[pos + 18 : pos + 26], "big", signed=True) if magic == 1 else NO_TIMESTAMP
    return BatchHeader(
        base_offset=offset,
        length=length,
        partition_leader_epoch=NO_EPOCH,
        magic=magic,
        crc=crc,
        attributes=attributes & (0x0F if magic == 1 else 0x07),
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )


def is_compressed(buf: Buffer | None) -> bool:
    """Return True if the first batch or message in the buffer claims to be compressed. Checks nothing else."""
    if buf is None or len(buf) < HEADER_SIZE:
        return False
    low_byte = ATTRIBUTES_AT + 1 if buf[MAGIC_AT] >= MAGIC_V2 else LEGACY_ATTRIBUTES_AT
    return buf[low_byte] & COMPRESSION_MASK != 0


def is_legacy(buf: Buffer | None) -> bool:
    """Return True if the buffer claims to start with a message of magic 0 or 1. Checks nothing else."""
    return buf is not None and len(buf) > MAGIC_AT and buf[MAGIC_AT] < MAGIC_V2


def headers(buf: Buffer, pos: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and the header of each whole batch in ``buf[pos:end]``. Stops before an incomplete batch.

    Raises CorruptRecord for an invalid length or magic.
    """
    if end is None:
        end = len(buf)
    while end - pos > MAGIC_AT:
        length = _PREFIX.unpack_from(buf, pos)[1]
        if length > end - pos - LOG_OVERHEAD:
            return
        header = read_header(buf, pos)
        yield pos, header
        pos += header.size_bytes


def write_header(buf: bytearray | memoryview, pos: int, header: BatchHeader) -> None:
    """Write the 61 bytes of a v2 header. Does not compute the checksum; ``crc.seal`` does."""
    _V2.pack_into(buf, pos, *header)
