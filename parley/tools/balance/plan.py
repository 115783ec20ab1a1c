"""A plan: its goals, and the partitions that move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from parley.tools.balance.cluster import Cluster
from parley.tools.balance.loads import Resource


class Duty(StrEnum):
    """The reason that a replica must move regardless of the loads."""

    EMPTY = "empty"
    """The replica's broker is to be emptied."""
    RACK = "rack"
    """The rack holds more replicas of the partition than it should, because another rack could hold one."""
    HOST = "host"
    """The machine holds more replicas of the partition than it should, because another machine could hold one."""


@dataclass(frozen=True, slots=True)
class Goals:
    """The goals of a plan."""

    tolerance: float = 0.1
    """A load is balanced if it differs from the broker's share by at most this fraction of the share."""
    emptied: frozenset[int] = frozenset()
    """The brokers that the plan empties. If there are any, only their replicas move."""
    max_bytes: int | None = None
    """The maximum number of bytes that the plan may copy; None for no limit."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's replicas before and after, the preferred leader first."""

    topic: str
    index: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int
    """The size of a replica, in bytes."""
    reason: Duty | Resource
    """The load that the move improves most, or the duty that requires it."""

    @property
    def added(self) -> tuple[int, ...]:
        """The brokers that receive a new replica. None do if only the preferred leader changes."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        """The brokers that lose their replica."""
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def bytes(self) -> int:
        """The number of bytes that the move copies."""
        return self.size * len(self.added)


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves, best first, and the goals that could not be met."""

    moves: tuple[Move, ...] = ()
    elections: tuple[tuple[str, int], ...] = ()
    """Partitions that do not move, but need an election because the preferred leader does not lead."""
    stranded: Mapping[tuple[str, int], str] | None = None
    """Partitions that keep a replica on a broker to be emptied, each with the reason."""

    @property
    def is_empty(self) -> bool:
        """True if the plan changes nothing."""
        return not self.moves and not self.elections

    @property
    def bytes(self) -> int:
        """The number of bytes that the plan copies."""
        return sum(move.bytes for move in self.moves)


def after(cluster: Cluster, plan: Plan) -> Cluster:
    """Return the cluster as it will be after the plan is executed."""
    moved = {(move.topic, move.index): move.after for move in plan.moves}
    elected = set(plan.elections)
    running = {broker.id for broker in cluster.brokers}
    found = []
    for one in cluster.partitions:
        where = (one.topic, one.index)
        replicas = moved.get(where, one.replicas)
        is_led = (where in moved or where in elected) and replicas[0] in running
        found.append(replace(one, replicas=replicas, leader=replicas[0] if is_led else one.leader))
    return replace(cluster, partitions=tuple(found))
