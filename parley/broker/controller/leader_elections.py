"""Decisions that elect leaders anew: as administrators ask (ElectLeaders), and to keep leaders where they belong.

All go through :mod:`parley.broker.controller.leader_choice`; here it is decided which partitions are concerned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from enum import IntEnum

from parley.broker.controller.decision import Decision
from parley.broker.controller.leader_choice import candidates, elect_leader, next_state
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode, KafkaError


class ElectionType(IntEnum):
    """Whom ElectLeaders elects, with the API's numbers (KIP-183, KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """What became of the election in one partition."""

    topic: str
    partition: int
    error: KafkaError | None = None

    @property
    def is_needless(self) -> bool:
        """Whether there was nothing to elect."""
        return self.error is not None and self.error.code is ErrorCode.ELECTION_NOT_NEEDED


def elect_leaders(
    image: MetadataImage, kind: ElectionType, wanted: Iterable[tuple[str, int]]
) -> Decision[list[ElectionOutcome]]:
    """Have each partition of those wanted, which are named once each, elect a leader, or say why not."""
    live = _live(image)
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
    """All partitions where an election makes a difference."""
    return ((topic, index) for topic, index, state in image.partitions() if _needs_election(state, kind))


def _live(image: MetadataImage) -> set[int]:
    return {broker.broker_id for broker in image.live_brokers()}


def _elected(image: MetadataImage, live: Set[int], kind: ElectionType, topic: str, index: int) -> PartitionState:
    state = image.partition(topic, index)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}.")
    if not _needs_election(state, kind):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    live = candidates(state, live)
    if kind is ElectionType.PREFERRED:
        return _preferred(state, live)
    elected = elect_leader(state, live, unclean=True)
    if elected.leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"None of the replicas {list(state.replicas)} is alive, but for those whose disk has failed.",
        )
    return elected


def _preferred(state: PartitionState, live: Set[int]) -> PartitionState:
    preferred = state.replicas[0]
    if preferred not in live or preferred not in state.isr:
        why = "in sync" if preferred in live else "alive, or its disk has failed"
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader, broker {preferred}, is not {why}."
        )
    return next_state(state, replace(state, leader=preferred), live)


def reconcile_leaders(
    image: MetadataImage, unclean: Callable[[MetadataImage, str], bool], *, takes_over: bool = False
) -> Decision[int]:
    """Bring every partition in line with who lives, and with where unclean election is allowed.

    A broker's coming and going sees to that by itself. This is for what was allowed since, and for what a controller
    left undone that went down between two transactions. Answers how many leaders were elected that were not in sync.

    A controller that ``takes_over`` cannot tell what was left undone from a disk that failed: everybody who lives may
    be elected then, and who cannot lead tells so again.
    """
    live = _live(image)
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
            able = live if takes_over else candidates(state, live)
            elected = elect_leader(state, able, unclean=may_be_unclean)
            if elected is not state:
                changes.append(PartitionChanged(name, index, elected))
                unsynced += elected.leader not in (NO_LEADER, *state.isr)
    return Decision(tuple(changes), unsynced)


def rebalance_to_preferred(image: MetadataImage, percentage: int, limit: int) -> Decision[bool]:
    """Give leadership back to the preferred leaders that lost too much of it; answers whether there is more to do.

    A broker has lost too much when more than ``percentage`` of the partitions that prefer it are led by others.
    Partitions that are being reassigned are left alone. At most ``limit`` partitions change hands.
    """
    live = _live(image)
    preferring: defaultdict[int, int] = defaultdict(int)
    away: defaultdict[int, list[tuple[str, int, PartitionState]]] = defaultdict(list)
    for topic, index, state in image.partitions():
        preferred = state.replicas[0]
        preferring[preferred] += 1
        if state.leader != preferred:
            away[preferred].append((topic, index, state))
    changes: list[Change] = [
        PartitionChanged(topic, index, next_state(state, replace(state, leader=broker), live))
        for broker, partitions in sorted(away.items())
        if broker in live and len(partitions) * 100 > percentage * preferring[broker]
        for topic, index, state in partitions
        if broker in state.isr and broker in candidates(state, live) and not (state.adding or state.removing)
    ]
    return Decision(tuple(changes[:limit]), len(changes) > limit)
