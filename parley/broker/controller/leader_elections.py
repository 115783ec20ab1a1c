"""Decisions that elect leaders: on request (ElectLeaders), and to keep leadership on preferred replicas.

This module decides which partitions need an election; ``leader_choice.py`` decides which replica leads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from enum import IntEnum

from parley.broker.controller.decision import Decision
from parley.broker.controller.leader_choice import elect_leader, electable, next_partition_state
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode, KafkaError


class ElectionType(IntEnum):
    """Kinds of election, with the numbers of the ElectLeaders API (KIP-183, KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """The outcome of an election in one partition."""

    topic: str
    partition: int
    error: KafkaError | None = None

    @property
    def is_needless(self) -> bool:
        """True if the partition needed no election."""
        return self.error is not None and self.error.code is ErrorCode.ELECTION_NOT_NEEDED


def elect_leaders(
    image: MetadataImage, kind: ElectionType, wanted: Iterable[tuple[str, int]]
) -> Decision[list[ElectionOutcome]]:
    """Elect a leader for each of the given partitions; each outcome has its own error. No partition may occur twice."""
    live = image.live_broker_ids()
    changes: list[Change] = []
    outcomes = []
    for topic, index in wanted:
        try:
            changes.append(PartitionChanged(topic, index, _elected(image, live, kind, topic, index)))
            outcomes.append(ElectionOutcome(topic, index))
        except KafkaError as error:
            outcomes.append(ElectionOutcome(topic, index, error))
    return Decision(tuple(changes), outcomes)


def _needs_election(state: PartitionState, kind: ElectionType) -> bool:
    return state.leader == NO_LEADER if kind is ElectionType.UNCLEAN else state.leader != state.replicas[0]


def needing_election(image: MetadataImage, kind: ElectionType) -> Iterator[tuple[str, int]]:
    """Return all partitions in which this kind of election could change the leader."""
    return ((topic, index) for topic, index, state in image.partitions() if _needs_election(state, kind))


def _elected(image: MetadataImage, live: Set[int], kind: ElectionType, topic: str, index: int) -> PartitionState:
    state = image.partition(topic, index)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}.")
    if not _needs_election(state, kind):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    live = electable(state, live)
    if kind is ElectionType.PREFERRED:
        return _preferred(state, live)
    elected = elect_leader(state, live, unclean=True)
    if elected.leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"None of the replicas {list(state.replicas)} is alive and has a working disk.",
        )
    return elected


def _preferred(state: PartitionState, live: Set[int]) -> PartitionState:
    preferred = state.replicas[0]
    if preferred not in live or preferred not in state.isr:
        why = "in sync" if preferred in live else "alive, or its disk has failed"
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader, broker {preferred}, is not {why}."
        )
    return next_partition_state(state, replace(state, leader=preferred), live)


def reconcile_leaders(
    image: MetadataImage, unclean: Callable[[MetadataImage, str], bool], *, takes_over: bool = False
) -> Decision[int]:
    """Elect a leader and shrink the ISR wherever live brokers and unclean election now allow or require it.

    Registering or fencing a broker does this already. This decision is for topics that have allowed unclean election
    since, and for changes that a controller left unfinished when it died between two transactions. Returns the number
    of leaders elected outside the ISR.

    A controller that ``takes_over`` cannot tell an unfinished change from a failed disk. It elects any live broker; one
    with a failed disk reports it again.
    """
    live = image.live_broker_ids()
    changes: list[Change] = []
    unsynced = 0
    for name, topic in image.topics.items():
        settled = [
            (index, state)
            for index, state in enumerate(topic.partitions)
            if state.leader not in live or not live.issuperset(state.isr)
        ]
        may_be_unclean = bool(settled) and unclean(image, name)
        for index, state in settled:
            able = live if takes_over else electable(state, live)
            elected = elect_leader(state, able, unclean=may_be_unclean)
            if elected is not state:
                changes.append(PartitionChanged(name, index, elected))
                unsynced += elected.leader not in (NO_LEADER, *state.isr)
    return Decision(tuple(changes), unsynced)


def rebalance_to_preferred(image: MetadataImage, percentage: int, limit: int) -> Decision[bool]:
    """Give leadership back to the brokers that lead too few of the partitions that prefer them.

    This applies to a broker if other brokers lead more than ``percentage`` percent of those partitions. Partitions
    under reassignment are left alone. At most ``limit`` leaderships move. Returns True if there are more to move.
    """
    live = image.live_broker_ids()
    preferring: defaultdict[int, int] = defaultdict(int)
    away: defaultdict[int, list[tuple[str, int, PartitionState]]] = defaultdict(list)
    for topic, index, state in image.partitions():
        preferred = state.replicas[0]
        preferring[preferred] += 1
        if state.leader != preferred:
            away[preferred].append((topic, index, state))
    changes: list[Change] = [
        PartitionChanged(topic, index, next_partition_state(state, replace(state, leader=broker), live))
        for broker, partitions in sorted(away.items())
        if broker in live and len(partitions) * 100 > percentage * preferring[broker]
        for topic, index, state in partitions
        if broker in state.isr and broker in electable(state, live) and not (state.adding or state.removing)
    ]
    return Decision(tuple(changes[:limit]), len(changes) > limit)
