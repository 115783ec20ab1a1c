"""The states of a record in a share partition, and the steps between them (KIP-932).

AVAILABLE     may be delivered to a member
ACQUIRED      is delivered to one member, until its lock ends
ACKNOWLEDGED  was processed (final)
ARCHIVED      is not delivered again: rejected, delivered too often, or not there at all (final)
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from parley.broker.runtime.states import step


class RecordState(IntEnum):
    """The state of a record, with Kafka's numbers. They are stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """True if the record is not delivered again."""
        return self >= RecordState.ACKNOWLEDGED


class RecordEvent(IntEnum):
    """What happens to a record."""

    ACQUIRE = 0
    ACCEPT = 1
    RELEASE = 2
    """The member gives the record back, leaves, or its lock has ended."""
    ARCHIVE = 3
    """A member rejects the record, it was delivered too often, or there is no record."""


AVAILABLE: Final = RecordState.AVAILABLE
ACQUIRED: Final = RecordState.ACQUIRED
ACKNOWLEDGED: Final = RecordState.ACKNOWLEDGED
ARCHIVED: Final = RecordState.ARCHIVED

STORED: Final = frozenset({AVAILABLE, ACKNOWLEDGED, ARCHIVED})
"""The states that share coordinators store: acquisitions end with their leader."""

STEPS: Final = {
    (AVAILABLE, RecordEvent.ACQUIRE): ACQUIRED,
    (AVAILABLE, RecordEvent.ARCHIVE): ARCHIVED,
    (ACQUIRED, RecordEvent.ACCEPT): ACKNOWLEDGED,
    (ACQUIRED, RecordEvent.RELEASE): AVAILABLE,
    (ACQUIRED, RecordEvent.ARCHIVE): ARCHIVED,
}


def after(state: RecordState, event: RecordEvent) -> RecordState:
    """Return the state that follows. Raises IllegalStep."""
    return step("record", STEPS, state, event)
