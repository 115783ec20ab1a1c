"""A member of a consumer group as a value: what it subscribes to, and how far it has come with its assignment.

A member's assignment approaches the target in steps, each acknowledged by a heartbeat (``reconciliation.py``)::

    STABLE                   it has what the target of its epoch says
    UNREVOKED_PARTITIONS     it must give up partitions first; it keeps its epoch until it has
    UNRELEASED_PARTITIONS    it waits for partitions that other members still have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from parley.broker.coordinators.groups.membership import Protocols

Assignment = Mapping[UUID, tuple[int, ...]]
"""Partitions by topic id, each topic's in ascending order."""

Owned = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the member epoch in which it was assigned."""

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})
"""No partitions."""

LEFT_FOR_NOW: Final = -2
"""The epoch of a static member that has left, and may return before its session expires."""


class MemberState(IntEnum):
    """The states of a member, with the numbers that Kafka stores."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """A state that a later version has stored."""


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What a member that uses the classic protocol has sent in its JoinGroup."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class MemberDetails:
    """What a member has said of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """The names that it subscribes to, in ascending order, each once."""
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    """The assignor that it wants; None if it leaves that to the coordinator."""
    classic: ClassicMember | None = None
    """Not None while the member uses the classic protocol."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The partitions that a member has now, and how far it has come on its way to the target assignment."""

    epoch: int = 0
    previous_epoch: int = -1
    """A member that did not get its last response still has this one."""
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=lambda: NOTHING)
    revoking: Owned = field(default_factory=lambda: NOTHING)
    """What it has been told to give up, until it says that it has."""

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """True if the member has what the target of this epoch says."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def moved_to(self, epoch: int, **changes: Any) -> Progress:
        """Return this in another epoch, or in the same one again."""
        return replace(self, epoch=epoch, previous_epoch=self.epoch, **changes)


NEW: Final = Progress()
"""The progress of a member that has just joined."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    member_id: str
    details: MemberDetails = field(default_factory=MemberDetails)
    progress: Progress = NEW


def partitions_of(owned: Owned) -> dict[UUID, tuple[int, ...]]:
    """Return the partitions without their epochs."""
    return {topic: tuple(sorted(partitions)) for topic, partitions in owned.items()}


def in_epoch(assignment: Assignment, epoch: int) -> dict[UUID, dict[int, int]]:
    """Return partitions as assigned in one epoch."""
    return {topic: dict.fromkeys(partitions, epoch) for topic, partitions in assignment.items() if partitions}
