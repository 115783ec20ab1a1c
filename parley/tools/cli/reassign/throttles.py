"""The throttles of a reassignment (KIP-73): which brokers send replicas and which receive them.

A partition that is already moving keeps its sources: the replicas that are not being added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.reassign.plan import Plan

LEADER_THROTTLED = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
TOPIC_THROTTLES = (LEADER_THROTTLED, FOLLOWER_THROTTLED)
BROKER_THROTTLES = (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE)


@dataclass(frozen=True, slots=True)
class Ongoing:
    """A move in progress, as the controller lists it: all replicas, and those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the move."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True)
class Move:
    """The brokers that hold a partition and send it, and those that will receive it."""

    sources: frozenset[int]
    destinations: frozenset[int]


def moves(
    ongoing: Mapping[TopicPartition, Ongoing], plan: Plan, current: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, Move]:
    """Return the moves in progress and the moves of the plan, by partition. ``current`` contains the replicas of the
    plan's partitions."""
    found = {
        where: Move(frozenset(one.replicas) - frozenset(one.adding), frozenset(one.adding))
        for where, one in ongoing.items()
    }
    for where, target in plan.items():
        sources = found[where].sources if where in found else frozenset(current[where])
        found[where] = Move(sources, frozenset(target.replicas) - sources)
    return found


def throttled_replicas(moves: Mapping[TopicPartition, Move]) -> dict[str, dict[str, str]]:
    """Return the settings that list each topic's throttled replicas, as ``partition:broker`` pairs."""
    sending: dict[str, list[str]] = {}
    receiving: dict[str, list[str]] = {}
    for (topic, index), move in sorted(moves.items()):
        sending.setdefault(topic, []).extend(f"{index}:{broker}" for broker in sorted(move.sources))
        receiving.setdefault(topic, []).extend(f"{index}:{broker}" for broker in sorted(move.destinations))
    return {
        topic: {LEADER_THROTTLED: ",".join(sending[topic]), FOLLOWER_THROTTLED: ",".join(receiving[topic])}
        for topic in sending
    }


def brokers_of(moves: Mapping[TopicPartition, Move]) -> list[int]:
    """Return the ids of all brokers that send or receive replicas in these moves, sorted."""
    return sorted(set().union(*(move.sources | move.destinations for move in moves.values())))
