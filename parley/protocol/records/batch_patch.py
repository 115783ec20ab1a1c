"""Sets, in place, the fields of a received v2 batch that the broker assigns."""

from __future__ import annotations

import struct
from typing import Final

from parley.named_tuples import new_tuple
from parley.protocol.records.batch_header import (
    ATTRIBUTES_AT,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    read_header,
)
from parley.protocol.records.crc import seal

_ASSIGNED: Final = struct.Struct(">qii")
_LONG: Final = struct.Struct(">q")


def assign(
    buf: bytearray | memoryview,
    pos: int,
    header: BatchHeader,
    base_offset: int,
    leader_epoch: int,
    append_time: int | None = None,
) -> BatchHeader:
    """Set base offset and leader epoch of the v2 batch at ``pos``, whose header is ``header``. Returns the new header.

    With ``append_time`` (ms), also changes the batch's timestamp type to LogAppendTime with that timestamp. Only this
    requires a new checksum.
    """
    _ASSIGNED.pack_into(buf, pos, base_offset, header.length, leader_epoch)
    if append_time is None:
        fields: tuple[int, ...] = header  # mypyc would convert each field of a BatchHeader to a C integer and back
        return new_tuple(BatchHeader, (base_offset, fields[1], leader_epoch) + fields[3:])  # noqa: RUF005 (three times faster)
    buf[pos + ATTRIBUTES_AT + 1] |= TIMESTAMP_TYPE_BIT  # the low byte of the attributes
    return set_max_timestamp(buf, pos, header, append_time)


def set_max_timestamp(buf: bytearray | memoryview, pos: int, header: BatchHeader, max_timestamp: int) -> BatchHeader:
    """Set the maximum timestamp of the v2 batch at ``pos``, and update its checksum. Returns the new header."""
    _LONG.pack_into(buf, pos + MAX_TIMESTAMP_AT, max_timestamp)
    seal(buf, pos, header.size_bytes)
    return read_header(buf, pos)
