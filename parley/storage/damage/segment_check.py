"""Verifies a part of a segment: each batch's own checksum, and the headers of the batches against the digest.

The digest itself may be wrong. If every batch of a block has a good checksum, but the block differs from the digest:

* if the batches' checksums differ from the digest, the digest is wrong, because it belongs to other batches;
* if only their headers differ, a header was altered, and all batches of the block count as damaged, unless their
  offsets have no gap and the log knows their leader epochs: then the digest is wrong.

In a block with other damage, the checksum of the headers still shows whether all headers are intact. If they are not, a
batch is good only if its offsets continue those of a good neighbor (``misplaced``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from parley.protocol.records.batch_header import ATTRIBUTES_AT, BatchHeader, Buffer
from parley.protocol.records.crc32c import crc32c
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.damage import appended_epochs
from parley.storage.damage.appended_epochs import AppendedEpochs
from parley.storage.damage.checked_batches import CheckedBatch, CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes, joined
from parley.storage.damage.intact_blocks import intact_to
from parley.storage.damage.segment_digest import NO_BATCHES, BlockSums, SegmentDigest, added
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.segment import Segment
from parley.storage.segment_file import LOOKUP_CHUNK, batches

Found = CheckedBatch | DamagedBytes


class Extent(NamedTuple):
    """The state of a segment at one moment: its size in bytes, the offset after its last batch, its digest if it has
    one, and the leader epochs with which its batches are compared."""

    size: int
    end_offset: int
    digest: SegmentDigest | None
    epochs: LeaderEpochCache
    """The leader epochs in ``leader-epoch-checkpoint``."""
    appended_epochs: AppendedEpochs


class Checked(NamedTuple):
    """The bytes that were verified, [``begin``, ``end``), and the damage found in them."""

    begin: int
    end: int
    damage: tuple[DamagedBytes, ...]
    is_digest_wrong: bool = False
    """True if the digest is wrong, and the batches that differ from it are good."""


def check(segment: Segment, begin: int, end: int, extent: Extent) -> Checked:
    """Verify at least the bytes [``begin``, ``end``) of a segment that had the state ``extent``. Blocks. Raises
    ``OSError``."""
    digest, end = extent.digest, min(end, extent.size)
    if digest is not None and digest.covers_headers:
        return _check_with(digest, segment, begin, end, extent)
    found = [_judged(each, extent) for each in _walk(segment, begin, end, extent)]
    if not found:
        return Checked(begin, end, ())
    damage = tuple(each for each in found if isinstance(each, DamagedBytes))
    return Checked(min(begin, found[0].position), max(end, _end_of(found[-1])), damage)


def _judged(found: Found, extent: Extent) -> Found:
    """Return ``found``, or the batch as damage if its leader epoch was altered. For segments whose digest does not
    cover the headers."""
    if isinstance(found, CheckedBatch):
        header, position = found.header, found.position
        if extent.appended_epochs.is_honest(header, extent.epochs.entries) is False:
            end = position + header.size_bytes
            return DamagedBytes(position, end, header.base_offset, header.last_offset, appended_epochs.REASON)
    return found


def _check_with(digest: SegmentDigest, segment: Segment, begin: int, end: int, extent: Extent) -> Checked:
    """Verify the batches that start in the blocks of the bytes [``begin``, ``end``), and compare them with the
    digest."""
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
    return Checked(begin, verified_to, joined(damage, comparison.damage), comparison.is_digest_wrong)


def _intact_to(digest: SegmentDigest, segment: Segment, begin: int, end: int) -> int | None:
    """Return the end of the last batch that starts before ``end``, if all batches of these blocks are as they were
    appended.

    Returns None if anything differs or has an old format: then each batch must be checked separately.
    """
    start = max(0, segment.offset_index.lookup_position(begin).position)  # a damaged index may contain anything
    try:
        if start < begin:
            walk = batches(segment.file, start, segment.size, chunk=LOOKUP_CHUNK)
            start = next((position for position, _ in walk if position >= begin), end)
    except CorruptRecord:
        return None
    found = intact_to(digest, segment.file, start, end, begin // digest.block)
    return None if found < 0 else found


class _Comparison:
    """The comparison of the batches in [``begin``, ``end``) with the digest, block by block."""

    def __init__(self, digest: SegmentDigest, segment: Segment, begin: int, end: int, extent: Extent) -> None:
        self.damage: list[DamagedBytes] = []
        """The batches that may have an altered header. If a block contains no other damage, these are all its batches,
        because the digest does not show which one was altered."""
        self.is_digest_wrong = False
        self._digest = digest
        self._segment = segment
        self._extent = extent
        self._block = begin // digest.block
        self._blocks_end = -(-end // digest.block)
        self._damaged_to = 0  # the block after the last damage so far
        self._sums = NO_BATCHES
        self._found: list[Found] = []  # the batches and the damage in the current block
        self._before: Found | None = None  # the last batch or damage before the current block

    def add(self, found: Found) -> None:
        """Add the next batch or damaged range of the segment to the comparison."""
        number = found.position // self._digest.block
        self._close_to(number, found)
        if isinstance(found, DamagedBytes):
            self._damaged_to = -(-found.end // self._digest.block)
        if number == self._block:
            self._found.append(found)
            prefix = self._prefix(found)
            if isinstance(found, CheckedBatch):
                self._sums = added(self._sums, prefix, found.header)
            else:  # treat the damage as one batch with an intact header
                self._sums = BlockSums(self._sums.contents, crc32c(prefix, self._sums.headers))
        else:
            self._before = found

    def finish(self) -> None:
        """Compare the blocks that are left."""
        self._close_to(self._blocks_end, None)

    def _prefix(self, found: Found) -> Buffer:
        """Return the bytes of a batch up to and including its checksum; for damage, the same number of its first
        bytes."""
        if isinstance(found, DamagedBytes) or found.data is None:
            return self._segment.file.read(ATTRIBUTES_AT, found.position)
        return found.data[:ATTRIBUTES_AT]

    def _close_to(self, number: int, following: Found | None) -> None:
        """Compare the current block and all others before ``number``. ``following`` is the batch or the damage after
        them, if known."""
        while self._block < min(number, self._blocks_end):
            known = self._digest.sums_of(self._block)
            if self._block < self._damaged_to:
                if self._found and self._sums.headers != known.headers:
                    before, after = self._before, self._after(following)
                    self.damage += misplaced(
                        self._found,
                        None if isinstance(before, DamagedBytes) else self._offset_before(),
                        None if isinstance(after, DamagedBytes) else self._end_offset(after),
                    )
            elif self._sums != known:
                if self._sums.contents == known.contents and not self._is_plausible():
                    self.damage.append(self._altered(following))
                else:
                    self.is_digest_wrong = True
            self._before = self._found[-1] if self._found else self._before
            self._block, self._sums, self._found = self._block + 1, NO_BATCHES, []

    def _is_plausible(self) -> bool:
        """Return True if the offsets in the current block have no gap, and its batches have the leader epochs that the
        log knows."""
        expected = self._offset_before()
        for found in self._found:
            header = found.header if isinstance(found, CheckedBatch) else None
            if header is None or header.base_offset != expected or not self._has_known_epoch(header):
                return False
            expected = header.next_offset
        return True

    def _has_known_epoch(self, header: BatchHeader) -> bool:
        epoch = self._extent.epochs.epoch_at(header.base_offset)
        return header.partition_leader_epoch == (NO_EPOCH if epoch is None else epoch)

    def _altered(self, following: Found | None) -> DamagedBytes:
        """Return the damage of the current block, which has an altered header and no other damage."""
        begin, end = self._found[0].position, _end_of(self._found[-1])
        last_offset = self._end_offset(self._after(following)) - 1
        return DamagedBytes(
            begin, end, self._offset_before(), last_offset, "the headers differ from the segment's digest"
        )

    def _after(self, following: Found | None) -> Found | None:
        """Return the batch or the damage after the current block: ``following`` if known. Returns None at the end of
        the segment."""
        end = _end_of(self._found[-1])
        if following is None and end < self._extent.size:
            rest = _walk(self._segment, end, end + 1, self._extent)
            following = next((each for each in rest if each.position >= end), None)
        return following

    def _offset_before(self) -> int:
        """Return the offset at which the current block should start."""
        return self._segment.base_offset if self._before is None else _next_offset(self._before)

    def _end_offset(self, after: Found | None) -> int:
        """Return the first offset after the current block. ``after`` is the batch or the damage that follows; None at
        the end of the segment."""
        return self._extent.end_offset if after is None else _first_offset(after)


def misplaced(found: Sequence[Found], before: int | None, after: int | None) -> list[DamagedBytes]:
    """Return the ranges of adjacent batches and damage in which good batches may have altered offsets.

    These batches have damage or a gap on both sides, so no good neighbor confirms their offsets. ``before`` is the
    offset after the good batch that precedes ``found``, or None if damage precedes it; ``after`` is the offset of the
    good batch that follows, or None if damage follows.
    """
    befores = [before, *(None if isinstance(each, DamagedBytes) else each.header.next_offset for each in found)]
    afters = [*(None if isinstance(each, DamagedBytes) else each.header.base_offset for each in found[1:]), after]
    confirmed = [
        isinstance(each, CheckedBatch) and (each.header.base_offset == low or each.header.next_offset == high)
        for each, low, high in zip(found, befores, afters, strict=False)
    ]
    ranges = []
    for is_confirmed, run in groupby(range(len(found)), confirmed.__getitem__):
        first, *rest = run
        last = rest[-1] if rest else first
        if is_confirmed or not any(isinstance(each, CheckedBatch) for each in found[first : last + 1]):
            continue
        low, high = befores[first], afters[last]
        first_offset = _first_offset(found[first]) if low is None else low
        end_offset = _next_offset(found[last]) if high is None else high
        reason = "no neighbor confirms the offset of a batch, and the headers differ from the segment's digest"
        ranges.append(DamagedBytes(found[first].position, _end_of(found[last]), first_offset, end_offset - 1, reason))
    return ranges


def _end_of(found: Found) -> int:
    return found.end if isinstance(found, DamagedBytes) else found.position + found.header.size_bytes


def _first_offset(found: Found) -> int:
    return found.first_offset if isinstance(found, DamagedBytes) else found.header.base_offset


def _next_offset(found: Found) -> int:
    return found.last_offset + 1 if isinstance(found, DamagedBytes) else found.header.next_offset


def _walk(segment: Segment, begin: int, end: int, extent: Extent) -> Iterator[Found]:
    """Yield the batches and the damage up to ``end``, starting with the last good batch in the index at or before
    ``begin``."""
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
