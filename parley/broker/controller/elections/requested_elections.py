"""Elections on request (ElectLeaders): which partitions need one, and unclean elections.

``preferred_elections.py`` has the elections of preferred leaders, ``damaged_replicas.py`` those for damaged logs, and
``leader_reconciliation.py`` those that a controller left unfinished. They decide which partitions need an election;
``leader_choice.py`` and ``unclean_leader_choice.py`` decide which replica leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum

from parley.broker.controller.broker_reports import BrokerReport
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.unclean_leader_choice import Recovery, recover_leaders
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


class ElectionType(IntEnum):
    """Kinds of election, with the numbers of the ElectLeaders API (KIP-183, KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """The outcome of an election in one partition. ``error`` is None if a leader was elected."""

    topic: str
    partition: int
    error: KafkaError | None = None

    @property
    def is_needless(self) -> bool:
        """True if the partition did not need an election."""
        return self.error is not None and self.error.code is ErrorCode.ELECTION_NOT_NEEDED


def elect_unclean_leaders(
    image: MetadataImage, wanted: Iterable[tuple[str, int]], reports: Mapping[int, BrokerReport | None], rules: RulesOf
) -> Decision[tuple[list[ElectionOutcome], list[Recovery]]]:
    """Elect a leader of each given partition among the replicas that have reported, even if records are lost.

    ``reports`` contains the brokers' reports, by broker id; None if the broker did not respond. Returns one outcome for
    each partition, and the recoveries. If no live replica has reported its log, the outcome contains the error
    ELIGIBLE_LEADERS_NOT_AVAILABLE. No partition may occur twice in ``wanted``.
    """
    outcomes: dict[tuple[str, int], ElectionOutcome] = {}
    for topic, index in wanted:
        outcomes[topic, index] = ElectionOutcome(topic, index)
        try:
            require_election(image, ElectionType.UNCLEAN, topic, index)
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
    """Return all partitions whose leader this kind of election could change, as pairs of topic and index."""
    return ((topic, index) for topic, index, state in image.partitions() if _needs_election(state, kind))


def require_election(image: MetadataImage, kind: ElectionType, topic: str, index: int) -> PartitionState:
    """Return the state of a partition that needs an election of this kind.

    Raises UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist, and ELECTION_NOT_NEEDED if it needs no election.
    """
    state = image.partition(topic, index)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {topic}-{index} does not exist.")
    if not _needs_election(state, kind):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    return state
