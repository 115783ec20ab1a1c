"""Decisions that elect preferred leaders: on request (ElectLeaders), and to keep leadership on preferred replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import replace

from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules, RulesOf
from parley.broker.controller.elections.leader_choice import next_partition_state
from parley.broker.controller.elections.requested_elections import ElectionOutcome, ElectionType, require_election
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.protocol.errors import ErrorCode, KafkaError


def elect_preferred_leaders(
    image: MetadataImage, wanted: Iterable[tuple[str, int]], rules: RulesOf
) -> Decision[list[ElectionOutcome]]:
    """Make the preferred replica of each given partition its leader. Returns one outcome for each partition.

    If the preferred replica is not alive and in the ISR, the outcome contains the error PREFERRED_LEADER_NOT_AVAILABLE.
    No partition may occur twice in ``wanted``.
    """
    live = image.live_broker_ids()
    changes: list[Change] = []
    outcomes = []
    for topic, index in wanted:
        try:
            state = require_election(image, ElectionType.PREFERRED, topic, index)
            changes.append(PartitionChanged(topic, index, _preferred(state, live, rules(image, topic))))
            outcomes.append(ElectionOutcome(topic, index))
        except KafkaError as error:
            outcomes.append(ElectionOutcome(topic, index, error))
    return Decision(tuple(changes), outcomes)


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


def _preferred(state: PartitionState, live: Set[int], rules: ElectionRules) -> PartitionState:
    preferred = state.replicas[0]
    if preferred not in live or preferred not in state.isr:
        why = "in sync" if preferred in live else "alive"
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader, broker {preferred}, is not {why}."
        )
    return next_partition_state(state, replace(state, leader=preferred), live, rules.min_insync_replicas)
