"""The states of a record in a share partition, and the steps between them (KIP-932).

AVAILABLE     can be delivered to a member
ACQUIRED      delivered to one member, until its lock expires
ACKNOWLEDGED  processed (final)
ARCHIVED      not delivered again: rejected, delivered too often, or missing from the log (final)
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from parley.broker.runtime.states import step


class RecordState(IntEnum):
    """The state of a record. The numbers are Kafka's, and are stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """True if the record will not be delivered again."""
        return self >= RecordState.ACKNOWLEDGED


class RecordEvent(IntEnum):
    """An event that changes the state of a record."""

    ACQUIRE = 0
    ACCEPT = 1
    RELEASE = 2
    """The member released the record or left, or its lock expired."""
    ARCHIVE = 3
    """A member rejected the record, it was delivered too often, or it does not exist."""


AVAILABLE: Final = RecordState.AVAILABLE
ACQUIRED: Final = RecordState.ACQUIRED
ACKNOWLEDGED: Final = RecordState.ACKNOWLEDGED
ARCHIVED: Final = RecordState.ARCHIVED

STORED: Final = frozenset({AVAILABLE, ACKNOWLEDGED, ARCHIVED})
"""The states that share coordinators store. Acquisitions are not stored: they end when the leader changes."""

STEPS: Final = {
    (AVAILABLE, RecordEvent.ACQUIRE): ACQUIRED,
    (AVAILABLE, RecordEvent.ARCHIVE): ARCHIVED,
    (ACQUIRED, RecordEvent.ACCEPT): ACKNOWLEDGED,
    (ACQUIRED, RecordEvent.RELEASE): AVAILABLE,
    (ACQUIRED, RecordEvent.ARCHIVE): ARCHIVED,
}


def after(state: RecordState, event: RecordEvent) -> RecordState:
    """Return the state that follows ``state`` after ``event``. Raises IllegalStep if the table has no such step."""
    return step("record", STEPS, state, event)
