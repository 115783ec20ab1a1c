"""Decisions about replicas with damaged logs: another replica leads, or the replica leaves the ISR to start over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parley.broker.controller.brokers import check_broker_epoch
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.leader_choice import next_partition_state
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER
from parley.protocol.uuids import UUID


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
    partition epoch increases. If the leader has already sent a request to add the replica to the ISR, the controller
    then rejects that request.

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
