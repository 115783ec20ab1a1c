"""A share group, as its records describe it: its epochs, members, target assignment and stored share partitions.

It changes only when records are applied (``GroupShard.replay``). Decisions return records (``group_change.py``).

A partition is assigned only after its state was *initialized* at the share coordinator. Until then it is
*initializing*. A topic is *deleting* until its state has been deleted. A deletion that fails is retried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID

Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by topic id."""

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

FIRST_EPOCH: Final = 1
"""The epoch of a group without records. In a heartbeat, epoch 0 means joining."""


class ShareGroupState(Enum):
    """The states of a share group, as ShareGroupDescribe and ListGroups return them."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member of a share group. It gets all partitions of its target when it enters the target's epoch."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """The names of the topics that the member subscribes to, in ascending order, without duplicates."""
    epoch: int = 0
    previous_epoch: int = 0
    """The epoch that a member still sends if it did not receive its last response."""
    assigned: Assignment = field(default_factory=lambda: NOTHING)


class TopicPartitions(NamedTuple):
    """Share partitions of one topic."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Stored:
    """The share partitions of a group that have state at the share coordinator, by topic id."""

    initializing: Mapping[UUID, TopicPartitions] = field(default_factory=lambda: NOTHING)
    initialized: Mapping[UUID, TopicPartitions] = field(default_factory=lambda: NOTHING)
    deleting: Mapping[UUID, str] = field(default_factory=lambda: NOTHING)
    """The names of the topics whose state is being deleted, by topic id."""


NOTHING_STORED: Final = Stored()


@dataclass(slots=True, eq=False)
class ShareGroup:
    """A share group, as its records describe it. The committed start offsets are in the state of its share
    partitions."""

    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    """The hash of the topics that the members subscribe to. If it changes, a new target assignment is needed."""
    members: dict[str, ShareMember] = field(default_factory=dict)
    target_epoch: int = FIRST_EPOCH
    target_since_ms: int = 0
    """When the target assignment was computed, or 0 if it never was."""
    targets: dict[str, Assignment] = field(default_factory=dict)
    stored: Stored = NOTHING_STORED
    has_stored_record: bool = False
    """True if the log contains a record of ``stored``."""
    subscribers: dict[str, int] = field(default_factory=dict)
    """The number of members that subscribe to each topic."""
    metadata_checked: bool = False
    """True if ``metadata_hash`` is the hash of the current topics. Not stored: a loaded group checks again."""
    initializing_since_ms: dict[UUID, int] = field(default_factory=dict)
    """When the initialization of each topic last started. Not stored: a loaded group starts again."""

    def state(self) -> ShareGroupState:
        """Return the state of the group: STABLE if it has members, else EMPTY."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    # --- Records ---

    def put_member(
        self, member_id: str, rack_id: str | None, client_id: str, client_host: str, topics: tuple[str, ...]
    ) -> None:
        """Add a member, or replace its details."""
        known = self.members.get(member_id, ShareMember(member_id))
        self._count(known.topics, -1)
        self._count(topics, 1)
        self.members[member_id] = replace(
            known, rack_id=rack_id, client_id=client_id, client_host=client_host, topics=topics
        )

    def remove_member(self, member_id: str) -> None:
        """Remove a member. Does nothing if it is unknown."""
        known = self.members.pop(member_id, None)
        if known is not None:
            self._count(known.topics, -1)

    def put_progress(self, member_id: str, epoch: int, previous_epoch: int, assigned: Assignment) -> None:
        """Replace a member's epochs and partitions. Adds the member if it is unknown: compaction can move the record of
        its details after this one."""
        known = self.members.get(member_id, ShareMember(member_id))
        self.members[member_id] = replace(known, epoch=epoch, previous_epoch=previous_epoch, assigned=assigned)

    def remove_progress(self, member_id: str) -> None:
        """Reset a member's epochs and partitions to those of a member that has just joined. Does nothing if the member
        is unknown."""
        if member_id in self.members:
            self.put_progress(member_id, 0, 0, NOTHING)

    def _count(self, topics: tuple[str, ...], change: int) -> None:
        for name in topics:
            left = self.subscribers.get(name, 0) + change
            if left:
                self.subscribers[name] = left
            else:
                del self.subscribers[name]


def joined(
    first: Mapping[UUID, TopicPartitions], second: Mapping[UUID, TopicPartitions]
) -> dict[UUID, TopicPartitions]:
    """Return the partitions of ``first`` and ``second`` together."""
    result = dict(first)
    for topic_id, added in second.items():
        known = result.get(topic_id)
        result[topic_id] = added if known is None else known._replace(partitions=known.partitions | added.partitions)
    return result


def without(
    topics: Mapping[UUID, TopicPartitions], removed: Mapping[UUID, TopicPartitions]
) -> dict[UUID, TopicPartitions]:
    """Return the partitions of ``topics`` that are not in ``removed``."""
    result = {}
    for topic_id, known in topics.items():
        gone = removed.get(topic_id)
        left = known.partitions if gone is None else known.partitions - gone.partitions
        if left:
            result[topic_id] = known._replace(partitions=left)
    return result
