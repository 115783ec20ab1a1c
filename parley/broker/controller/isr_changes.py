"""The decision about in-sync replicas: what a leader asks for by AlterPartition (KIP-497, KIP-841, KIP-903).

A leader is believed only while it is the leader the controller knows, and speaks of the state the controller knows: so
of two changes that crossed each other one is refused, and the leader asks anew once it has the other.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from parley.broker.controller.decision import Decision
from parley.broker.controller.leader_choice import next_state
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader asks for one partition: the ISR as ``(broker id, broker epoch)``, and the state it started from."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class IsrChangeOutcome:
    """The partition's state after the wish; with an error besides, or alone where there is no such partition.

    NEW_LEADER_ELECTED comes with a change that was made: it ended a reassignment that took the leader away.
    """

    wish: IsrChange
    state: PartitionState | None = None
    error: ErrorCode = ErrorCode.NONE


def alter_partitions(
    image: MetadataImage, sender: int, sender_epoch: int, wishes: Sequence[IsrChange]
) -> Decision[list[IsrChangeOutcome]]:
    """Change the ISR of each partition as its leader asks, or say why not.

    Raises STALE_BROKER_EPOCH unless the sender is registered under this epoch.
    """
    check_broker_epoch(image, sender, sender_epoch)
    live = {broker.broker_id for broker in image.live_brokers()}
    changed: dict[tuple[str, int], PartitionState] = {}
    outcomes = []
    for wish in wishes:
        topic = image.topic_names.get(wish.topic_id)
        if topic is None:
            outcomes.append(IsrChangeOutcome(wish, error=ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        key = (topic, wish.partition)
        state = changed.get(key) or image.partition(*key)
        if state is None:
            outcomes.append(IsrChangeOutcome(wish, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        error = _refusal(image, live, state, sender, wish)
        if error is not ErrorCode.NONE:
            outcomes.append(IsrChangeOutcome(wish, state, error))
            continue
        isr = tuple(broker for broker, _ in wish.isr)
        after = next_state(state, replace(state, isr=isr), live)
        if after is not state:
            changed[key] = after
        moved = after.leader != sender
        outcomes.append(IsrChangeOutcome(wish, after, ErrorCode.NEW_LEADER_ELECTED if moved else ErrorCode.NONE))
    changes: list[Change] = [PartitionChanged(topic, index, state) for (topic, index), state in changed.items()]
    return Decision(tuple(changes), outcomes)


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH unless ``epoch`` is the one the broker is registered under."""
    known = image.brokers.get(broker_id)
    if known is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is not registered.")
    if epoch != known.epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is registered under epoch {known.epoch}, not {epoch}."
        )


def _refusal(
    image: MetadataImage, live: Container[int], state: PartitionState, sender: int, wish: IsrChange
) -> ErrorCode:
    """Why the wish is not granted; the order of the checks is Kafka's, since leaders act upon the first."""
    isr = [broker for broker, _ in wish.isr]
    if wish.leader_epoch > state.leader_epoch or wish.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the sender has heard of a controller after this one
    if wish.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != state.leader:
        return ErrorCode.INVALID_REQUEST
    if wish.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if len(set(isr)) != len(isr) or sender not in isr or any(broker not in state.replicas for broker in isr):
        return ErrorCode.INVALID_REQUEST
    # The leader names no epoch of a member whose epoch it does not know.
    if any(broker not in live or epoch not in (NO_EPOCH, image.brokers[broker].epoch) for broker, epoch in wish.isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE
