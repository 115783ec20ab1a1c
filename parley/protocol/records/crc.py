"""The checksum of a batch: the CRC-32C of the bytes from the attributes on; before v2, the CRC-32 from the magic byte
on.

The base offset and the leader epoch come before the attributes, so a broker can set both without a new checksum.
"""

from __future__ import annotations

import struct
import zlib

from parley.protocol.records.batch_header import (
    ATTRIBUTES_AT,
    CRC_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    BatchHeader,
    Buffer,
)
from parley.protocol.records.crc32c import crc32c
from parley.protocol.records.errors import CorruptRecord


def verify_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Raise CorruptRecord if the batch at ``pos``, of any magic, is incomplete or its checksum is wrong."""
    end = pos + header.length + LOG_OVERHEAD
    if end > len(buf):
        raise CorruptRecord("the data ends inside a batch")
    view = memoryview(buf)
    if header.magic == MAGIC_V2:
        actual = crc32c(view[pos + ATTRIBUTES_AT : end])
    else:
        actual = zlib.crc32(view[pos + MAGIC_AT : end])
    if actual != header.crc:
        raise CorruptRecord(f"a batch has checksum {actual:08x}, but its header contains {header.crc:08x}")


def seal(buf: bytearray | memoryview, pos: int, size_bytes: int) -> None:
    """Compute the checksum of the v2 batch at ``pos`` and write it into the header."""
    with memoryview(buf) as view, view[pos + ATTRIBUTES_AT : pos + size_bytes] as covered:
        struct.pack_into(">I", buf, pos + CRC_AT, crc32c(covered))
