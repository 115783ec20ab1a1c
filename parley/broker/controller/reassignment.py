"""Decisions that move partitions to other replicas (KIP-455).

While a partition moves its ``replicas`` are the target's, in the target's order, and after them those that leave. The
move ends by itself, by the rule in :mod:`parley.broker.controller.leader_choice`, once all that are added are in sync.
Stopping it
is moving back to the replicas that were there before; a second target takes the place of the first one, and replicas
that only the first one wanted leave at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from parley.broker.controller.brokers import UncleanAllowed
from parley.broker.controller.decision import Decision
from parley.broker.controller.leader_choice import next_state
from parley.broker.controller.replica_placement import check_replicas
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Reassignment:
    """What is asked for one partition: to be on these replicas, or with None to stop moving."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ReassignmentOutcome:
    """Whether a move was begun or stopped, or why not."""

    move: Reassignment
    error: KafkaError | None = None


def alter_reassignments(
    image: MetadataImage, moves: Iterable[Reassignment], unclean: UncleanAllowed, *, factor_may_change: bool = True
) -> Decision[list[ReassignmentOutcome]]:
    """Begin or stop each move, or say why not; no partition is named twice."""
    changes: list[Change] = []
    outcomes = []
    live = {broker.broker_id for broker in image.live_brokers()}
    for move in moves:
        try:
            state = _known(image, move)
            wanted = _wanted(image, state, move, factor_may_change=factor_may_change)
            after = next_state(state, wanted, live, unclean=not wanted.isr and unclean(image, move.topic))
            _check_somebody_is_in_sync(after, move)
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
    """The partitions that are moving, of those named or of all; what does not exist does not move."""
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
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {move.topic}-{move.partition}.")
    return state


def _wanted(
    image: MetadataImage, state: PartitionState, move: Reassignment, *, factor_may_change: bool
) -> PartitionState:
    origin = tuple(broker for broker in state.replicas if broker not in state.adding)
    if move.replicas is None:
        if not _moves(state):
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"Partition {move.topic}-{move.partition} is not moving."
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


def _check_somebody_is_in_sync(state: PartitionState, move: Reassignment) -> None:
    if not state.isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Of the replicas that partition {move.topic}-{move.partition} would have, none is in sync: records would "
            "be lost. Wait until one has caught up, or allow it with unclean.leader.election.enable=true.",
        )
