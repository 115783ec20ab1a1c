"""The damaged and missing ranges of a log: which offsets cannot be read, and why.

A range is found by recovery, by the first read of bytes from disk, or by the scrubber. A read into it raises
CORRUPT_MESSAGE; everything after it stays readable. docs/storage.md, "Damage", has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets from ``first_offset`` to ``last_offset`` whose batches are damaged or missing."""

    first_offset: int
    last_offset: int
    reason: str

    def __contains__(self, offset: int) -> bool:
        return self.first_offset <= offset <= self.last_offset


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """A damaged range inside a segment: the bytes [``position``, ``end``), between two good batches.

    ``first_offset`` follows the last good batch, ``last_offset`` precedes the next one.
    """

    position: int
    end: int
    first_offset: int
    last_offset: int
    reason: str

    @property
    def offsets(self) -> DamagedRange:
        """The offsets that the bytes should contain."""
        return DamagedRange(self.first_offset, self.last_offset, self.reason)


def joined(known: Iterable[DamagedBytes], found: Iterable[DamagedBytes]) -> tuple[DamagedBytes, ...]:
    """Return the damage of a segment in order, with ``found`` added to ``known``. Ranges that touch or overlap are
    merged."""
    result: list[DamagedBytes] = []
    for each in sorted([*known, *found], key=lambda damaged: damaged.position):
        last = result[-1] if result else None
        if last is not None and each.position <= last.end:
            result[-1] = DamagedBytes(
                last.position,
                max(last.end, each.end),
                min(last.first_offset, each.first_offset),
                max(last.last_offset, each.last_offset),
                last.reason,
            )
        else:
            result.append(each)
    return tuple(result)
