"""A member of a consumer group, as a value: its subscription, and its progress toward its target assignment.

A member's assignment approaches the target in steps, each acknowledged by a heartbeat (``reconciliation.py``)::

    STABLE                   it owns the partitions of its epoch's target
    UNREVOKED_PARTITIONS     it must revoke partitions first, and keeps its epoch until then
    UNRELEASED_PARTITIONS    it waits for partitions that other members still own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from parley.broker.coordinators.groups.classic.membership import Protocols
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID

Assignment = Mapping[UUID, tuple[int, ...]]
"""Partitions by topic id, in ascending order for each topic."""

Owned = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the member epoch in which it was assigned."""

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})
"""No partitions."""

LEFT_FOR_NOW: Final = -2
"""The epoch of a static member that has left temporarily: it may return before its session expires."""


class MemberState(IntEnum):
    """The states of a member. The numbers are those that Kafka stores."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """A state that a later version of the broker has stored."""


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """The data from the JoinGroup of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class MemberDetails:
    """The details that a member has sent about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """The names of the topics that the member subscribes to, in ascending order, without duplicates."""
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    """The assignor that the member prefers, or None if it has no preference."""
    classic: ClassicMember | None = None
    """Set while the member uses the classic protocol."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The partitions that a member owns, and its progress toward the target assignment."""

    epoch: int = 0
    previous_epoch: int = -1
    """The epoch that a member still sends if it did not receive its last response."""
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=lambda: NOTHING)
    revoking: Owned = field(default_factory=lambda: NOTHING)
    """The partitions that the member must revoke and has not reported as revoked yet."""

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return True if the member owns the partitions of this epoch's target."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def moved_to(self, epoch: int, **changes: Any) -> Progress:
        """Return a copy in ``epoch``, which may be the current epoch, with ``changes``. The current epoch becomes the
        previous one."""
        return replace(self, epoch=epoch, previous_epoch=self.epoch, **changes)


NEW: Final = Progress()
"""The progress of a member that has just joined."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a consumer group: its id, the details that it has sent, and its progress."""

    member_id: str
    details: MemberDetails = field(default_factory=MemberDetails)
    progress: Progress = NEW


def partitions_of(owned: Owned) -> dict[UUID, tuple[int, ...]]:
    """Return the partitions without their epochs."""
    return {topic: tuple(sorted(partitions)) for topic, partitions in owned.items()}


def in_epoch(assignment: Assignment, epoch: int) -> dict[UUID, dict[int, int]]:
    """Return the partitions, each with ``epoch`` as the epoch in which it was assigned."""
    return {topic: dict.fromkeys(partitions, epoch) for topic, partitions in assignment.items() if partitions}
