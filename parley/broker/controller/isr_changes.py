"""Decisions about the ISR, which a leader changes with AlterPartition (KIP-497, KIP-841, KIP-903).

A request counts only if its sender is the leader that the controller knows, and contains the partition epoch that the
controller knows. If the state of the partition changes while a request is on its way, the controller rejects the
request, and the leader repeats it once it knows the new state.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from parley.broker.controller.brokers import check_broker_epoch
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.leader_choice import next_partition_state
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The ISR that a leader requests, as pairs of broker id and broker epoch, and the epochs of the state that it
    knows."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class IsrChangeOutcome:
    """The partition's state after the request, and an error if the ISR was not changed.

    ``state`` is None if the partition does not exist. The error NEW_LEADER_ELECTED accompanies a change that was made:
    it completed a reassignment that removed the leader.
    """

    change: IsrChange
    state: PartitionState | None = None
    error: ErrorCode = ErrorCode.NONE


def alter_partitions(
    image: MetadataImage, sender: int, sender_epoch: int, wanted: Sequence[IsrChange], rules: RulesOf
) -> Decision[list[IsrChangeOutcome]]:
    """Change the ISR of each partition as its leader requests. Returns one outcome for each change.

    Raises STALE_BROKER_EPOCH unless the sender is registered under this epoch.
    """
    check_broker_epoch(image, sender, sender_epoch)
    live = image.live_broker_ids()
    changed: dict[tuple[str, int], PartitionState] = {}
    min_isr: dict[str, int] = {}  # of each topic
    outcomes = []
    for change in wanted:
        topic = image.topic_names.get(change.topic_id)
        if topic is None:
            outcomes.append(IsrChangeOutcome(change, error=ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        key = (topic, change.partition)
        state = changed.get(key) or image.partition(*key)
        if state is None:
            outcomes.append(IsrChangeOutcome(change, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        error = _refusal(image, live, state, sender, change)
        if error is not ErrorCode.NONE:
            outcomes.append(IsrChangeOutcome(change, state, error))
            continue
        if topic not in min_isr:
            min_isr[topic] = rules(image, topic).min_insync_replicas
        isr = tuple(broker for broker, _ in change.isr)
        after = next_partition_state(state, replace(state, isr=isr), live, min_isr[topic])
        if after is not state:
            changed[key] = after
        moved = after.leader != sender
        outcomes.append(IsrChangeOutcome(change, after, ErrorCode.NEW_LEADER_ELECTED if moved else ErrorCode.NONE))
    changes: list[Change] = [PartitionChanged(topic, index, state) for (topic, index), state in changed.items()]
    return Decision(tuple(changes), outcomes)


def _refusal(
    image: MetadataImage, live: Container[int], state: PartitionState, sender: int, change: IsrChange
) -> ErrorCode:
    """Return the reason to refuse the change, or NONE. The checks are in Kafka's order: leaders act on the
    first error."""
    isr = [broker for broker, _ in change.isr]
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the sender knows a later controller
    if change.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != state.leader:
        return ErrorCode.INVALID_REQUEST
    if change.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if len(set(isr)) != len(isr) or sender not in isr or any(broker not in state.replicas for broker in isr):
        return ErrorCode.INVALID_REQUEST
    # The leader omits the epoch of a member if it does not know the epoch.
    if any(broker not in live or epoch not in (NO_EPOCH, image.brokers[broker].epoch) for broker, epoch in change.isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE
