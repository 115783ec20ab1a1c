"""Decisions that move partitions to other replicas (KIP-455).

During a reassignment, the partition's ``replicas`` are the target's replicas, in the target's order, followed by those
that will leave. The reassignment completes by the rule in ``elections/leader_choice.py``, as soon as all added replicas
are in the ISR. Cancelling a reassignment means reassigning the partition to its previous replicas. A second target
replaces the first, and replicas that are only in the first target are removed immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RecoveryStrategy, RulesOf
from parley.broker.controller.elections.leader_choice import next_partition_state
from parley.broker.controller.replica_placement import check_replicas
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A request to move one partition to these replicas, or to cancel its reassignment if they are None."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ReassignmentOutcome:
    """The outcome of one request. ``error`` is the reason if no reassignment was started or cancelled."""

    move: Reassignment
    error: KafkaError | None = None


def alter_reassignments(
    image: MetadataImage, moves: Iterable[Reassignment], rules: RulesOf, *, factor_may_change: bool = True
) -> Decision[list[ReassignmentOutcome]]:
    """Start or cancel each reassignment. Returns one outcome for each. No partition may occur twice.

    If ``factor_may_change`` is False, a move to a different number of replicas fails with INVALID_REPLICATION_FACTOR.
    A move also fails if records would be lost because none of its replicas is in sync, unless the topic has
    ``unclean.recovery.strategy=Aggressive``.
    """
    changes: list[Change] = []
    outcomes = []
    live = image.live_broker_ids()
    for move in moves:
        try:
            state = _known(image, move)
            wanted = _wanted(image, state, move, factor_may_change=factor_may_change)
            topic_rules = rules(image, move.topic)
            after = next_partition_state(state, wanted, live, topic_rules.min_insync_replicas)
            may_lose = topic_rules.recovery is RecoveryStrategy.AGGRESSIVE and not live.isdisjoint(after.replicas)
            if not may_lose:
                _check_any_is_eligible(after, move)
        except KafkaError as error:
            outcomes.append(ReassignmentOutcome(move, error))
            continue
        if after is not state:
            changes.append(PartitionChanged(move.topic, move.partition, after))
        outcomes.append(ReassignmentOutcome(move))
    return Decision(tuple(changes), outcomes)


def list_reassignments(
    image: MetadataImage, wanted: Mapping[str, Iterable[int]] | None
) -> list[tuple[str, int, PartitionState]]:
    """Return the partitions under reassignment as ``(topic, index, state)``.

    ``wanted`` contains the indexes of the partitions to look at, by topic; None means all partitions. Unknown
    partitions are skipped.
    """
    if wanted is None:
        return [(topic, index, state) for topic, index, state in image.partitions() if _moves(state)]
    return [
        (topic, index, state)
        for topic, indexes in wanted.items()
        for index in indexes
        if (state := image.partition(topic, index)) is not None and _moves(state)
    ]


def _moves(state: PartitionState) -> bool:
    return bool(state.adding or state.removing)


def _known(image: MetadataImage, move: Reassignment) -> PartitionState:
    state = image.partition(move.topic, move.partition)
    if state is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {move.topic}-{move.partition} does not exist."
        )
    return state


def _wanted(
    image: MetadataImage, state: PartitionState, move: Reassignment, *, factor_may_change: bool
) -> PartitionState:
    origin = tuple(broker for broker in state.replicas if broker not in state.adding)
    if move.replicas is None:
        if not _moves(state):
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                f"Partition {move.topic}-{move.partition} is not being reassigned.",
            )
        target = origin
    else:
        target = move.replicas
        check_replicas(image, f"{move.topic}-{move.partition}", target)
        if len(target) != len(origin) and not factor_may_change:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor would change from {len(origin)} to {len(target)}, which the request forbids.",
            )
    present = {*target, *origin}
    return replace(
        state,
        replicas=target + tuple(broker for broker in origin if broker not in target),
        isr=tuple(broker for broker in state.isr if broker in present),
        adding=tuple(broker for broker in target if broker not in origin),
        removing=tuple(broker for broker in origin if broker not in target),
    )


def _check_any_is_eligible(state: PartitionState, move: Reassignment) -> None:
    if not (state.isr or state.elr or state.last_known_elr):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"None of the new replicas of partition {move.topic}-{move.partition} is in sync: records would be "
            "lost. Wait until one has caught up, or allow it with unclean.recovery.strategy=Aggressive.",
        )
