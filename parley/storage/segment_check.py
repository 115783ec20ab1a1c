"""Verifies a part of a segment: against its digest, or else against the checksums of its batches.

A block that differs from the digest is searched for batches with wrong checksums or offsets. If there are none, the
difference lies in what those checksums do not cover, and all batches of the block are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from parley.storage.checked_batches import CheckedBatch, CheckedBatches
from parley.storage.damage import DamagedBytes
from parley.storage.segment import Segment
from parley.storage.segment_digest import SegmentDigest

READ: Final = 256 << 10
"""Read at a time to compare blocks: what a core's cache holds."""


class Extent(NamedTuple):
    """How far a segment reached at one moment: its bytes, the offset after them, and its digest if it has one."""

    size: int
    end_offset: int
    digest: SegmentDigest | None


class Checked(NamedTuple):
    """The bytes that were verified, from ``begin`` to before ``end``, and the damage found in them."""

    begin: int
    end: int
    damage: tuple[DamagedBytes, ...]


def check(segment: Segment, begin: int, end: int, extent: Extent) -> Checked:
    """Verify at least the bytes from ``begin`` to before ``end``. Blocks. Raises ``OSError``."""
    digest, end = extent.digest, min(end, extent.size)
    if digest is None:
        found = _walk(segment, begin, end, extent)
        if not found:
            return Checked(begin, end, ())
        damage = tuple(each for each in found if isinstance(each, DamagedBytes))
        return Checked(min(begin, found[0].position), max(end, _end_of(found[-1])), damage)
    begin -= begin % digest.block
    end = min(extent.size, -(-end // digest.block) * digest.block)
    bad = [_damage_in(segment, first, last, extent) for first, last in _bad_blocks(segment, digest, begin, end)]
    return Checked(begin, end, tuple(damaged for each in bad for damaged in each))


def _end_of(found: CheckedBatch | DamagedBytes) -> int:
    return found.end if isinstance(found, DamagedBytes) else found.position + found.header.size_bytes


def _bad_blocks(segment: Segment, digest: SegmentDigest, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The runs of blocks whose bytes differ from the digest. ``begin`` is the beginning of a block."""
    file, block = segment.file, digest.block
    buffer = memoryview(bytearray(max(READ - READ % block, block)))
    first = None
    for position in range(begin, end, len(buffer)):
        some = buffer[: min(len(buffer), end - position)]
        some = some[: file.read_into(some, position)]  # shorter if the file has become shorter
        for at in range(position, min(position + len(buffer), end), block):
            is_bad = crc32c(some[at - position : at - position + block]) != digest.checksums[at // block]
            if is_bad and first is None:
                first = at
            elif not is_bad and first is not None:
                yield first, at
                first = None
    if first is not None:
        yield first, end


def _damage_in(segment: Segment, first: int, last: int, extent: Extent) -> list[DamagedBytes]:
    """The damaged batches among those that overlap a run of bad blocks; all of them if each by itself seems good."""
    found = [each for each in _walk(segment, first, last, extent) if _end_of(each) > first]
    damage = [each for each in found if isinstance(each, DamagedBytes)]
    if damage or not found:
        return damage
    begin, end = found[0].position, _end_of(found[-1])
    before = [each for each in _walk(segment, begin - 1, begin, extent) if _end_of(each) <= begin] if begin else []
    behind = _walk(segment, end, end + 1, extent) if end < extent.size else []
    first_offset = _next_offset(before[-1]) if before else segment.base_offset
    following = next((each for each in behind if each.position >= end), None)
    last_offset = extent.end_offset - 1 if following is None else _first_offset(following) - 1
    return [DamagedBytes(begin, end, first_offset, last_offset, "the bytes differ from the segment's digest")]


def _first_offset(found: CheckedBatch | DamagedBytes) -> int:
    return found.first_offset if isinstance(found, DamagedBytes) else found.header.base_offset


def _next_offset(found: CheckedBatch | DamagedBytes) -> int:
    return found.last_offset + 1 if isinstance(found, DamagedBytes) else found.header.next_offset


def _walk(segment: Segment, begin: int, end: int, extent: Extent) -> list[CheckedBatch | DamagedBytes]:
    """The batches and the damage from the last indexed batch before ``begin`` that is good, up to ``end``."""
    checked = CheckedBatches(segment.file, extent.size, segment.base_offset, extent.end_offset)
    at = segment.offset_index.lookup_position(begin).position
    while True:
        found = list(checked.walk(at, end, segment.base_offset))
        if at <= 0 or (found and isinstance(found[0], CheckedBatch)):
            return found
        at = segment.offset_index.lookup_position(at - 1).position
