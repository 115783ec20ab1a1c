"""A damaged range that no live replica could supply, and what each replica answered.

``Healing`` asks the live replicas. "No live replica has the records" does not mean that the records are lost: an intact
replica may be down. A coordinator tells these cases apart (``coordinators.internal_topic``).
"""

from __future__ import annotations

from parley.light_dataclasses import dataclass
from parley.storage.damage.damaged_ranges import DamagedRange


@dataclass(frozen=True, slots=True)
class UnhealedRange:
    """A damaged range that no live replica could supply at the last attempt."""

    damage: DamagedRange
    lacked_by: frozenset[int]
    """The replicas that answered that they lack the records, or that their copies are damaged, too. A replica that is
    down, or could not answer, is not among them."""

    def covers(self, damage: DamagedRange) -> bool:
        """Return True if ``damage`` lies inside the range."""
        return self.damage.first_offset <= damage.first_offset and damage.last_offset <= self.damage.last_offset
