"""The fields that a broker sets in a v2 batch that it received, in place."""

from __future__ import annotations

import struct
from typing import Final

from parley.protocol.records.batch_header import (
    ATTRIBUTES_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE_BIT,
)
from parley.protocol.records.crc import seal

_ASSIGNED: Final = struct.Struct(">qii")
_LENGTH: Final = struct.Struct(">i")


def assign(
    buf: bytearray | memoryview,
    pos: int,
    base_offset: int,
    leader_epoch: int,
    append_time: int | None = None,
) -> None:
    """Set base offset and leader epoch of the v2 batch at ``pos``.

    If ``append_time`` (ms) is given, also turn it into a batch of LogAppendTime with that timestamp; only then must its
    checksum be computed again.
    """
    length = _LENGTH.unpack_from(buf, pos + LENGTH_AT)[0]
    _ASSIGNED.pack_into(buf, pos, base_offset, length, leader_epoch)
    if append_time is None:
        return
    buf[pos + ATTRIBUTES_AT + 1] |= TIMESTAMP_TYPE_BIT  # the low byte of the two
    struct.pack_into(">q", buf, pos + MAX_TIMESTAMP_AT, append_time)
    seal(buf, pos, length + LOG_OVERHEAD)


def set_max_timestamp(buf: bytearray | memoryview, pos: int, max_timestamp: int) -> None:
    """Correct the maximum timestamp of the v2 batch at ``pos``, and its checksum."""
    struct.pack_into(">q", buf, pos + MAX_TIMESTAMP_AT, max_timestamp)
    seal(buf, pos, _LENGTH.unpack_from(buf, pos + LENGTH_AT)[0] + LOG_OVERHEAD)
