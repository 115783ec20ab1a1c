"""The changes that one event makes to a group of a modern type: a consumer group, a share group or a streams group.

The three packages extend ``ModernGroupChange``. Kafka, too, calls all types but the classic one modern.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

from parley.broker.coordinators.decision import KeyValue, Timer
from parley.broker.coordinators.groups.group_members import HasMembers
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.protocol.errors import ErrorCode, KafkaError

EPOCH_MAX: Final = (1 << 31) - 1


class HasEpochs(HasMembers[Any], Protocol):
    """A group with a group epoch, and the epoch of its target assignment."""

    @property
    def epoch(self) -> int: ...

    @property
    def target_epoch(self) -> int: ...


class HasId(Protocol):
    """A member of a group, with its id."""

    @property
    def member_id(self) -> str: ...


G = TypeVar("G", bound=HasEpochs)
M = TypeVar("M", bound=HasId)


class ModernGroupChange(Generic[G, M]):
    """New values of a group's members and epochs, with the resulting timers and records."""

    def __init__(self, shard: GroupShard, group: G, now_ms: int) -> None:
        self.shard = shard
        self.group = group
        self.now_ms = now_ms
        self.records: list[KeyValue] = []
        self.timers: dict[Hashable, Timer | None] = {}
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self._members: dict[str, M | None] = {}
        """The members that the event has added, changed or removed (None)."""
        self._checked_metadata = False

    @property
    def group_id(self) -> str:
        return self.group.group_id

    def members(self) -> list[M]:
        """Return all members of the group, as they will be after the change."""
        if not self._members:
            return list(self.group.members.values())
        return [each for each in {**self.group.members, **self._members}.values() if each is not None]

    def _put(self, member: M, record: KeyValue) -> None:
        self._members[member.member_id] = member
        self.records.append(record)

    def _raise_epoch(self) -> None:
        """Enter the next group epoch. The caller adds its record. Raises UNKNOWN_SERVER_ERROR if the group is in the
        highest epoch."""
        if self.epoch >= EPOCH_MAX:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "The group has reached the highest epoch. Delete the group."
            )
        self.epoch += 1
