"""A damaged range that no live replica could supply, and the replicas that lack it.

``Healing`` asks the live replicas. Even if none of them has the records, they are not necessarily lost: an intact
replica may be down. ``Partition.is_lost`` distinguishes the two cases, for the coordinators.
"""

from __future__ import annotations

from parley.light_dataclasses import dataclass
from parley.storage.damage.damaged_ranges import DamagedRange


@dataclass(frozen=True, slots=True)
class UnhealedRange:
    """A damaged range that no live replica could supply at the last attempt."""

    damage: DamagedRange
    lacked_by: frozenset[int]
    """The replicas that cannot supply the whole range, according to their own responses: they lack at least one offset
    of it, or have it damaged. A replica that is down, or that did not respond, is not among them."""

    def covers(self, damage: DamagedRange) -> bool:
        """Return True if ``damage`` lies inside the range."""
        return self.damage.first_offset <= damage.first_offset and damage.last_offset <= self.damage.last_offset
