"""Reads the batches of a segment, verifies each one, and continues after damage.

A batch is good if its header is valid, its offsets follow the previous batch and lie in the segment, and its checksum
matches. After a bad batch, reading continues at the next good one: at the position that the bad batch's length gives,
or else at the next bytes that look like a v2 header and turn out to be a good batch. Nothing in the file is trusted.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from parley.protocol.records.batch_header import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    MAGIC_AT,
    MAGIC_V2,
    BatchHeader,
    read_header,
)
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.crc32c import crc32c
from parley.protocol.records.errors import CorruptRecord
from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.segment_file import SCAN_CHUNK, SegmentFile

LARGE_BATCH: Final = 128 << 20
"""A batch up to this size is read into memory as a whole to verify it."""

TRIED_SIZES: Final = 4
"""The limit on the bytes read in search of the next good batch, as a multiple of the segment's size. Only records that
imitate the headers of large batches need more; everything after the damage then counts as damaged."""

_ANY: Final = rb"[\x00-\xff]"


class CheckedBatch(NamedTuple):
    """A good batch at ``position``. ``data`` is the whole batch, or None if it is larger than LARGE_BATCH."""

    position: int
    header: BatchHeader
    data: memoryview | None


class CheckedBatches:
    """The batches in the first ``size`` bytes of a segment that contains the offsets [``base_offset``, ``end_offset``).

    Reads in chunks. Every method raises ``OSError`` if the disk fails.
    """

    def __init__(self, file: SegmentFile, size: int, base_offset: int, end_offset: int) -> None:
        self._file = file
        self._size = size
        self._last_offset = min(end_offset - 1, base_offset + MAX_RELATIVE_OFFSET)
        self._data = memoryview(b"")
        self._begin = 0

    def walk(self, position: int, end: int, expected: int) -> Iterator[CheckedBatch | DamagedBytes]:
        """Yield the batches and the damage from ``position`` on, up to and including the first that reaches ``end``.

        ``expected`` is the lowest offset that the first batch may have. Damage that reaches the end of the bytes
        extends to the last offset that the segment can contain.
        """
        before, last = expected, None  # the last good batch, and the offset expected before it
        while position < end:
            found = self._next(position, expected, before, last)
            if found.position == position and last is not None:
                yield last
            if isinstance(found, DamagedBytes):
                yield found
                position, before, last = found.end, found.last_offset + 1, None
                expected = before
            else:
                position += found.header.size_bytes
                before, last = expected, found
                expected = found.header.next_offset
        if last is not None:
            yield last

    def _next(
        self, position: int, expected: int, before: int, last: CheckedBatch | None
    ) -> CheckedBatch | DamagedBytes:
        """Return the batch or the damage at ``position``; or the ``last`` batch, as damage, if its offset turns out to
        be wrong.

        No checksum covers a batch's offset. If an offset was raised, the batch after it seems to be out of order.
        """
        try:
            return self._good(position, expected)
        except CorruptRecord as error:
            if last is not None and last.header.base_offset > before:
                try:
                    following = self._good(position, before).header.base_offset
                    return DamagedBytes(last.position, position, before, following - 1, "a batch has a wrong offset")
                except CorruptRecord:
                    pass
            return self._damage(position, expected, error.message)

    def _good(self, position: int, expected: int) -> CheckedBatch:
        """Return the batch at ``position``. Raises ``CorruptRecord`` unless it is good."""
        header = self._header(position)
        size = header.size_bytes
        if position + size > self._size:
            raise CorruptRecord("the file ends inside a batch")
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise CorruptRecord(
                f"offsets {header.base_offset} to {header.last_offset} come after offset {expected - 1}"
            )
        if header.last_offset > self._last_offset:
            raise CorruptRecord(f"offset {header.last_offset} does not belong in the segment")
        if size > LARGE_BATCH:
            self._check_piecewise(position, header)
            return CheckedBatch(position, header, None)
        if position + size > self._begin + len(self._data):
            self._fill(position, max(size, SCAN_CHUNK))
        at = position - self._begin
        verify_crc(self._data, at, header)
        return CheckedBatch(position, header, self._data[at : at + size])

    def _header(self, position: int) -> BatchHeader:
        if not self._begin <= position <= self._begin + len(self._data) - HEADER_SIZE:
            self._fill(position, SCAN_CHUNK)
        return read_header(self._data, position - self._begin)

    def _fill(self, position: int, size: int) -> None:
        self._data = memoryview(self._file.read(min(size, self._size - position), position))
        self._begin = position

    def _check_piecewise(self, position: int, header: BatchHeader) -> None:
        """Verify the checksum of a batch in pieces, because it is too large to be read into memory before it is
        verified."""
        end, crc = position + header.size_bytes, 0
        position += ATTRIBUTES_AT if header.magic == MAGIC_V2 else MAGIC_AT
        while position < end:
            piece = self._file.read(min(SCAN_CHUNK, end - position), position)
            if not piece:
                raise CorruptRecord("the file was truncated meanwhile")
            crc = crc32c(piece, crc) if header.magic == MAGIC_V2 else zlib.crc32(piece, crc)
            position += len(piece)
        if crc != header.crc:
            raise CorruptRecord(f"a batch has checksum {crc:08x}, but its header contains {header.crc:08x}")

    # --- After a bad batch ---

    def _damage(self, position: int, expected: int, reason: str) -> DamagedBytes:
        """Return the damage that starts at ``position`` and ends at the next good batch, or at the end of the bytes."""
        left = TRIED_SIZES * self._size
        for candidate in self._candidates(position, expected):
            try:
                size = self._header(candidate).size_bytes
                if candidate + size > self._size:
                    continue
                left -= size
                if left < 0:
                    break
                header = self._good(candidate, expected).header
            except CorruptRecord:
                continue
            return DamagedBytes(position, candidate, expected, header.base_offset - 1, reason)
        return DamagedBytes(position, self._size, expected, self._last_offset, reason)

    def _candidates(self, position: int, expected: int) -> Iterator[int]:
        """Yield the positions after ``position`` at which a batch may start."""
        try:
            following = position + self._header(position).size_bytes
        except CorruptRecord:
            following = 0
        if position < following < self._size:
            yield following
        pattern, begin = _header_pattern(expected, self._last_offset), position + 1
        while begin + HEADER_SIZE <= self._size:
            data = self._file.read(min(SCAN_CHUNK, self._size - begin), begin)
            if len(data) < HEADER_SIZE:
                return
            for match in pattern.finditer(data):
                yield begin + match.start() - MAGIC_AT
            begin += len(data) - HEADER_SIZE + 1


def _header_pattern(first_offset: int, last_offset: int) -> re.Pattern[bytes]:
    """Return a pattern that matches the magic byte of a v2 header with a base offset between the two offsets.

    The pattern starts with the magic byte, because zeros, which a crash leaves behind, match the rest of the pattern.
    """
    low, high = max(first_offset, 0).to_bytes(8, "big"), max(last_offset, 0).to_bytes(8, "big")
    common = next((n for n in range(8) if low[n] != high[n]), 8)
    before = re.escape(low[:common]) + _ANY * (MAGIC_AT - common)
    return re.compile(rb"\x02(?<=" + before + rb"\x02)(?=" + _ANY * 4 + rb"\x00[\x00-\x7f][\x00-\x7f])")
