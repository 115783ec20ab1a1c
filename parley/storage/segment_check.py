"""Verifies a part of a segment: each batch's own checksum, and the headers of the batches against the digest.

The digest may be wrong itself: then the batches, which are good, decide. If the batches that begin in a block have

* other checksums than the digest remembers, it is a digest of other batches, and wrong;
* these checksums, but other headers, then a header was altered since, and all batches of the block are damaged;
* these checksums, other headers, offsets without a gap and the leader epochs that the log knows, the digest is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from parley.protocol.records.batch_header import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    BatchHeader,
    Buffer,
)
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checked_batches import CheckedBatch, CheckedBatches
from parley.storage.damage import DamagedBytes
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.segment import Segment
from parley.storage.segment_digest import NO_BATCHES, SegmentDigest, added

READ: Final = 256 << 10
"""Read at a time: what a core's cache holds."""
BATCH_MAX: Final = 32 << 20
"""The largest batch that is read as a whole without being checked first."""
_PREFIX: Final = struct.Struct(">qiiBI")


class Extent(NamedTuple):
    """How far a segment reached at one moment: its bytes, the offset after them, and its digest if it has one."""

    size: int
    end_offset: int
    digest: SegmentDigest | None
    epochs: LeaderEpochCache
    """The leader epochs that the log knows."""


class Checked(NamedTuple):
    """The bytes that were verified, from ``begin`` to before ``end``, and the damage found in them."""

    begin: int
    end: int
    damage: tuple[DamagedBytes, ...]
    is_digest_wrong: bool = False
    """True if the digest has other checksums than the batches, which are good."""


def check(segment: Segment, begin: int, end: int, extent: Extent) -> Checked:
    """Verify at least the bytes from ``begin`` to before ``end``. Blocks. Raises ``OSError``."""
    digest, end = extent.digest, min(end, extent.size)
    if digest is not None and digest.covers_headers:
        return _check_with(digest, segment, begin, end, extent)
    found = list(_walk(segment, begin, end, extent))
    if not found:
        return Checked(begin, end, ())
    damage = tuple(each for each in found if isinstance(each, DamagedBytes))
    return Checked(min(begin, found[0].position), max(end, _end_of(found[-1])), damage)


def _check_with(digest: SegmentDigest, segment: Segment, begin: int, end: int, extent: Extent) -> Checked:
    """Verify whole blocks: the batches that begin in them."""
    begin -= begin % digest.block
    end = min(extent.size, -(-end // digest.block) * digest.block)
    intact_to = _intact_to(digest, segment, begin, end)
    if intact_to is not None:
        return Checked(begin, intact_to, ())
    damage: list[DamagedBytes] = []
    comparison = _Comparison(digest, segment, begin, end, extent)
    verified_to = end
    for found in _walk(segment, max(begin - 1, 0), end, extent):
        if isinstance(found, DamagedBytes):
            damage.append(found)
        comparison.add(found)
        verified_to = max(verified_to, _end_of(found))
    comparison.finish()
    damage = sorted([*damage, *comparison.damage], key=lambda each: each.position)
    return Checked(begin, verified_to, tuple(damage), comparison.is_digest_wrong)


def _intact_to(digest: SegmentDigest, segment: Segment, begin: int, end: int) -> int | None:
    """The end of the last batch that begins before ``end``, if the batches of these blocks are as they were appended.

    None if anything differs or has an old format: then the batches must be looked at one by one. This is the fast path,
    so it parses no more of a header than it needs. The digest has the checksum of every header, and each header that
    of its batch, so nothing else must be compared.
    """
    buffer = bytearray(READ)
    view, first, filled = memoryview(buffer), 0, 0  # the bytes from ``first`` on, ``filled`` of them
    position = max(0, segment.offset_index.lookup_position(begin).position)  # a damaged index may say anything
    block, sum_of_headers, block_ends = begin // digest.block, 0, begin - begin % digest.block + digest.block
    while position < end:
        at = position - first
        if at + HEADER_SIZE > filled:
            first, at, filled = position, 0, segment.file.read_into(buffer, position)
            if filled < HEADER_SIZE:
                return None
        _, length, _, magic, crc = _PREFIX.unpack_from(view, at)
        size = length + LOG_OVERHEAD
        if magic != MAGIC_V2 or not HEADER_SIZE <= size <= BATCH_MAX:
            return None
        if at + size > filled:
            if size > len(buffer):
                buffer = bytearray(2 * size)
                view = memoryview(buffer)
            first, at, filled = position, 0, segment.file.read_into(buffer, position)
            if filled < size:
                return None
        if position >= begin:
            while position >= block_ends:
                if digest.sums_of(block).headers != sum_of_headers:
                    return None
                block, sum_of_headers, block_ends = block + 1, 0, block_ends + digest.block
            if crc32c(view[at + ATTRIBUTES_AT : at + size]) != crc:
                return None
            sum_of_headers = crc32c(view[at : at + ATTRIBUTES_AT], sum_of_headers)
        position += size
    while block < -(-end // digest.block):
        if digest.sums_of(block).headers != sum_of_headers:
            return None
        block, sum_of_headers = block + 1, 0
    return position


class _Comparison:
    """The comparison of batches with the digest, block by block, from ``begin`` to before ``end``.

    A block that has other damage is not compared.
    """

    def __init__(self, digest: SegmentDigest, segment: Segment, begin: int, end: int, extent: Extent) -> None:
        self.damage: list[DamagedBytes] = []
        """The blocks in which a header was altered: all of their batches, since any may be the one."""
        self.is_digest_wrong = False
        self._digest = digest
        self._segment = segment
        self._extent = extent
        self._block = begin // digest.block
        self._blocks_end = -(-end // digest.block)
        self._damaged_to = 0  # no block before this one can be compared
        self._sums = NO_BATCHES
        self._is_plausible = True  # offsets and epochs of the current block are those that the rest of the log suggests
        self._begin = self._end = 0  # of the batches in the current block
        self._first_offset = self._next_offset = segment.base_offset  # before and behind them

    def add(self, found: CheckedBatch | DamagedBytes) -> None:
        """Count the next batch or damage of the segment."""
        number = found.position // self._digest.block
        self._close_to(number, found)
        if isinstance(found, DamagedBytes):
            self._damaged_to = -(-found.end // self._digest.block)
        elif number == self._block:
            if self._sums == NO_BATCHES:
                self._begin, self._first_offset = found.position, self._next_offset
            self._sums = added(self._sums, self._prefix(found), found.header)
            self._is_plausible = self._is_plausible and self._continues(found.header)
            self._end = _end_of(found)
        self._next_offset = _next_offset(found)

    def _continues(self, header: BatchHeader) -> bool:
        """True if no offset is left out before a batch, and it has the leader epoch that the log knows."""
        epoch = self._extent.epochs.epoch_at(header.base_offset)
        known = NO_EPOCH if epoch is None else epoch
        return header.base_offset == self._next_offset and header.partition_leader_epoch == known

    def finish(self) -> None:
        """Compare the last blocks."""
        self._close_to(self._blocks_end, None)

    def _prefix(self, batch: CheckedBatch) -> Buffer:
        """The bytes of a batch up to its checksum."""
        if batch.data is None:
            return self._segment.file.read(ATTRIBUTES_AT, batch.position)
        return batch.data[:ATTRIBUTES_AT]

    def _close_to(self, number: int, following: CheckedBatch | DamagedBytes | None) -> None:
        """Compare the blocks before ``number``. ``following`` follows their batches, if that is known."""
        while self._block < min(number, self._blocks_end):
            known = self._digest.sums_of(self._block)
            if self._block >= self._damaged_to and self._sums != known:
                if self._sums.contents == known.contents and not self._is_plausible:
                    self.damage.append(self._altered(following))
                else:
                    self.is_digest_wrong = True
            self._block += 1
            self._sums, self._is_plausible = NO_BATCHES, True

    def _altered(self, following: CheckedBatch | DamagedBytes | None) -> DamagedBytes:
        extent, end = self._extent, self._end
        if following is None and end < extent.size:
            behind = _walk(self._segment, end, end + 1, extent)
            following = next((each for each in behind if each.position >= end), None)
        last_offset = extent.end_offset - 1 if following is None else _first_offset(following) - 1
        return DamagedBytes(
            self._begin, end, self._first_offset, last_offset, "the headers differ from the segment's digest"
        )


def _end_of(found: CheckedBatch | DamagedBytes) -> int:
    return found.end if isinstance(found, DamagedBytes) else found.position + found.header.size_bytes


def _first_offset(found: CheckedBatch | DamagedBytes) -> int:
    return found.first_offset if isinstance(found, DamagedBytes) else found.header.base_offset


def _next_offset(found: CheckedBatch | DamagedBytes) -> int:
    return found.last_offset + 1 if isinstance(found, DamagedBytes) else found.header.next_offset


def _walk(segment: Segment, begin: int, end: int, extent: Extent) -> Iterator[CheckedBatch | DamagedBytes]:
    """The batches and the damage from the last indexed batch before ``begin`` that is good, up to ``end``."""
    checked = CheckedBatches(segment.file, extent.size, segment.base_offset, extent.end_offset)
    at = max(0, segment.offset_index.lookup_position(begin).position)
    while True:
        walk = checked.walk(at, end, segment.base_offset)
        first = next(walk, None)
        if at <= 0 or isinstance(first, CheckedBatch):
            break
        at = max(0, segment.offset_index.lookup_position(at - 1).position)
    if first is not None:
        yield first
        yield from walk
