"""Compares the blocks of a segment with its digest: the fast path of a verification. Compiled by mypyc, like ``_walk``.

Almost all records that are verified are intact. This loop reads each byte once, in pieces that stay in the cache of a
CPU core, and parses only the length, the magic byte and the checksum of a header. The digest covers every header, and
each header contains the checksum of its batch, so no other comparison is needed.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from parley.protocol.records.batch_header import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, LOG_OVERHEAD, MAGIC_AT, MAGIC_V2
from parley.protocol.records.crc32c import crc32c
from parley.storage.damage.segment_digest import SegmentDigest
from parley.storage.segment_file import SegmentFile

READ: Final = 256 << 10
"""The number of bytes read at a time, which fit in the cache of a CPU core."""
BATCH_MAX: Final = 32 << 20
"""The largest batch that can count as intact. Otherwise an altered length could make the loop read the rest of the
segment."""
_LENGTH_AT: Final = 8
_UINT32_MAX: Final = 0xFFFF_FFFF


def intact_to(digest: SegmentDigest, file: SegmentFile, position: i64, end: i64, block: i64) -> i64:
    """Return the end of the last batch that starts before ``end``, if all batches from ``position`` on are as they were
    appended. Returns -1 if anything differs, or if a batch has an old format or more than BATCH_MAX bytes.

    ``position`` is the start of the first batch that starts in block number ``block`` or later. ``end`` is the end of a
    block, or of the bytes that the digest covers. Blocks. Raises ``OSError``.
    """
    block_end: i64 = (block + 1) * digest.block
    headers: list[bytes] = []  # of the current block's batches so far, each up to and including the batch's checksum
    data = b""
    view = memoryview(data)
    begin: i64 = position  # the position of ``data``
    read_to: i64 = position
    while position < end:
        if read_to - position < HEADER_SIZE:
            data = bytes(file.read(max(min(READ, end - position), HEADER_SIZE), position))
            view, begin, read_to = memoryview(data), position, position + len(data)
            if len(data) < HEADER_SIZE:
                return -1
        at: i64 = position - begin
        size: i64 = LOG_OVERHEAD + i64(read_i32_be(data, at + _LENGTH_AT))
        if data[at + MAGIC_AT] != MAGIC_V2 or not HEADER_SIZE <= size <= BATCH_MAX:
            return -1
        while position >= block_end:
            if crc32c(b"".join(headers)) != digest.sums_of(block).headers:
                return -1
            headers, block, block_end = [], block + 1, block_end + digest.block
        headers.append(data[at : at + ATTRIBUTES_AT])
        expected: i64 = i64(read_i32_be(data, at + CRC_AT)) & _UINT32_MAX
        position += size
        crc: i64 = crc32c(view[at + ATTRIBUTES_AT : min(position, read_to) - begin])
        while read_to < position:
            data = bytes(file.read(min(READ, max(end, position) - read_to), read_to))
            if not data:
                return -1
            view, begin, read_to = memoryview(data), read_to, read_to + len(data)
            crc = crc32c(view[: min(position, read_to) - begin], crc)
        if crc != expected:
            return -1
    while block_end - digest.block < end:
        if crc32c(b"".join(headers)) != digest.sums_of(block).headers:
            return -1
        headers, block, block_end = [], block + 1, block_end + digest.block
    return position
