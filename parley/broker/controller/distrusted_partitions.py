"""The controller's decisions when the coordination store was set back to an older state.

The store may name replicas that have since left the ISR, and log directories that are no longer used. Its leader epochs
may be lower than those in the logs. So each partition loses its leader, ISR and ELR. A recovery then elects a leader
from the reports of all replicas (``elections/unclean_leader_choice.py``), under an epoch above all reported epochs.

A log contains no trace of an epoch in which nothing was written. So each broker also reports the highest leader epoch
that it has seen for any partition. See docs/coordination.md, "A store that was set back".
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from parley.broker.controller.broker_reports import BrokerReport
from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import BrokerRegistered, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID


def distrust_all(image: MetadataImage, present: Container[UUID], leader_epoch: int = NO_EPOCH) -> Decision[int]:
    """Remove the leaders, ISRs and ELRs of all partitions, so that a recovery elects leaders under epochs above
    ``leader_epoch``. Returns the number of partitions.

    ``present`` contains the incarnation ids of the brokers that are currently members. The log directories of all other
    brokers are removed from their registrations, so that a replica does not count as lost only because its directory
    differs from the one in the store.
    """
    partitions = [
        PartitionChanged(topic, index, distrusted(state, leader_epoch)) for topic, index, state in image.partitions()
    ]
    brokers = [
        BrokerRegistered(replace(broker, log_dirs=()))
        for broker in image.brokers.values()
        if broker.log_dirs and broker.incarnation_id not in present
    ]
    return Decision((*partitions, *brokers), len(partitions))


def distrust_outdated(image: MetadataImage, broker_id: int, report: BrokerReport) -> list[PartitionChanged]:
    """Leave the election to a recovery for each partition of which this broker reports a higher leader epoch than the
    store contains."""
    changes = []
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if broker_id in state.replicas:
                epoch = report.replica(topic.topic_id, index).current_leader_epoch
                if epoch > state.leader_epoch:
                    changes.append(PartitionChanged(topic.name, index, distrusted(state, epoch)))
    return changes


def raise_epochs(image: MetadataImage, broker_id: int, leader_epoch: int) -> list[PartitionChanged]:
    """For each partition of a broker that waits for a recovery, raise the leader epoch above ``leader_epoch``.

    ``leader_epoch`` is the highest epoch that the broker has seen. This is for a broker that joins after the controller
    has noticed that the store was set back. The last known ELR stays the same, because most recoveries have another
    cause.
    """
    return [
        PartitionChanged(
            topic, index, replace(state, leader_epoch=leader_epoch + 1, partition_epoch=state.partition_epoch + 1)
        )
        for topic, index, state in image.partitions()
        if broker_id in state.replicas and _waits_for_recovery(state) and state.leader_epoch <= leader_epoch
    ]


def _waits_for_recovery(state: PartitionState) -> bool:
    return state.leader == NO_LEADER and not state.isr and not state.elr


def distrusted(state: PartitionState, epoch: int = NO_EPOCH) -> PartitionState:
    """Return the state without leader, ISR and ELR, under a leader epoch above the present one and above ``epoch``."""
    return replace(
        state,
        isr=(),
        leader=NO_LEADER,
        leader_epoch=max(state.leader_epoch, epoch) + 1,
        partition_epoch=state.partition_epoch + 1,
        elr=(),
        last_known_elr=state.replicas,
        directories=(),
    )
