"""The interface of assignors. A package can add its own: an entry point of the group ``parley.group_assignors``.

    class Oldest(PartitionAssignor):
        name = "oldest"

        def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
            ...

``group.consumer.assignors`` has the names of the assignors that a broker offers, the default one first. All brokers
must have the same ones. An assignor may be called in a thread, and for several groups at the same time: it keeps no
state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from uuid import UUID

from parley.broker.coordinators.groups.consumer.member import Assignment

__all__ = ["Assignment", "GroupSpec", "MemberSpec", "PartitionAssignor", "TopicSpec"]


class TopicSpec(NamedTuple):
    """A topic that members subscribe to."""

    name: str
    partitions: int
    """The number of its partitions."""
    racks: Callable[[int], frozenset[str]]
    """Returns the racks of a partition's replicas."""


class MemberSpec(NamedTuple):
    """A member of the group."""

    instance_id: str | None
    """None for a dynamic member."""
    rack_id: str | None
    topics: frozenset[UUID]
    """The existing topics that it subscribes to. Members with the same topics share one set."""
    assigned: Assignment
    """The partitions that it was to have so far. Topics or partitions may no longer exist."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group whose partitions are to be assigned."""

    members: Mapping[str, MemberSpec]
    """The members by id, in ascending order of their ids."""
    topics: Mapping[UUID, TopicSpec]
    """The topics that any of them subscribes to, in ascending order of their names."""

    @property
    def is_homogeneous(self) -> bool:
        """True if all members subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


class PartitionAssignor(ABC):
    """Decides which member of a group is to have which partitions."""

    name: ClassVar[str]
    """The name by which members and the configuration choose it."""

    @abstractmethod
    def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
        """Return the partitions of each member. A member that is left out gets none.

        Each partition may be assigned once, to a member that subscribes to its topic. The partitions of a topic are in
        ascending order. What a member has already should stay with it: moving a partition interrupts it.
        Whatever this raises fails the assignment: members get UNKNOWN_SERVER_ERROR, and keep what they have.
        """
