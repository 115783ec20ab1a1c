"""The topics and partitions that ``parley topics --describe`` selects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics and partitions that ``--describe`` shows."""

    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False
    with_overrides: bool = False

    @property
    def of_partitions(self) -> bool:
        """True if only some partitions are selected. The lines of the topics are then omitted."""
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr
