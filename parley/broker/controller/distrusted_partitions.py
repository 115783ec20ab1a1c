"""The controller's decisions when the coordination store was rolled back to an older state.

The store may name replicas that have since left the ISR, and log directories that are no longer used. Its leader epochs
may be lower than those in the logs. So each partition loses its leader, ISR and ELR. A recovery then elects a leader
from the reports of all replicas (``elections/unclean_leader_choice.py``), under an epoch above all reported epochs.

If the controller itself ran while the store was rolled back, it still has the metadata that the store has lost. Then a
partition waits only for the replicas that were eligible in that metadata (``_awaited``), or for a quorum (``_quorum``).

A log may contain no trace of an epoch in which nothing was written. So each broker also reports the highest leader
epoch that it has seen for any partition. See docs/coordination.md, "A store that was rolled back".
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from parley.broker.controller.broker_reports import BrokerReport, Replica
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.unclean_leader_choice import Quorum
from parley.broker.metadata.changes import BrokerRegistered, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.light_dataclasses import dataclass
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID


@dataclass(frozen=True, slots=True)
class Distrusted:
    """The result of ``distrust_all``: the number of partitions that lost their leader, and the quorums that suffice to
    elect another one."""

    partitions: int
    quorums: Mapping[Replica, Quorum]


@dataclass(frozen=True, slots=True)
class _Known:
    """A partition according to the metadata that the store has lost."""

    state: PartitionState
    min_insync_replicas: int
    """The lower of the two values in the store and in the lost metadata. It may exceed the number of replicas."""


def distrust_all(
    image: MetadataImage,
    present: Container[UUID],
    leader_epoch: int = NO_EPOCH,
    *,
    missing: MetadataImage | None = None,
    rules: RulesOf | None = None,
) -> Decision[Distrusted]:
    """Remove the leaders, ISRs and ELRs of all partitions, so that a recovery elects leaders under epochs above
    ``leader_epoch``.

    ``present`` contains the incarnation ids of the brokers that are currently members. The log directories of all other
    brokers are removed from their registrations, so that a replica does not count as lost only because its directory
    differs from the one in the store.

    ``missing`` is the newest metadata that any member has seen, which the store has lost. It is None if this broker
    does not have it. With ``missing`` and ``rules``, the result contains quorums.
    """
    partitions, quorums = [], {}
    for topic, index, state in image.partitions():
        known = _known(image, missing, rules, topic, index)
        awaited = () if known is None else _awaited(state, known)
        partitions.append(PartitionChanged(topic, index, distrusted(state, leader_epoch, awaited)))
        if known is not None:
            quorums[image.topics[topic].topic_id, index] = _quorum(state, known)
    brokers = [
        BrokerRegistered(replace(broker, log_dirs=()))
        for broker in image.brokers.values()
        if broker.log_dirs and broker.incarnation_id not in present
    ]
    return Decision((*partitions, *brokers), Distrusted(len(partitions), quorums))


def distrust_outdated(image: MetadataImage, broker_id: int, report: BrokerReport) -> list[PartitionChanged]:
    """Return changes that remove the leader, ISR and ELR of each partition for which the broker reports a higher leader
    epoch than the store contains. A recovery then elects the leader."""
    changes = []
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if broker_id in state.replicas:
                epoch = report.replica(topic.topic_id, index).current_leader_epoch
                if epoch > state.leader_epoch:
                    changes.append(PartitionChanged(topic.name, index, distrusted(state, epoch)))
    return changes


def raise_epochs(image: MetadataImage, broker_id: int, leader_epoch: int) -> list[PartitionChanged]:
    """Return changes that raise the leader epochs of the broker's partitions that wait for a recovery above
    ``leader_epoch``.

    ``leader_epoch`` is the highest epoch that the broker has seen. This is for a broker that joins after the controller
    has noticed that the store was rolled back. The last known ELR stays the same, because most recoveries have another
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


def _known(
    image: MetadataImage,
    missing: MetadataImage | None,
    rules: RulesOf | None,
    topic: str,
    index: int,
) -> _Known | None:
    """Return a partition as it is in ``missing``, the metadata that the store has lost. Return None if that metadata
    does not contain the partition, or gives it other replicas."""
    if missing is None or rules is None:
        return None
    state, known = image.partition(topic, index), missing.partition(topic, index)
    if state is None or known is None or image.topics[topic].topic_id != missing.topics[topic].topic_id:
        return None
    if set(known.replicas) != set(state.replicas):
        return None
    return _Known(known, min(rules(each, topic).min_insync_replicas for each in (image, missing)))


def _awaited(state: PartitionState, known: _Known) -> tuple[int, ...]:
    """Return the replicas that must report before a leader is elected; empty if all replicas must report.

    These are the replicas in the ISR and the ELR according to the metadata that the store has lost. The other replicas
    lacked acknowledged records then. Later changes may be unknown, because the broker that saw them is dead. So this
    leaves out fewer than ``min.insync.replicas`` replicas: they cannot have acknowledged a record by themselves.

    If the partition had no leader in the lost metadata, that metadata does not show which replicas had all records, so
    all replicas must report.
    """
    if known.state.leader == NO_LEADER:
        return ()
    awaited = tuple(each for each in state.replicas if each in known.state.isr or each in known.state.elr)
    return awaited if len(state.replicas) - len(awaited) < known.min_insync_replicas else ()


def _quorum(state: PartitionState, known: _Known) -> Quorum:
    """Return the quorum that suffices even if an awaited replica is dead. It leaves out fewer than
    ``min.insync.replicas`` replicas, and they cannot have acknowledged a record by themselves."""
    size = len(state.replicas) - known.min_insync_replicas + 1
    # After an earlier rollback, the ISR and the ELR are empty.
    eligible = (*known.state.isr, *known.state.elr) or known.state.last_known_elr
    return Quorum(frozenset(state.replicas), frozenset(eligible), max(1, size))


def distrusted(state: PartitionState, epoch: int = NO_EPOCH, awaited: tuple[int, ...] = ()) -> PartitionState:
    """Return the state without leader, ISR and ELR, under a leader epoch above the present one and above ``epoch``.

    A recovery waits for the replicas in ``awaited``, or for all replicas if it is empty.
    """
    return replace(
        state,
        isr=(),
        leader=NO_LEADER,
        leader_epoch=max(state.leader_epoch, epoch) + 1,
        partition_epoch=state.partition_epoch + 1,
        elr=(),
        last_known_elr=awaited or state.replicas,
        directories=(),
    )
