"""Decisions that elect leaders: on request (ElectLeaders), and to keep leadership on preferred replicas.

This module decides which partitions need an election; ``leader_choice.py`` and ``unclean_leader_choice.py`` decide
which replica leads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from enum import IntEnum

from parley.broker.controller.broker_reports import BrokerReport
from parley.broker.controller.brokers import check_broker_epoch
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules, RulesOf
from parley.broker.controller.elections.leader_choice import elect_leader, next_partition_state
from parley.broker.controller.elections.unclean_leader_choice import Recovery, recover_leaders
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID


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
        """True if the partition did not need an election."""
        return self.error is not None and self.error.code is ErrorCode.ELECTION_NOT_NEEDED


def elect_preferred_leaders(
    image: MetadataImage, wanted: Iterable[tuple[str, int]], rules: RulesOf
) -> Decision[list[ElectionOutcome]]:
    """Make the preferred replica of each given partition its leader. Returns one outcome for each partition.

    No partition may occur twice.
    """
    live = image.live_broker_ids()
    changes: list[Change] = []
    outcomes = []
    for topic, index in wanted:
        try:
            state = _needing(image, ElectionType.PREFERRED, topic, index)
            changes.append(PartitionChanged(topic, index, _preferred(state, live, rules(image, topic))))
            outcomes.append(ElectionOutcome(topic, index))
        except KafkaError as error:
            outcomes.append(ElectionOutcome(topic, index, error))
    return Decision(tuple(changes), outcomes)


def elect_unclean_leaders(
    image: MetadataImage, wanted: Iterable[tuple[str, int]], reports: Mapping[int, BrokerReport | None], rules: RulesOf
) -> Decision[tuple[list[ElectionOutcome], list[Recovery]]]:
    """Elect a leader of each given partition among the replicas that have reported, even if records are lost.

    Returns one outcome for each partition, and the recoveries. No partition may occur twice.
    """
    outcomes: dict[tuple[str, int], ElectionOutcome] = {}
    for topic, index in wanted:
        outcomes[topic, index] = ElectionOutcome(topic, index)
        try:
            _needing(image, ElectionType.UNCLEAN, topic, index)
        except KafkaError as error:
            outcomes[topic, index] = ElectionOutcome(topic, index, error)
    permitted = [key for key, outcome in outcomes.items() if outcome.error is None]
    decision = recover_leaders(image, permitted, reports, rules, requested=True)
    for recovery in decision.result:
        if recovery.choice.leader == NO_LEADER:
            refused = KafkaError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                "No live replica has reported its log. Start a broker that hosts one; if its disk is lost, on an empty "
                "folder, with which the partition begins empty.",
            )
            key = recovery.topic, recovery.partition
            outcomes[key] = ElectionOutcome(*key, refused)
    return Decision(decision.changes, (list(outcomes.values()), decision.result))


def _needs_election(state: PartitionState, kind: ElectionType) -> bool:
    return state.leader == NO_LEADER if kind is ElectionType.UNCLEAN else state.leader != state.replicas[0]


def needing_election(image: MetadataImage, kind: ElectionType) -> Iterator[tuple[str, int]]:
    """Return all partitions whose leader this kind of election could change."""
    return ((topic, index) for topic, index, state in image.partitions() if _needs_election(state, kind))


def _needing(image: MetadataImage, kind: ElectionType, topic: str, index: int) -> PartitionState:
    """Return the state of a partition. Raises KafkaError if the partition does not exist or needs no election."""
    state = image.partition(topic, index)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {topic}-{index} does not exist.")
    if not _needs_election(state, kind):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    return state


def _preferred(state: PartitionState, live: Set[int], rules: ElectionRules) -> PartitionState:
    preferred = state.replicas[0]
    if preferred not in live or preferred not in state.isr:
        why = "in sync" if preferred in live else "alive"
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader, broker {preferred}, is not {why}."
        )
    return next_partition_state(state, replace(state, leader=preferred), live, rules.min_insync_replicas)


def elect_other_leaders(
    image: MetadataImage, broker_id: int, epoch: int, replicas: Iterable[tuple[UUID, int]], rules: RulesOf
) -> Decision[None]:
    """Elect another leader for each partition whose log is damaged on its current leader, ``broker_id``.

    The new leader is another live member of the ISR. If there is none, the broker stays leader. It stays in the ISR in
    any case. ``replicas`` are pairs of topic id and partition; pairs that are unknown or that the broker does not lead
    are ignored. Raises STALE_BROKER_EPOCH unless the broker is registered under this epoch.
    """
    check_broker_epoch(image, broker_id, epoch)
    live = image.live_broker_ids()
    changes: list[Change] = []
    for topic, index, state in image.named(replicas):
        if state.leader == broker_id:
            able = live.intersection(state.isr) - {broker_id}
            other = next((each for each in state.replicas if each in able), NO_LEADER)
            if other != NO_LEADER:
                wanted, min_isr = replace(state, leader=other), rules(image, topic).min_insync_replicas
                changes.append(PartitionChanged(topic, index, next_partition_state(state, wanted, live, min_isr)))
    return Decision(tuple(changes), None)


def remove_damaged_replicas(
    image: MetadataImage, broker_id: int, epoch: int, replicas: Iterable[tuple[UUID, int]], rules: RulesOf
) -> Decision[None]:
    """Remove a broker's replicas from the ISR, the ELR and the last known ELR, so that the broker can remove their
    damaged logs and fetch them again from the leaders.

    A replica stays unless another live member of the ISR leads. A replica in the ISR or ELR also stays if the ISR would
    have fewer than ``min.insync.replicas`` live members without it. For a replica in none of the three sets, only the
    partition epoch increases. That rejects a proposal of the leader to add the replica to the ISR, which may be on its
    way.

    ``replicas`` are pairs of topic id and partition; unknown pairs are ignored. Raises STALE_BROKER_EPOCH unless the
    broker is registered under this epoch.
    """
    check_broker_epoch(image, broker_id, epoch)
    live = image.live_broker_ids()
    changes: list[Change] = []
    for topic, index, state in image.named(replicas):
        min_isr = rules(image, topic).min_insync_replicas
        others = live.intersection(state.isr) - {broker_id}
        is_outside = broker_id in state.replicas and broker_id not in (*state.isr, *state.elr)
        if state.leader in others and (is_outside or len(others) >= min(min_isr, len(state.replicas))):
            left = next_partition_state(state, state, live, min_isr, lost=(broker_id,))
            if left is state and is_outside:
                left = replace(state, partition_epoch=state.partition_epoch + 1)
            if left is not state:
                changes.append(PartitionChanged(topic, index, left))
    return Decision(tuple(changes), None)


def reconcile_leaders(image: MetadataImage, rules: RulesOf) -> Decision[None]:
    """Elect leaders, shrink ISRs and clear ELRs to match the live brokers and the current configuration.

    Registering or fencing a broker already does this. This decision is for changes that a controller left unfinished
    when it died between two transactions, and for topics whose ``min.insync.replicas`` was lowered: their leaders do
    not advance the high watermark until the ELR is cleared.
    """
    live = image.live_broker_ids()
    changes: list[Change] = []
    for name, topic in image.topics.items():
        unsettled = [
            (index, state)
            for index, state in enumerate(topic.partitions)
            if state.relies_on_elr or state.leader not in live or not live.issuperset(state.isr)
        ]
        if not unsettled:
            continue
        min_isr = rules(image, name).min_insync_replicas
        for index, state in unsettled:
            elected = elect_leader(state, live, min_isr)
            if elected is not state:
                changes.append(PartitionChanged(name, index, elected))
    return Decision(tuple(changes), None)


def rebalance_to_preferred(image: MetadataImage, percentage: int, limit: int, rules: RulesOf) -> Decision[bool]:
    """Move leadership back to brokers that lead too few of the partitions for which they are the preferred replica.

    A broker leads too few if other brokers lead more than ``percentage`` percent of those partitions. Partitions under
    reassignment are skipped. At most ``limit`` leaderships move. Returns True if more remain to be moved.
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
        PartitionChanged(topic, index, _preferred(state, live, rules(image, topic)))
        for broker, partitions in sorted(away.items())
        if broker in live and len(partitions) * 100 > percentage * preferring[broker]
        for topic, index, state in partitions
        if broker in state.isr and not (state.adding or state.removing)
    ]
    return Decision(tuple(changes[:limit]), len(changes) > limit)
