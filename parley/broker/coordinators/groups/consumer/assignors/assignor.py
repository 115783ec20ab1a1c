"""The interface of assignors. A package can add an assignor as an entry point in ``parley.group_assignors``.

    class Oldest(PartitionAssignor):
        name = "oldest"

        def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
            ...

``group.consumer.assignors`` names the assignors that a broker offers, the default one first. All brokers must have the
same assignors. An assignor must keep no state, because it may be called from several threads and for several groups at
the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from parley.broker.coordinators.groups.consumer.member import Assignment
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID

__all__ = ["Assignment", "GroupSpec", "MemberSpec", "PartitionAssignor", "TopicSpec"]


class TopicSpec(NamedTuple):
    """A topic that members subscribe to."""

    name: str
    partitions: int
    """The number of partitions of the topic."""
    racks: Callable[[int], frozenset[str]]
    """A function that returns the racks of a partition's replicas."""


class MemberSpec(NamedTuple):
    """A member of the group, as an assignor sees it."""

    instance_id: str | None
    """The instance id of a static member; None for a dynamic member."""
    rack_id: str | None
    topics: frozenset[UUID]
    """The existing topics that the member subscribes to. Members with the same topics share one set."""
    assigned: Assignment
    """The member's previous target assignment. Its topics and partitions may no longer exist."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group for which to assign partitions."""

    members: Mapping[str, MemberSpec]
    """The members by id, in ascending order of their ids."""
    topics: Mapping[UUID, TopicSpec]
    """The topics that any member subscribes to, in ascending order of their names."""

    @property
    def is_homogeneous(self) -> bool:
        """True if all members subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


class PartitionAssignor(ABC):
    """An assignor: decides which member of a group gets which partitions."""

    name: ClassVar[str]
    """The name by which members and the configuration choose it."""

    @abstractmethod
    def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
        """Return the partitions of each member. A member that is missing from the result gets none.

        Each partition may be assigned only once, to a member that subscribes to its topic. The partitions of a topic
        must be in ascending order. A member should keep its partitions, because moving a partition interrupts it. If
        this raises an exception, the assignment fails: members get UNKNOWN_SERVER_ERROR, and keep their partitions.
        """
